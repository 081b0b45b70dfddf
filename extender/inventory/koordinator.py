"""GPUs of a Koordinator node: sums over its healthy GPUs in ``koordinator.sh/gpu-core`` and ``gpu-memory``.

Facts (koordinator-sh/koordinator at a7a1b76b): 100 of ``gpu-core`` and 100 of ``gpu.shared`` a GPU, memory in
bytes (``pkg/slo-controller/noderesource/plugins/gpudeviceresource/plugin.go``); the model is the label
``node.koordinator.sh/gpu-model``. The GPUs one by one, with minor number, UUID, health and resources, are in
the Device object of the node's name (``apis/scheduling/v1alpha1/device_types.go``); where that cannot be read
they count as equal, with minor numbers from 0. ``nvidia.com/gpu`` is a whole one of them.
"""

from __future__ import annotations

from extender.inventory.division import Division, InventoryError, product_label
from extender.objects import Card, Cards, Node
from extender.quantity import mib, whole
from packing.fleet import Gpu
from packing.request import WHOLE

RESOURCE, WHOLE_GPU = "koordinator.sh/gpu", "nvidia.com/gpu"
DEVICE = "devices.scheduling.koordinator.sh"
CORE, MEMORY, MODEL = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory", "node.koordinator.sh/gpu-model"
_SHARES, _MOST_GPUS = 100, 64


def divided(node: Node, cards: Cards | None = None) -> Division | None:
    """The node's GPUs if Koordinator divides them; ``cards`` is its Device. Raises InventoryError."""
    core = whole(node.allocatable.get(CORE, "0"))
    if not core:
        return None
    memory, gpus = mib(node.allocatable.get(MEMORY, "0"), round_up=False), core // 100
    if core % 100 or gpus > _MOST_GPUS or memory < gpus:
        raise InventoryError(f"{CORE}: {core} with {memory} MiB ({MEMORY}) cannot be true")
    each = _by_minor(cards.gpus) if cards and cards.gpus else ()
    model = node.labels.get(MODEL, "")
    return Division(
        RESOURCE,
        DEVICE if each else CORE,
        each or (Gpu(memory // gpus, True, WHOLE, _SHARES),) * gpus,
        frozenset({product_label(model)} if model else ()),
        whole=WHOLE_GPU,
        replaces=frozenset({WHOLE_GPU}),
    )


def _by_minor(cards: tuple[Card, ...]) -> tuple[Gpu, ...]:
    """GPUs at the index of their minor number, which pods name them by. Raises InventoryError."""
    known = {card.minor: _gpu(card) for card in cards}
    if len(known) < len(cards) or not 0 <= min(known) <= max(known) < _MOST_GPUS:
        raise InventoryError(f"{DEVICE}: the minor numbers of the GPUs cannot be true")
    return tuple(known.get(minor, _ABSENT) for minor in range(max(known) + 1))


def _gpu(card: Card) -> Gpu:
    has = dict(card.resources)
    memory = mib(has.get(MEMORY, "0"), round_up=False)
    return Gpu(memory, card.healthy and memory > 0, whole(has.get(CORE, "0")) * 10, _SHARES, card.uuid)


_ABSENT = Gpu(0)
"""In the place of a minor number that no GPU has: it takes nothing."""
