"""Nodes whose GPUs are offered both by a device plugin and in ResourceSlices: the same GPUs, unless the
labels count enough GPUs for both.

Neither knows what the other has allocated. So claims are allocated no GPU while pods hold GPUs of the device
plugin, and the node accepts no other pods while claims hold any.
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
"""Suffixes of driver names, by the vendor prefix of resource names."""


def offered_twice(spec: NodeSpec, labels: Mapping[str, str], on_node: NodeDevices) -> str:
    """Description of the GPUs that are offered in both ways, "" if there are none."""
    if not spec.gpus or not on_node.devices:
        return ""
    counted = [name for vendor, names in _DRIVERS.items() if _counts(spec, vendor) for name in names]
    in_slices = len({gpu for id, gpu in on_node.gpus().items() if id.driver.endswith(tuple(counted))})
    known = read_gpu_labels(labels).gpu_count
    if not in_slices or known >= len(spec.gpus) + in_slices:
        return ""
    same = "They are the same GPUs" if known else "They may be the same GPUs"
    return (
        f"a device plugin advertises {len(spec.gpus)} GPUs, and ResourceSlices {in_slices}. {same}, so they "
        "are allocated in only one way at a time: remove one of the two"
    )


def _counts(spec: NodeSpec, vendor: str) -> bool:
    """Whether the node has GPUs of the vendor. All sharing systems are for NVIDIA GPUs."""
    shared = bool(spec.sharing_resource) and vendor == "nvidia.com"
    return shared or any(f"{vendor}/" in pool.resource for pool in spec.pools)


def pods_have_gpus(fleet: Fleet, row: int) -> bool:
    """Whether GPUs of the device plugin are allocated to pods."""
    arrays = fleet.arrays
    return bool((arrays.compute[:, row] < arrays.compute_capacity[:, row]).any())
