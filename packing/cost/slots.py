"""The number of further requests of each type that the nodes can accept (slots), and the price of one slot.

cap_t(n) is the number of requests of type t that node n can still accept: limited by its GPUs (for single
shares the sum over GPUs of floor(free / share), for k GPUs floor(fitting GPUs / k)), by counted devices, and
by CPU and memory. The last two are not rounded down, so that a node short of CPU loses with every core; but
where they are insufficient for one request there is no slot (half a slot on each of many nodes would hide
that few nodes can accept the request). A partly free slot has a small weight (``slot_kernels.LEAVING``),
because some of the pods on its GPUs will end. Cap_t is the sum over nodes.

With x_t the frequency of type t and g_t its size in GPUs, the price of a slot is

    q_t = x_t g_t^(1 + r) / (g_t max(Cap_t, FEWEST))^a,     scaled so that sum_t q_t Cap_t is the free GPU,

where g_t Cap_t is the GPU that the slots of the type would fill. A placement costs sum_t q_t (cap_t before -
cap_t after), in GPUs. Prices of this form balance an inventory (Golrezaei, Nazerzadeh and Rusmevichientong,
"Real-Time Optimization of Personalized Assortments", 2014). The last slots of a type cost the most, and
splitting a type into two equal ones does not change its cost.

r is the turnover: the fraction of all arrived GPU demand that has ended. A cluster that only fills up (r = 0)
uses a slot once: of two types whose slots would fill the same amount of GPU, those of the more frequent one
are worth more in total, whatever the sizes. In a cluster with high turnover (r near 1), a missing slot is
missing for every job that arrives, and each loses its GPUs: the worth is proportional to x_t g_t. Prices with
r = 0 place 1.5 points fewer GPU-hours on HAMi shares, 1.0 fewer where teams own nodes, and 1.1 more on racks
of NVL72 (four worlds of each of bench/packing/worlds.py).
"""

from __future__ import annotations

import numpy as np

from packing.cost.demand import Mix
from packing.cost.kernel_args import LANES, Nodes, SlotCounts, mix_types, scratch_for
from packing.cost.slot_count_kernels import count_slots
from packing.fleet.arrays import Floats
from packing.fleet.feasibility import gives_separate, gpu_sizes
from packing.fleet.fleet import Fleet
from packing.jit import checked
from packing.model.request import Request

SCARCITY = 1.9
"""a: how fast the price rises when few slots are left. Found by search on six of the 17 openb traces
(default, gpushare60, cpu250, gpuspec33, multigpu40, gpushare100) with separate seeds. Higher values lose
points on gpuspec33: 2.2 loses 0.2, 2.5 loses 0.6, and 3 loses 1.0."""
FEWEST = 0.3
"""Number of slots below which the price rises no further: where there is none, a slot that is nearly free
costs the most."""


_MOST_SIZES = 2_048


class Slots:
    """Slots per node and type, recounted on nodes that changed.

    Types without GPUs are left out; the arrays are padded to a multiple of ``LANES`` types with types that
    have neither slots nor a price.
    """

    def __init__(self, fleet: Fleet, mix: Mix, sizes: Sizes | None = None) -> None:
        types = [(r, x) for r, x in zip(mix.requests, mix.frequency, strict=True) if r.wants_gpu]
        self.requests = tuple(request for request, _ in types)
        self.frequency = np.array([x for _, x in types])
        size_of = (sizes or Sizes()).of
        self.gpus = np.array([size_of(fleet, request) for request in self.requests])
        nodes, width = fleet.arrays.capacity, -(-len(types) // LANES) * LANES
        self.types = mix_types(fleet, self.requests, width)
        units, slots = np.zeros((2, nodes, width), np.float32)
        self.counts = checked(SlotCounts(np.full(nodes, -1, np.int64), units, slots, np.zeros(width)))
        self.scratch = scratch_for(fleet, width)

    def recount(self, nodes: Nodes) -> None:
        """Recount on nodes whose generation changed."""
        count_slots(nodes, self.types, self.counts, self.scratch)

    def prices(self, free_gpu: float, turnover: float = 0.0) -> Floats:
        """q (T',) in GPUs per slot; ``free_gpu`` is the total free GPU of the fleet."""
        totals = self.counts.totals[: len(self.requests)]
        sized = np.where(self.gpus > 0, self.gpus, 1.0)
        filled = sized * np.maximum(totals, FEWEST)
        raw = np.where(self.gpus > 0, self.frequency * sized ** (1 + turnover) / filled**SCARCITY, 0.0)
        value = float(raw @ totals)
        prices = np.zeros_like(self.counts.totals, np.float32)
        prices[: raw.size] = raw * (free_gpu / value if value > 0 else 0.0)
        return prices


class Sizes:
    """Sizes of requests in GPUs, each computed once for the present nodes of the fleet."""

    def __init__(self) -> None:
        self._nodes: tuple[tuple[int, int, int], int] | None = None
        self._known: dict[tuple[object, ...], float] = {}

    def of(self, fleet: Fleet, request: Request) -> float:
        """The mean over the nodes whose GPUs could hold the request; 0 if there are none."""
        nodes = fleet.layout, fleet.replaced
        if nodes != self._nodes or len(self._known) >= _MOST_SIZES:
            self._nodes = nodes
            self._known.clear()
        kind = (
            *(request.devices, request.shares, request.models, request.products, request.node_set),
            *(request.together > 1, request.separate),
        )
        if kind not in self._known:
            sizes = gpu_sizes(fleet, request)
            able = (fleet.arrays.compute_capacity[0] > 0) & (sizes > 0) & gives_separate(fleet, request)
            able &= fleet.names.allowed(request)[fleet.arrays.model] > 0
            self._known[kind] = float(sizes[able].mean()) if able.any() else 0.0
        return self._known[kind]
