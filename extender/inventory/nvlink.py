"""NVLink islands of a node, from the first of these that is known: topology labels, catalogue, clique label.

No tool publishes NVLink topology as node labels, so the labels are Stowage's own, in a namespace that Node
Feature Discovery accepts. Only pods that request an island are filtered by it.
"""

from __future__ import annotations

from collections.abc import Mapping

from extender.inventory import gfd_labels
from packing.model.gpu_catalogue import Model
from packing.model.nvlink import Islands, parse_islands, reference_islands

PREFIX = "nvlink.feature.node.kubernetes.io/"


def nvlink_islands(labels: Mapping[str, str], gpus: int, model: Model | None) -> Islands:
    """The islands among ``gpus`` GPUs. ``model`` is None if it is unknown or the GPUs are partitioned."""
    if (labelled := _labelled(labels, gpus)) is not None:
        return labelled
    if model is not None:
        return reference_islands(gpus, model.island)
    return reference_islands(gpus, gpus) if labels.get(gfd_labels.PREFIX + "gpu.clique") else ()


def _labelled(labels: Mapping[str, str], gpus: int) -> Islands | None:
    """The islands of the label, None if it is absent, malformed or for another number of GPUs."""
    value = labels.get(PREFIX + "islands")
    if value is None or gfd_labels.number(labels, PREFIX + "gpus") != gpus:
        return None
    try:
        islands = parse_islands(value)
    except ValueError:
        return None
    return islands if all(gpu < gpus for island in islands for gpu in island) else None
