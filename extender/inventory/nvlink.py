"""NVLink islands of a node, from the first known of these: topology labels, catalog, clique label; and the
domains of the network between nodes to which it belongs.

No tool publishes NVLink topology as node labels, so the labels are Stowage's own, in a namespace that Node
Feature Discovery accepts. deploy/nvlink-labeller writes them. Only pods that require an island are filtered
by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from extender.data import facts
from extender.inventory.gpu_labels import label_number
from extender.untrusted.limits import quoted
from packing.fleet.network import Domains
from packing.model.gpu_catalog import Model
from packing.model.nvlink import Islands, parse_islands, reference_islands

PREFIX = "nvlink.feature.node.kubernetes.io/"
LABEL = PREFIX + "islands"
CLIQUE = "nvidia.com/gpu.clique"
_DIRECT = frozenset({"bridge", "mesh"})
_MOST_DIRECT = 4
"""Maximum number of GPUs of an island in the catalog with direct links to each other; larger ones have a
switch."""
LEVELS: list[list[str]] = facts("network")["levels"]
"""From the nearest domain to the farthest: NVLink between nodes, then switches. At each level, the first
label that a node has counts."""


@dataclass(frozen=True, slots=True)
class NvlinkIslands:
    """Groups of GPUs that are NVLink peers, and ``source``: the label, or the catalog; "" if unknown.

    ``plugin_keeps``: the device plugin allocates GPUs of one island to a pod if possible. NVIDIA's plugin
    counts NVLinks only between GPUs, not to a switch (NVIDIA/go-gpuallocator, internal/links/device.go), so
    on a switch with a degraded GPU it allocates that GPU together with others. ``problem``: why the label was
    ignored.
    """

    islands: Islands = ()
    source: str = ""
    plugin_keeps: bool = True
    problem: str = ""


def nvlink_islands(labels: Mapping[str, str], gpus: int, model: Model | None) -> NvlinkIslands:
    """The islands among ``gpus`` GPUs. ``model`` is None if it is unknown or the GPUs are partitioned."""
    problem = ""
    if LABEL in labels and gpus:
        try:
            islands = _labeled(labels, gpus)
            return NvlinkIslands(islands, LABEL, labels.get(PREFIX + "fabric") in _DIRECT)
        except ValueError as error:
            problem = f"label {LABEL} is ignored: {error}"
    if model is not None:
        islands, direct = reference_islands(gpus, model.island), model.island <= _MOST_DIRECT
        return NvlinkIslands(islands, "catalog", direct, problem)
    if labels.get(CLIQUE) and gpus:
        return NvlinkIslands(reference_islands(gpus, gpus), CLIQUE, problem=problem)
    return NvlinkIslands(problem=problem)


def _labeled(labels: Mapping[str, str], gpus: int) -> Islands:
    """The islands of the label. Raises ValueError if it is malformed or describes another number of GPUs."""
    counted = label_number(labels, PREFIX + "gpus")
    if counted != gpus:
        raise ValueError(f"it describes {counted or 'an unknown number of'} GPUs, but the node has {gpus}")
    try:
        islands = parse_islands(labels[LABEL])
    except ValueError as error:
        raise ValueError(quoted(str(error))) from None
    if any(gpu >= gpus for island in islands for gpu in island):
        raise ValueError(f"it names GPUs above {gpus - 1}")
    return islands


def domains_of(labels: Mapping[str, str]) -> Domains:
    """The domains in a node's labels: for each level the label and its value; "" if there is none."""
    return tuple(
        next((f"{label}={labels[label]}" for label in level if labels.get(label)), "") for level in LEVELS
    )
