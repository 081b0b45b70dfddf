"""GPUs of a Koordinator node: sums over its healthy GPUs in ``koordinator.sh/gpu-core`` and ``gpu-memory``.

Facts (koordinator-sh/koordinator at a7a1b76b): 100 of ``gpu-core`` and 100 of ``gpu.shared`` a GPU, memory in
bytes (``pkg/slo-controller/noderesource/plugins/gpudeviceresource/plugin.go``); the model is the label
``node.koordinator.sh/gpu-model``. The GPUs one by one, with minor number, UUID, health and resources, are in
the Device object of the node's name (``apis/scheduling/v1alpha1/device_types.go``); where that cannot be read
they count as equal, with minor numbers from 0. ``nvidia.com/gpu`` is a whole one of them. Where the Device
lists GPUs and the sums are not advertised, Koordinator's pods may hold parts of them all the same: they stay
in the books, and the node takes nothing new.
"""

from __future__ import annotations

from extender.inventory.shared_gpus import InventoryError, SharedGpus, advertises_nvidia, name, product_label
from extender.k8s.objects import Card, KoordinatorDevice, Node
from extender.k8s.quantity import mib, whole
from extender.untrusted.limits import DEVICES_PER_NODE, GPU_MIB, GPUS_PER_NODE
from packing.model.node_spec import Gpu
from packing.model.request import WHOLE

RESOURCE, WHOLE_GPU = "koordinator.sh/gpu", "nvidia.com/gpu"
DEVICE = "devices.scheduling.koordinator.sh"
CORE, MEMORY, MODEL = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory", "node.koordinator.sh/gpu-model"
_SHARES = 100


def divided(node: Node, cards: KoordinatorDevice | None = None) -> SharedGpus | None:
    """The node's GPUs if Koordinator divides them; ``cards`` is its Device. Raises InventoryError."""
    core = whole(node.allocatable.get(CORE, "0"))
    gone = not core
    if gone and not (cards and cards.gpus and advertises_nvidia(node)):
        return None
    memory, gpus = mib(node.allocatable.get(MEMORY, "0"), round_up=False), core // 100
    if not gone and (core % 100 or gpus > GPUS_PER_NODE or not gpus <= memory <= gpus * GPU_MIB):
        raise InventoryError(f"{CORE}: {core} with {memory} MiB ({MEMORY}) cannot be true")
    each = _by_minor(cards.gpus) if cards and cards.gpus else ()
    model = name(node.labels.get(MODEL, ""), MODEL)
    return SharedGpus(
        RESOURCE,
        DEVICE if each else CORE,
        each or (Gpu(memory // gpus, True, WHOLE, _SHARES),) * gpus,
        frozenset({product_label(model)} if model else ()),
        whole=WHOLE_GPU,
        replaces=frozenset({WHOLE_GPU}),
        closed=f"{DEVICE} lists GPUs, but {CORE} is not advertised" if gone else "",
        sick=cards is not None and not all(card.healthy for card in cards.gpus),
    )


def _by_minor(cards: tuple[Card, ...]) -> tuple[Gpu, ...]:
    """GPUs at the index of their minor number, which pods name them by. Raises InventoryError."""
    minors = {card.minor for card in cards}
    if len(minors) < len(cards) or not 0 <= min(minors) <= max(minors) < GPUS_PER_NODE:
        raise InventoryError(f"{DEVICE}: the minor numbers of the GPUs cannot be true")
    known = {card.minor: _gpu(card) for card in cards}
    return tuple(known.get(minor, _ABSENT) for minor in range(max(known) + 1))


def _gpu(card: Card) -> Gpu:
    has = dict(card.resources)
    memory, core = mib(has.get(MEMORY, "0"), round_up=False), whole(has.get(CORE, "0"))
    if memory > GPU_MIB or core > DEVICES_PER_NODE:
        raise InventoryError(f"{DEVICE}: {core} of {CORE} with {memory} MiB on one GPU cannot be true")
    return Gpu(memory, card.healthy and memory > 0, core * 10, _SHARES, name(card.uuid, DEVICE))


_ABSENT = Gpu(0)
"""In the place of a minor number that no GPU has: it takes nothing."""
