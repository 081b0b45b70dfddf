"""GPUs as vgpu-manager registers them: the node annotation ``nvidia.com/node-device-register``.

Facts (coldzerofear/vgpu-manager at 3d7f66d): a JSON list of id (index), type, uuid, core (per cent), memory
(MiB), number (shares), numa, mig, healthy (``pkg/device/types.go``). ``node-config-info`` has a factor by
which the memory of requests is multiplied. GPUs with ``mig`` belong to NVIDIA's plugin and take no shares.

If vgpu-manager no longer advertises devices and NVIDIA's plugin does, vgpu-manager's pods may still hold
parts of the GPUs. So the GPUs stay accounted for, and the node takes no new pods.
"""

from __future__ import annotations

from pydantic_core import from_json

from extender.inventory.shared_gpus import (
    InventoryError,
    SharedGpus,
    advertises_nvidia,
    checked_gpus,
    leftover_problem,
    parse_name,
    parse_number,
    parse_objects,
    product_label,
)
from extender.k8s.objects import Node
from extender.k8s.quantity import whole
from extender.untrusted.limits import GPU_MIB
from packing.model.node_spec import Gpu

RESOURCE = "nvidia.com/vgpu-number"
REGISTER, CONFIG = "nvidia.com/node-device-register", "nvidia.com/node-config-info"


def shared_gpus(node: Node) -> SharedGpus | None:
    """The node's GPUs if vgpu-manager shares them. Raises InventoryError."""
    text = node.annotations.get(REGISTER)
    leftover = not whole(node.allocatable.get(RESOURCE, "0"))
    if not text or (leftover and not advertises_nvidia(node)):
        return None
    try:
        entries = parse_objects(from_json(text), REGISTER)
        config = from_json(node.annotations.get(CONFIG) or "{}")
    except ValueError as error:
        raise InventoryError(f"{REGISTER} or {CONFIG} cannot be read: {error}") from error
    if leftover and all(entry.get("mig") is True for entry in entries):
        return None  # all of them belong to NVIDIA's plugin
    factor = config.get("memoryFactor", 1) if isinstance(config, dict) else 1
    if factor not in (0, 1):
        raise InventoryError(f"{CONFIG}: a memory factor other than 1 is not supported")
    entries.sort(key=lambda entry: parse_number(entry.get("id"), REGISTER))
    gpus = [
        Gpu(
            parse_number(entry.get("memory"), REGISTER, GPU_MIB),
            entry.get("healthy") is True and entry.get("mig") is not True,
            parse_number(entry.get("core"), REGISTER) * 10,
            parse_number(entry.get("number"), REGISTER),
            parse_name(entry.get("uuid", ""), REGISTER),
        )
        for entry in entries
    ]
    return SharedGpus(
        RESOURCE,
        REGISTER,
        checked_gpus(gpus, REGISTER),
        frozenset(product_label(parse_name(entry.get("type", ""), REGISTER)) for entry in entries),
        problem=leftover_problem(RESOURCE, REGISTER) if leftover else "",
        lists_sick_gpus=any(entry.get("healthy") is not True for entry in entries),
    )
