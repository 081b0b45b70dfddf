"""GPUs as Volcano's vGPU device plugin registers them: the annotation ``volcano.sh/node-vgpu-register``.

Facts (volcano-sh/volcano at ed72c7c8, ``pkg/scheduler/api/devices/nvidia/vgpu``):
``uuid,count,MiB,type,health,mode`` per GPU, parted by ``:``; the node counts only if
``volcano.sh/vgpu-number`` is allocatable. GPUs in MIG mode are listed and take nothing here.

Where that resource is gone, and NVIDIA's plugin advertises the same GPUs, Volcano's pods may still hold parts
of them: they stay in the books, and the node takes nothing new.
"""

from __future__ import annotations

from extender.inventory.shared_gpus import (
    InventoryError,
    SharedGpus,
    advertises_nvidia,
    count,
    left_over,
    name,
    product_label,
    rows,
    unique,
)
from extender.k8s.objects import Node
from extender.k8s.quantity import whole
from extender.untrusted.limits import GPU_MIB
from packing.model.node_spec import Gpu
from packing.model.request import WHOLE

RESOURCE = "volcano.sh/vgpu-number"
REGISTER = "volcano.sh/node-vgpu-register"


def divided(node: Node) -> SharedGpus | None:
    """The node's GPUs if Volcano divides them. Raises InventoryError."""
    text = node.annotations.get(REGISTER)
    gone = not whole(node.allocatable.get(RESOURCE, "0"))
    if not text or (gone and not advertises_nvidia(node)):
        return None
    entries = rows(text, REGISTER)
    if not all(len(entry) in (5, 6) for entry in entries):
        raise InventoryError(f"{REGISTER} cannot be read")
    return SharedGpus(
        RESOURCE,
        REGISTER,
        unique([_gpu(entry) for entry in entries], REGISTER),
        frozenset(product_label(name(entry[3], REGISTER)) for entry in entries),
        closed=left_over(RESOURCE, REGISTER) if gone else "",
        sick=any(entry[4].strip() != "true" for entry in entries),
    )


def _gpu(entry: list[str]) -> Gpu:
    uuid, slots, memory, _, health, *mode = (field.strip() for field in entry)
    fit = health == "true" and mode in ([], [""], ["hami-core"])
    return Gpu(count(memory, REGISTER, GPU_MIB), fit, WHOLE, count(slots, REGISTER), name(uuid, REGISTER))
