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

_VENDORS = ("nvidia", "amd", "intel")
"""The first part of the prefix of their resource names (``nvidia.com/gpu``)."""


def offered_twice(spec: NodeSpec, labels: Mapping[str, str], on_node: NodeDevices) -> str:
    """Description of the GPUs that are offered in both ways, "" if there are none."""
    if not spec.gpus or not on_node.devices:
        return ""
    counted = {vendor for vendor in _VENDORS if _counts(spec, f"{vendor}.com")}
    gpus = ((part.gpu, _vendors(on_node, index)) for index, part in on_node.gpus().items())
    in_slices = len({gpu for gpu, vendors in gpus if counted & vendors})
    known = read_gpu_labels(labels).gpu_count
    if not in_slices or known >= len(spec.gpus) + in_slices:
        return ""
    same = "They are the same GPUs" if known else "They may be the same GPUs"
    return (
        f"a device plugin advertises {len(spec.gpus)} GPUs, and ResourceSlices {in_slices}. {same}, so they "
        "are allocated in only one way at a time: remove one of the two"
    )


def _vendors(on_node: NodeDevices, index: int) -> set[str]:
    """The vendors that the device may be of, by its driver, product and brand."""
    device, driver = on_node.device(index), on_node.device_id(index).driver
    text = " ".join((driver, device.attribute_text("productName"), device.attribute_text("brand"))).lower()
    return {vendor for vendor in _VENDORS if vendor in text} or set(_VENDORS)


def _counts(spec: NodeSpec, vendor: str) -> bool:
    """Whether the node has GPUs of the vendor. All sharing systems are for NVIDIA GPUs."""
    shared = bool(spec.sharing_resource) and vendor == "nvidia.com"
    return shared or any(f"{vendor}/" in pool.resource for pool in spec.pools)


def pods_have_gpus(fleet: Fleet, row: int) -> bool:
    """Whether GPUs of the device plugin are allocated to pods."""
    arrays = fleet.arrays
    return bool((arrays.compute[:, row] < arrays.compute_capacity[:, row]).any())
