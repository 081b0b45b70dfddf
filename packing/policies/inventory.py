"""Inventory balancing by priced slots and fill: the default policy.

A placement costs, in GPUs,

    slots - FILL x fill + STRANDING x stranding,    rounded up to STEP, plus less than a STEP for what is free

- *slots*: what it takes from the number of requests of each type that the fleet could still host, each at
  the price of such a slot (``slots.py``). It keeps whole nodes, scarce models and CPU beside GPUs without a
  rule for each.
- *fill*: how much worse the rest of the GPU can be filled (``fill.py``).
- *stranding*: the rise of max(R - C / (e rho), 0), with R the node's free GPU, C its free CPU and rho the CPU
  per GPU that the mix asks for: free GPU that the node's CPU will not serve.

Rounding makes near-equal nodes equal. Of those the one with least free goes first: STEP x free / (1 + free),
with free = R + C / (e rho) before the placement. So load stays together without leaning on the order of the
nodes, which random ties and samples of the nodes take away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from packing.cost.cost_cache import CostCache, gpus_in
from packing.cost.demand import Demand, Mix
from packing.cost.fill_value import Part, fill_table, grid
from packing.cost.inventory_kernels import inventory_cost
from packing.cost.kernel_args import CachedCost, ValueTables, Weights, nodes_of
from packing.cost.slots import Sizes, Slots
from packing.fleet.arrays import Floats
from packing.fleet.fleet import Fleet
from packing.jit import checked
from packing.model.request import ANY, WHOLE, Request
from packing.policies.gpu_choice import tightest

FILL, STRANDING, STEP = 13.0, 1.1, 0.055
STRAND_MARGIN = 0.77
"""e above. All four found with ``slots.SCARCITY`` and ``slots.SIZE`` on the same six traces; the
optimum is flat: FILL 5 instead of 13 costs 0.1 points, no stranding 0.55, no rounding 0.1. Only cpu250 is
sharp: a STEP of 0.1 costs it 0.4, none 0.7. A bend instead of the corner in stranding costs cpu250 0.6."""

_NO_CPU_COUNTS = 1e9
"""CPU milli per GPU before any request for GPU is known: free CPU then counts as nothing."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The fill tables of a mix (K, B + 1, B + 1), one per size of GPU memory in ``memory_mib`` (K,)."""

    mix: Mix
    memory_mib: tuple[int, ...]
    fill: Floats


