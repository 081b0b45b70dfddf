"""Nodes whose GPUs both a device plugin and ResourceSlices offer: the same ones, unless the labels count
enough GPUs for both.

Neither knows what the other has given out. So claims get no GPU while pods have some of the device plugin,
and the node takes no other pods while claims have some.
"""

from __future__ import annotations

from collections.abc import Mapping

from extender.dra.node_devices import NodeDevices
from extender.inventory.gpu_labels import read_gpu_labels
from packing.fleet.fleet import Fleet
from packing.model.node_spec import NodeSpec

_DRIVERS = {
    "nvidia.com": ("nvidia.com", "project-hami.io"),
    "amd.com": ("amd.com",),
    "intel.com": ("intel.com",),
}
"""What the names of drivers end with, by the vendor in the names of resources."""


def offered_twice(spec: NodeSpec, labels: Mapping[str, str], on_node: NodeDevices) -> str:
    """What is offered in both ways, "" for nothing."""
    if not spec.gpus or not on_node.devices:
        return ""
    counted = [name for vendor, names in _DRIVERS.items() if _counts(spec, vendor) for name in names]
    in_slices = len({gpu for id, gpu in on_node.gpus().items() if id.driver.endswith(tuple(counted))})
    known = read_gpu_labels(labels).gpu_count
    if not in_slices or known >= len(spec.gpus) + in_slices:
        return ""
    same = "They are the same" if known else "Whether they are the same is not known"
    return (
        f"a device plugin offers {len(spec.gpus)} GPUs, and ResourceSlices {in_slices}. {same}, so pods get "
        "them in one way at a time: remove one of the two"
    )


def _counts(spec: NodeSpec, vendor: str) -> bool:
    """Whether the node has GPUs of the vendor; all sharing systems are for NVIDIA's."""
    shared = bool(spec.sharing_resource) and vendor == "nvidia.com"
    return shared or any(f"{vendor}/" in pool.resource for pool in spec.pools)


def pods_have_gpus(fleet: Fleet, row: int) -> bool:
    """Whether pods have GPUs of the device plugin."""
    arrays = fleet.arrays
    return bool((arrays.compute[:, row] < arrays.compute_capacity[:, row]).any())
