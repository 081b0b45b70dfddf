"""GPUs as vgpu-manager registers them: the node annotation ``nvidia.com/node-device-register``.

Facts (coldzerofear/vgpu-manager at 3d7f66d): a JSON list of id (index), type, uuid, core (per cent), memory
(MiB), number (shares), numa, mig, healthy (``pkg/device/types.go``); ``node-config-info`` has the factor that
the memory of requests is multiplied by. GPUs with ``mig`` are the native plugin's and take no shares.

Where vgpu-manager advertises nothing any more, and NVIDIA's plugin has the GPUs, its pods may still hold
parts of them: they stay in the books, and the node takes nothing new.
"""

from __future__ import annotations

from pydantic_core import from_json

from extender.inventory.shared_gpus import (
    InventoryError,
    SharedGpus,
    advertises_nvidia,
    count,
    left_over,
    name,
    product_label,
    table,
    unique,
)
from extender.k8s.objects import Node
from extender.k8s.quantity import whole
from extender.untrusted.limits import GPU_MIB
from packing.model.node_spec import Gpu

RESOURCE = "nvidia.com/vgpu-number"
REGISTER, CONFIG = "nvidia.com/node-device-register", "nvidia.com/node-config-info"


def divided(node: Node) -> SharedGpus | None:
    """The node's GPUs if vgpu-manager divides them. Raises InventoryError."""
    text = node.annotations.get(REGISTER)
    gone = not whole(node.allocatable.get(RESOURCE, "0"))
    if not text or (gone and not advertises_nvidia(node)):
        return None
    try:
        entries = table(from_json(text), REGISTER)
        config = from_json(node.annotations.get(CONFIG) or "{}")
    except ValueError as error:
        raise InventoryError(f"{REGISTER} or {CONFIG} cannot be read: {error}") from error
    if gone and all(entry.get("mig") is True for entry in entries):
        return None  # all of them are the native plugin's
    factor = config.get("memoryFactor", 1) if isinstance(config, dict) else 1
    if factor not in (0, 1):
        raise InventoryError(f"{CONFIG}: a memory factor other than 1 is not supported")
    entries.sort(key=lambda entry: count(entry.get("id"), REGISTER))
    gpus = [
        Gpu(
            count(entry.get("memory"), REGISTER, GPU_MIB),
            entry.get("healthy") is True and entry.get("mig") is not True,
            count(entry.get("core"), REGISTER) * 10,
            count(entry.get("number"), REGISTER),
            name(entry.get("uuid", ""), REGISTER),
        )
        for entry in entries
    ]
    return SharedGpus(
        RESOURCE,
        REGISTER,
        unique(gpus, REGISTER),
        frozenset(product_label(name(entry.get("type", ""), REGISTER)) for entry in entries),
        closed=left_over(RESOURCE, REGISTER) if gone else "",
        sick=any(entry.get("healthy") is not True for entry in entries),
    )
