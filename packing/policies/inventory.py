"""The default policy: it keeps the inventory of slots balanced, at the prices of slots and fill.

A placement costs, in GPUs,

    slots - F x fill + S x stranding + islands + device,

rounded up to STEP, plus less than a STEP for what is free. The weights F and S are 8 and 1.1, unless the mix
packs clearly better with others in simulation (``packing.policies.trial``).

- *slots*: a slot is room for one more request of a type; the placement pays the price of every slot that it
  takes from the fleet (``packing.cost.slots``). This keeps whole nodes, scarce models and CPU beside GPUs.
- *fill*: how much less the rest of the GPU can be filled (``packing.cost.fill_tables``).
- *stranding*: the rise of max(R - C / (e rho), 0), with R the node's free GPU, C its free CPU and rho the CPU
  per GPU that the mix asks for: free GPU for which the node has no CPU left.
- *islands*: on nodes whose NVLink islands are known, APART x GPUs less if several GPUs of a pod are peers and
  more if they are not; and PEERS x (the slots for several GPUs that the islands lose, less those that the
  node loses): a slot for k GPUs is worth more where they are peers.
- *device*: how much more of a GPU, and how much more valuable a GPU, the request gets here than elsewhere
  (``packing.cost.device_costs``). So a replica goes before a whole GPU, and a T4 before an H100.

Where nodes are in domains of the network, one costs STEP x (the part of its domain that is idle) more, so
that whole domains stay free for gangs (``packing.cost.domains``).

Rounding makes nearly equal nodes equal. Among them the node with the least free comes first: it costs STEP x
free / (1 + free) more, with free = R + C / (e rho) before the placement. So pods stay together whatever the
order of the nodes, also with random ties and with samples of the nodes. Where NVLink islands are known, half
of this is the size of the island that is split: large ones stay whole even if no job has needed them yet.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from packing.cost.cost_cache import CostCache, gpus_in
from packing.cost.demand import Demand, Mix
from packing.cost.domains import idle_parts
from packing.cost.fill_tables import NO_GPUS, FreeGpus, Tables, build_tables
from packing.cost.inventory_kernels import inventory_cost
from packing.cost.kernel_args import STEP, CachedCost, ValueTables, nodes_of
from packing.cost.slots import Sizes, Slots
from packing.fleet.arrays import Floats
from packing.fleet.fleet import Fleet
from packing.fleet.placement import tightest
from packing.jit import checked
from packing.model.request import Request
from packing.policies.interface import Due, Pause, Solve, no_pause
from packing.policies.trial import FIRST, Sample, TermWeights, best_weights

STRAND_MARGIN = 0.77
"""e above. Found together with ``slots.SCARCITY`` and the weights, on the same six traces. The optimum is
flat: a weight of fill of 5 or 13 instead of 8 costs 0.1 points, no stranding 0.55. A smooth curve instead of
max() in stranding costs cpu250 0.6."""

MOVED = 0.1
"""Part of the GPUs that have got into another state since the fill tables were computed for the fleet as it
is; with more they are computed again."""
_NO_CPU_COUNTS = 1e9
"""CPU milli per GPU before any request for GPU is known: free CPU then counts (nearly) nothing."""


_PODS_BETWEEN_TRIALS = 8_000
"""New pods after which the weights are tried again. Before that: when the learnt pods have doubled."""
FEWEST_PODS = 32
"""Before so many pods nothing is tried again, because the mix says little; and so many leave a fleet in which
pods leave."""


class Plan(NamedTuple):
    """What the policy computes from a mix."""

    tables: Tables
    weights: TermWeights


class InventoryPolicy:
    """The policy of the module's docstring. If no ``mix`` is given, ``demand`` learns it. A remainder of a
    GPU below ``minimum_milli`` of compute or memory counts as waste. With a ``plan`` it computes no other.
    ``tries_weights``: whether it tries others than the usual ones on the mix.
    The attribute ``plan`` is the one in force."""

    name = "inventory"

    def __init__(
        self,
        mix: Mix | None = None,
        demand: Demand | None = None,
        *,
        minimum_milli: int = 0,
        plan: Plan | None = None,
        tries_weights: bool = True,
    ) -> None:
        self._tries_weights = tries_weights
        self._mix, self._demand, self._minimum = mix, demand or Demand(), minimum_milli
        self._fixed = plan is not None
        self.plan = plan or Plan(build_tables(Mix((), ()), NO_GPUS), FIRST)
        self._tried = 0  # pods that were learnt when the weights were tried
        self._pods_leave = False
        self._cache, self._sizes = CostCache(), Sizes()
        self._priced: _PricedSlots | None = None

    def observe(self, request: Request) -> None:
        self._demand.observe(request)

    def update(self, fleet: Fleet, due: Due, pause: Pause = no_pause) -> Solve | None:
        if due is Due.PRICES:
            self._price(fleet)
        solve = self._solve(fleet, due, pause)
        return (lambda: partial(self._adopt, fleet, solve())) if solve else None

    def _solve(self, fleet: Fleet, due: Due, pause: Pause) -> Callable[[], Plan] | None:
        """A function that computes another plan; None if this one is still good. It uses no shared state."""
        (tables, weights), gpus, minimum = self.plan, FreeGpus.of(fleet), self._minimum
        new_tables = due is Due.TABLES
        if new_tables and self._fixed:
            return lambda: Plan(tables, weights)
        mix = self._known_mix(fleet) if new_tables else tables.mix
        begins = self._leaving_begins(fleet)
        trial_due = (new_tables and self._trial_is_due()) or begins
        trial_due &= self._tries_weights
        tried = self._trial(fleet, mix, pause) if trial_due else lambda: weights
        if new_tables:
            return lambda: Plan(build_tables(mix, gpus, minimum), tried())
        fill_counts = weights.fill or not self._fixed  # other weights may come, and count it
        if fill_counts and tables.moved(gpus) > MOVED:
            return lambda: Plan(tables.restocked(gpus), tried())
        return (lambda: Plan(tables, tried())) if trial_due else None

    def _price(self, fleet: Fleet) -> None:
        """Make the prices those of the fleet as it is now."""
        if self._priced is not None and self._priced.has_nodes_of(fleet):
            self._priced.price(fleet)
            self._cache.forget()
        elif self._priced is not None or self._fixed:
            self._adopt(fleet, self.plan)
        else:  # requests come before the first plan, whose trial takes a second
            tables = build_tables(self._known_mix(fleet), FreeGpus.of(fleet), self._minimum)
            self._adopt(fleet, Plan(tables, self.plan.weights))

    def _adopt(self, fleet: Fleet, new: Plan) -> None:
        tables, weights = self.plan
        same = self._priced is not None and self._priced.has_nodes_of(fleet) and new.weights == weights
        if self._priced is not None and same and new.tables.restocks(tables):
            self._priced.use_fill(new.tables.fill)
        else:
            self._priced = _PricedSlots(fleet, new, self._sizes)  # if this raises, the old plan stays
        self.plan = new
        self._cache.forget()

    def _known_mix(self, fleet: Fleet) -> Mix:
        return self._mix or self._demand.mix(known_set=fleet.names.known_set)

    def _leaving_begins(self, fleet: Fleet) -> bool:
        """Whether enough pods have left by now, for the first time; never with a given plan."""
        begins = not self._fixed and not self._pods_leave and fleet.left >= FEWEST_PODS
        self._pods_leave |= begins
        return begins

    def _trial_is_due(self) -> bool:
        """Whether the mix is known, or so many pods are new that the learnt mix may be another."""
        learnt = self._demand.seen
        enough = min(max(self._tried, FEWEST_PODS), _PODS_BETWEEN_TRIALS)
        due = self._mix is not None or learnt >= self._tried + enough
        if due:
            self._tried = learnt
        return due

    def _trial(self, fleet: Fleet, mix: Mix, pause: Pause) -> Callable[[], TermWeights]:
        """A function that finds the weights that suit the mix, by trial. It uses no shared state."""
        sample, minimum, pods_leave = Sample.of(fleet), self._minimum, self._pods_leave

        def tried() -> TermWeights:
            tables = build_tables(mix, FreeGpus.of(sample.fleet()), minimum)

            def policy_with(weights: TermWeights) -> InventoryPolicy:
                return InventoryPolicy(mix, minimum_milli=minimum, plan=Plan(tables, weights))

            return best_weights(sample, mix, policy_with, pause, pods_leave=pods_leave)

        return tried

    def cost(self, fleet: Fleet, request: Request) -> Floats:
        cost, idle = self._costs(fleet, request).cost, idle_parts(fleet)
        return cost if idle is None else cost + STEP * idle

    def choose(self, fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
        """The GPU whose share costs least; for several GPUs, or if not every GPU is allowed, the tightest."""
        if request.chooses_gpus or row in fleet.choosy_rows:
            return tightest(fleet, request, row)
        return gpus_in(int(self._costs(fleet, request).gpus[row]))

    def terms(self, fleet: Fleet, request: Request, row: int) -> dict[str, float]:
        values = self._costs(fleet, request).terms[:, row].tolist()
        terms = dict(zip(("slots", "fill", "stranding", "islands", "device"), values, strict=True))
        idle = idle_parts(fleet)
        return terms if idle is None else {**terms, "domains": STEP * float(idle[row])}

    def _costs(self, fleet: Fleet, request: Request) -> CachedCost:
        """The request's costs, computed again for the nodes that changed since its last call."""
        if (cached := self._cache.current(fleet, request)) is not None:
            return cached
        if self._priced is None or self._priced.layout != fleet.layout:
            self._price(fleet)
        cached, nodes, args = self._cache.outdated(fleet, request)
        priced = self._priced
        assert priced is not None
        slots = priced.slots
        slots.recount(nodes)
        inventory_cost(cached, nodes, args, slots.types, slots.counts, priced.values, slots.scratch)
        return cached


