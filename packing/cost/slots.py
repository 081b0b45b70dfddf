"""How many more of each request type the nodes could host, and what giving up one such slot costs.

cap_t(n) is the number of requests of type t that node n could still take: by its GPUs (for single shares the
sum over GPUs of floor(free / share), for k GPUs floor(GPUs with room / k)), by counted devices, and by CPU
and memory. These are not rounded, so that a node short of CPU loses by every core; but a node where they do
not suffice for one has none (half a slot on each of many would hide that few nodes can take the request).
Cap_t is the sum over nodes.

With x_t the frequency of type t and g_t its size in GPUs, sum_t x_t g_t log Cap_t is a concave measure of how
balanced the inventory is: its gradient prices the last slots of a type highest (a = b = 1 below; the idea of
inventory balancing in online resource allocation, Golrezaei, Nazerzadeh and Rusmevichientong, 2014). The
general form is

    q_t = x_t g_t^b / max(Cap_t, 1)^a,     scaled so that sum_t q_t Cap_t is the free GPU,

and a placement costs sum_t q_t (cap_t before - cap_t after), in GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packing.cost import inventory_kernels as row_kernels
from packing.cost import kernel_args as records
from packing.cost.demand import Mix
from packing.cost.kernel_args import (
    LANES,
    STATES,
    IdenticalNodes,
    Inventory,
    MixTypes,
    Nodes,
    Scratch,
    amounts_of,
    devices_of,
    layout_of,
)
from packing.fleet.fleet import Fleet, Floats
from packing.model.request import Request

SCARCITY = 1.9
"""a: how fast the price rises as slots get few."""
SIZE = -1.3
"""b: below 0, a slot of a small request costs more per GPU: it is small ones that fill gaps.

Both found by search on six of the 17 openb traces (default, gpushare60, cpu250, gpuspec33, multigpu40,
gpushare100) with seeds of their own; a = b = 1, which needs no search, is 0.7 points worse on average, a =
1.5 and b = -1 0.1."""


_TINY = 1e-3
_MOST_SIZES = 2_048


class Slots:
    """Slots per node and type, recounted where a node changed.

    ``inventory.slots`` (N, T') is cap, ``inventory.totals`` (T',) its sum over the nodes, with T' the number
    of types filled up to a multiple of ``records.LANES`` by types without slots or price; ``counted`` (N,) is
    the generation at which a node was counted.
    """

    def __init__(self, fleet: Fleet, mix: Mix, sizes: Sizes | None = None) -> None:
        kinds = [(r, x) for r, x in zip(mix.requests, mix.frequency, strict=True) if r.wants_gpu]
        self.requests = tuple(request for request, _ in kinds)
        self.frequency = np.array([x for _, x in kinds])
        size_of = (sizes or Sizes()).of
        self.gpus = np.array([size_of(fleet, request) for request in self.requests])
        width = -(-len(kinds) // LANES) * LANES
        self.types = _filled_up(types_of(fleet, self.requests), width)
        self.inventory = Inventory(
            np.zeros((fleet.capacity, width), np.float32),
            np.zeros((fleet.capacity, width), np.float32),
            np.zeros(width),
        )
        self.scratch = Scratch(
            np.zeros(width, np.float32),
            np.zeros(width, np.float32),
            np.zeros(width, np.float32),
            np.zeros((5, len(fleet.compute)), np.float32),
            np.zeros(len(fleet.free), np.int32),
            np.full((STATES, 5), -1, np.float32),
            np.zeros((STATES, width), np.float32),
        )
        self.twins = IdenticalNodes(np.arange(fleet.capacity), np.full(fleet.capacity, -1, np.int64))
        self.counted = np.full(fleet.capacity, -1, np.int64)

    def find_twins(self, nodes: Nodes) -> None:
        """Find nodes in the same state: whatever is asked of all nodes is then asked of one of them only."""
        table = np.empty(2 << self.counted.size.bit_length(), np.int64)
        row_kernels.find_twins(table, *self.twins, *nodes)

    def recount(self, nodes: Nodes) -> None:
        """Count again where a node's generation moved on."""
        row_kernels.count_slots(
            self.counted, *nodes, *self.types, *self.inventory, *self.twins, *self.scratch
        )

    def prices(self, free_gpu: float, scarcity: float = SCARCITY, size: float = SIZE) -> Floats:
        """q (T',) in GPUs per slot; ``free_gpu`` is the free GPU of the fleet."""
        totals = self.inventory.totals[: len(self.requests)]
        sized = np.where(self.gpus > 0, self.gpus, 1.0)
        raw = np.where(self.gpus > 0, self.frequency * sized**size / np.maximum(totals, 1.0) ** scarcity, 0.0)
        value = float(raw @ totals)
        prices = np.zeros_like(self.inventory.totals, np.float32)
        prices[: raw.size] = raw * (free_gpu / value if value > 0 else 0.0)
        return prices


class Sizes:
    """Sizes of requests in GPUs, each worked out once for the nodes that a fleet has."""

    def __init__(self) -> None:
        self._nodes: tuple[tuple[int, int], int] | None = None
        self._known: dict[tuple[object, ...], float] = {}

    def of(self, fleet: Fleet, request: Request) -> float:
        """The mean over the nodes whose GPUs could take the request; 0 if none could."""
        nodes = layout_of(fleet), fleet.replaced
        if nodes != self._nodes or len(self._known) >= _MOST_SIZES:
            self._nodes = nodes
            self._known.clear()
        kind = request.devices, request.shares, request.models, request.products
        if kind not in self._known:
            self._known[kind] = _mean_gpu(fleet, request)
        return self._known[kind]


def _mean_gpu(fleet: Fleet, request: Request) -> float:
    sizes = fleet.sizes(request)
    able = (fleet.compute_capacity[0] > 0) & (fleet.allowed(request)[fleet.model] > 0) & (sizes > 0)
    return float(sizes[able].mean()) if able.any() else 0.0


def types_of(fleet: Fleet, requests: Sequence[Request]) -> MixTypes:
    """The request types of a mix against the models, resources and sharing systems of a fleet."""
    amounts = amounts_of(fleet, requests)
    shape = len(fleet.model_names), len(fleet.free)
    allowed = np.zeros((shape[0], len(requests)), np.float32)
    devices = np.zeros((shape[1], len(requests)), np.float32)
    for t, request in enumerate(requests):
        devices[:, t], known = devices_of(fleet, request)
        allowed[:, t] = fleet.allowed(request) if known else 0
    divisors = [records.CPU, records.MEMORY, records.COMPUTE]
    amounts[divisors] = np.maximum(amounts[divisors], _TINY)
    amounts[records.COUNT] = np.maximum(amounts[records.COUNT], 1)
    asked = np.flatnonzero(devices.any(axis=1)).astype(np.int32)
    return MixTypes(amounts, devices, allowed, asked)


def _filled_up(types: MixTypes, width: int) -> MixTypes:
    """The same with further types, which no model is allowed to take."""
    more = [(0, 0), (0, width - types.amounts.shape[1])]
    amounts, devices = (np.pad(part, more, constant_values=1) for part in types[:2])
    return MixTypes(amounts, devices, np.pad(types.allowed, more), types.asked)
