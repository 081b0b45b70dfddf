"""GPUs as Volcano's vGPU device plugin registers them: the annotation ``volcano.sh/node-vgpu-register``.

Facts (volcano-sh/volcano at ed72c7c8, ``pkg/scheduler/api/devices/nvidia/vgpu``):
``uuid,count,MiB,type,health,mode`` per GPU, separated by ``:``. The node counts only if
``volcano.sh/vgpu-number`` is allocatable. GPUs in MIG mode are listed and take no pods here.

If that resource is gone and NVIDIA's plugin advertises the same GPUs, Volcano's pods may still hold parts of
them. So the GPUs stay accounted for, and the node takes no new pods.
"""

from __future__ import annotations

from extender.inventory.shared_gpus import InventoryError, Parser, SharedGpus, advertises_nvidia
from extender.k8s.objects import Node
from extender.k8s.quantity import whole
from extender.untrusted.limits import GPU_MIB
from packing.model.node_spec import Gpu
from packing.model.request import WHOLE

RESOURCE = "volcano.sh/vgpu-number"
REGISTER = "volcano.sh/node-vgpu-register"
_PARSER = Parser(REGISTER)


def shared_gpus(node: Node) -> SharedGpus | None:
    """The node's GPUs if Volcano shares them. Raises InventoryError."""
    text = node.annotations.get(REGISTER)
    leftover = not whole(node.allocatable.get(RESOURCE, "0"))
    if not text or (leftover and not advertises_nvidia(node)):
        return None
    entries = _PARSER.rows(text)
    if not all(len(entry) in (5, 6) for entry in entries):
        raise InventoryError(f"{REGISTER} cannot be read")
    return SharedGpus(
        RESOURCE,
        REGISTER,
        _PARSER.with_products(_PARSER.checked(map(_gpu, entries)), (entry[3] for entry in entries)),
        _PARSER.products(entry[3] for entry in entries),
        problem=_PARSER.leftover_problem(RESOURCE) if leftover else "",
        lists_unhealthy_gpus=any(entry[4].strip() != "true" for entry in entries),
    )


def _gpu(entry: list[str]) -> Gpu:
    uuid, slots, memory, _, health, *mode = (field.strip() for field in entry)
    divisible = health == "true" and mode in ([], [""], ["hami-core"])
    memory_mib, shares = _PARSER.number(memory, GPU_MIB), _PARSER.number(slots)
    return Gpu(memory_mib, divisible, WHOLE, shares, _PARSER.text(uuid))
