"""GPUs of a Koordinator node: sums over its healthy GPUs in ``koordinator.sh/gpu-core`` and ``gpu-memory``.

Facts (koordinator-sh/koordinator at a7a1b76b): 100 of ``gpu-core`` and 100 of ``gpu.shared`` a GPU, memory in
bytes (``pkg/slo-controller/noderesource/plugins/gpudeviceresource/plugin.go``); the model is the label
``node.koordinator.sh/gpu-model``. The GPUs one by one are in a Device object, which is not read here: they
count as equal, with minor numbers from 0. ``nvidia.com/gpu`` is a whole one of them.
"""

from __future__ import annotations

from extender.inventory.division import Division, InventoryError, product_label
from extender.objects import Node
from extender.quantity import mib, whole
from packing.fleet import Gpu
from packing.request import WHOLE

RESOURCE, WHOLE_GPU = "koordinator.sh/gpu", "nvidia.com/gpu"
CORE, MEMORY, MODEL = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory", "node.koordinator.sh/gpu-model"
_SHARES = 100


def divided(node: Node) -> Division | None:
    """The node's GPUs if Koordinator divides them. Raises InventoryError."""
    core = whole(node.allocatable.get(CORE, "0"))
    if not core:
        return None
    memory, gpus = mib(node.allocatable.get(MEMORY, "0"), round_up=False), core // 100
    if core % 100 or gpus > 64 or memory < gpus:
        raise InventoryError(f"{CORE}: {core} with {memory} MiB ({MEMORY}) cannot be true")
    model = node.labels.get(MODEL, "")
    return Division(
        RESOURCE,
        CORE,
        (Gpu(memory // gpus, True, WHOLE, _SHARES),) * gpus,
        frozenset({product_label(model)} if model else ()),
        whole=WHOLE_GPU,
        replaces=frozenset({WHOLE_GPU}),
    )