class Inventory:
    """See the module's docstring. Without a known ``mix`` it is learnt from ``observe``.

    What is left of a GPU below ``minimum_milli`` of compute or memory counts as waste.
    """

    name = "inventory"

    def __init__(
        self, mix: Mix | None = None, demand: Demand | None = None, *, minimum_milli: int = 0
    ) -> None:
        self._mix = mix
        self._demand = demand or Demand()
        self._minimum = minimum_milli
        self._kept = CostCache()
        self._tables = build_tables(Mix((), ()), (0,))
        self._sizes = Sizes()
        self._counted: _Counted | None = None

    def observe(self, request: Request) -> None:
        """Learn from an arrival."""
        self._demand.observe(request)

    def plan(self, fleet: Fleet) -> Callable[[], Tables]:
        """See ``Policy.plan``: the pattern LP of the mix as it is now."""
        mix = self._mix or self._demand.mix()
        sizes = _memory_sizes(fleet, mix)
        return lambda: build_tables(mix, sizes, self._minimum)

    def adopt(self, fleet: Fleet, tables: object) -> None:
        """Use new tables from now on: count the slots of their mix."""
        assert isinstance(tables, Tables)
        counted = _Counted(fleet, tables, self._sizes)  # where that fails the old ones stay in force
        self._tables, self._counted = tables, counted
        self._kept.forget()

    def refresh(self, fleet: Fleet) -> None:
        """Price the slots as the fleet is now. Prices move slowly: every few hundred placements is enough."""
        if self._counted is None or not self._counted.still_of(fleet):
            self.adopt(fleet, self._tables)
        else:
            self._counted.price(fleet)
            self._kept.forget()

    def cost(self, fleet: Fleet, request: Request) -> Floats:
        """See ``Policy.cost``."""
        return self._row(fleet, request).cost

    def choose(self, fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
        """The GPU whose share costs least; for several, or where GPUs are named, the tightest that fit."""
        if request.uuids is not ANY:
            return tightest(fleet, request, row)
        return gpus_in(int(self._row(fleet, request).gpus[row]))

    def terms(self, fleet: Fleet, request: Request, row: int) -> dict[str, float]:
        """See ``Policy.terms``."""
        slots, fill, stranding = self._row(fleet, request).terms[:, row].tolist()
        return {"slots": slots, "fill": fill, "stranding": stranding}

    def _row(self, fleet: Fleet, request: Request) -> CachedCost:
        """What the request costs, brought up to date where a node changed since it was asked last."""
        if (kept := self._kept.current(fleet, request)) is not None:
            return kept
        if self._counted is None or self._counted.layout != fleet.layout:
            self.refresh(fleet)
        cached, nodes, args = self._kept.outdated(fleet, request)
        counted = self._counted
        assert counted is not None
        slots = counted.slots
        slots.recount(nodes)
        inventory_cost(
            cached, nodes, args, slots.types, slots.counts, counted.values, counted.weights,
            slots.identical, slots.scratch,
        )  # fmt: skip
        return cached


class _Counted:
    """Tables against a fleet: its slots, their prices at this moment, and the weights of the terms."""

    def __init__(self, fleet: Fleet, tables: Tables, sizes: Sizes) -> None:
        self.layout, self._replaced = fleet.layout, fleet.replaced
        self._nodes = nodes_of(fleet)
        self.slots = slots = Slots(fleet, tables.mix, sizes)
        fill, memory_mib = tables.fill, np.array(tables.memory_mib, np.float32)
        prices = np.zeros_like(slots.counts.totals, np.float32)
        self.values = checked(ValueTables(prices, fill, memory_mib))
        rho = tables.mix.cpu_per_gpu(dict(zip(slots.requests, slots.gpus.tolist(), strict=True)))
        per_gpu = STRAND_MARGIN * rho if rho > 0 else _NO_CPU_COUNTS
        self.weights = checked(Weights(FILL, STRANDING if rho > 0 else 0.0, per_gpu, STEP))
        self.price(fleet)

    def still_of(self, fleet: Fleet) -> bool:
        """Whether the fleet has the same nodes as when this was made; what is free on them may differ."""
        return self.layout == fleet.layout and self._replaced == fleet.replaced

    def price(self, fleet: Fleet) -> None:
        """Price the slots as they are now."""
        self.slots.find_identical(self._nodes)
        self.slots.recount(self._nodes)
        self.values.prices[:] = self.slots.prices(fleet.arrays.free_gpu())


def build_tables(mix: Mix, memory_mib: tuple[int, ...], minimum_milli: int = 0) -> Tables:
    """Solve the pattern LP of a mix for every size of GPU memory. Pure, some milliseconds: for the
    background."""
    sized = [(r.shares, x) for r, x in zip(mix.requests, mix.frequency, strict=True) if r.shares]
    frequency = [x for _, x in sized]
    parts = [
        [
            Part(s.compute_milli, s.memory_milli + WHOLE * s.memory_mib / max(1, mib), s.count)
            for s, _ in sized
        ]
        for mib in memory_mib
    ]
    bins = grid([part for of_size in parts for part in of_size])
    return Tables(
        mix,
        memory_mib,
        np.stack([fill_table(sized_for, frequency, bins, minimum_milli) for sized_for in parts]),
    )


def _memory_sizes(fleet: Fleet, mix: Mix) -> tuple[int, ...]:
    """Sizes of GPU memory in the fleet, ascending; one for all if no request of the mix counts in MiB."""
    if not any(r.shares and r.shares.memory_mib for r in mix.requests):
        return (0,)
    return tuple(sorted({int(mib) for mib in fleet.arrays.memory_capacity[0] if mib > 0})) or (0,)