class _PricedSlots:
    """The slots of one fleet for a plan, their prices, and the weights of the terms."""

    def __init__(self, fleet: Fleet, plan: Plan, sizes: Sizes) -> None:
        tables, weights = plan
        self.layout, self._replaced = fleet.layout, fleet.replaced
        self._nodes = nodes_of(fleet)
        self._size = weights.size
        self.slots = slots = Slots(fleet, tables.slotted, sizes)
        prices = np.zeros_like(slots.counts.totals, np.float32)
        memory_mib = np.array(tables.memory_mib, np.float32)
        rho = tables.mix.cpu_per_gpu(dict(zip(slots.requests, slots.gpus.tolist(), strict=True)))
        per_gpu = STRAND_MARGIN * rho if rho > 0 else _NO_CPU_COUNTS
        stranding = weights.stranding if rho > 0 else 0.0
        self.values = checked(ValueTables(prices, tables.fill, memory_mib, weights.fill, stranding, per_gpu))
        self.price(fleet)

    def has_nodes_of(self, fleet: Fleet) -> bool:
        """Whether the fleet still has the nodes that this was made for; what is free on them may differ."""
        return self.layout == fleet.layout and self._replaced == fleet.replaced

    def use_fill(self, fill: Floats) -> None:
        """Replace the fill tables by others of the same mix."""
        self.values = checked(self.values._replace(fill=fill))

    def price(self, fleet: Fleet) -> None:
        """Count the slots again and price them."""
        self.slots.recount(self._nodes)
        self.values.prices[:] = self.slots.prices(fleet.arrays.free_gpu(), size=self._size)
