"""NVLink islands of a node, by order of trust: topology labels, the catalogue, the clique label, unknown.

No tool publishes NVLink topology as node labels, so the keys are Stowage's own, in a namespace that Node
Feature Discovery accepts as it is. It is a hint: only a pod that asks for an island is filtered by it.
"""

from __future__ import annotations

from collections.abc import Mapping

from extender.inventory import gfd_labels as gfd
from packing.model.gpu_catalogue import Model
from packing.model.nvlink import Islands, parse_islands, reference_islands

PREFIX = "nvlink.feature.node.kubernetes.io/"


def islands(labels: Mapping[str, str], gpus: int, model: Model | None) -> Islands:
    """The islands among ``gpus`` GPUs; ``model`` is None where the GPUs are not whole or not known."""
    labelled = _labelled(labels, gpus)
    if labelled is not None:
        return labelled
    if model is not None:
        return reference_islands(gpus, model.island)
    return reference_islands(gpus, gpus) if labels.get(gfd.PREFIX + "gpu.clique") else ()


def _labelled(labels: Mapping[str, str], gpus: int) -> Islands | None:
    """The label's islands, or None where it is absent, malformed or made for another number of GPUs."""
    value = labels.get(PREFIX + "islands")
    if value is None or gfd.number(labels, PREFIX + "gpus") != gpus:
        return None
    try:
        found = parse_islands(value)
    except ValueError:
        return None
    return found if all(gpu < gpus for island in found for gpu in island) else None
