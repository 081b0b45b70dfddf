"""GPUs as Volcano's vGPU device plugin registers them: the annotation ``volcano.sh/node-vgpu-register``.

Facts (volcano-sh/volcano at ed72c7c8, ``pkg/scheduler/api/devices/nvidia/vgpu``):
``uuid,count,MiB,type,health,mode`` per GPU, parted by ``:``; the node counts only if
``volcano.sh/vgpu-number`` is allocatable. GPUs in MIG mode are listed and take nothing here.
"""

from __future__ import annotations

from extender.inventory.division import Division, InventoryError, count, product_label, unique
from extender.objects import Node
from extender.quantity import whole
from packing.fleet import Gpu
from packing.request import WHOLE

RESOURCE = "volcano.sh/vgpu-number"
REGISTER = "volcano.sh/node-vgpu-register"


def divided(node: Node) -> Division | None:
    """The node's GPUs if Volcano divides them. Raises InventoryError."""
    text = node.annotations.get(REGISTER)
    if not text or not whole(node.allocatable.get(RESOURCE, "0")):
        return None
    entries = [part.split(",") for part in text.split(":") if part.strip()]
    if not all(len(entry) in (5, 6) for entry in entries):
        raise InventoryError(f"{REGISTER} cannot be read")
    gpus = unique([_gpu(entry) for entry in entries], REGISTER)
    return Division(RESOURCE, REGISTER, gpus, frozenset(product_label(entry[3]) for entry in entries))


def _gpu(entry: list[str]) -> Gpu:
    uuid, slots, memory, _, health, *mode = (field.strip() for field in entry)
    fit = health == "true" and mode in ([], [""], ["hami-core"])
    return Gpu(count(memory, REGISTER), fit, WHOLE, count(slots, REGISTER), uuid)
