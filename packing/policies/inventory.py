"""The default policy: it keeps the inventory of slots balanced through the prices of slots and fill.

A placement costs, in GPUs,

    slots - F x fill + S x stranding + islands + device,

rounded up to STEP, plus a fraction of STEP for the free amount.

- *slots*: a slot is room for one more request of a type; the placement pays the price of every slot that it
  takes from the fleet (``packing.cost.slots``). This preserves whole nodes, scarce models and CPU for GPUs.
- *fill*: the change in the value of the GPU's free part (``packing.cost.fill_tables``).
- *stranding*: the increase of max(R - C / (e rho), 0), with R the node's free GPU, C its free CPU and rho the
  CPU per GPU in the mix: free GPU for which the node has no CPU left.
- *islands*: on nodes whose NVLink islands are known, APART x GPUs less if several GPUs of a pod are peers and
  more if they are not; and PEERS x (the slots for several GPUs that the islands lose, minus those that the
  node loses): a slot for k GPUs is worth more where they are peers.
- *device*: how much larger and more valuable the allocated device is than the cheapest one elsewhere
  (``packing.cost.device_costs``). So a replica is preferred to a whole GPU, and a T4 to an H100.

If nodes are in network domains, a node costs an additional STEP x (the idle fraction of its domain), so that
whole domains stay free for gangs.

Rounding makes nearly equal nodes equal. Among them the node with the least free is preferred: each costs an
additional STEP x free / (1 + free), with free = R + C / (e rho) before the placement. So pods stay together
regardless of the order of the nodes, also with random ties and samples of the nodes. Where NVLink islands are
known, half of this is the size of the island that is split: large ones stay whole even if no job has needed
them yet.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from packing.cost.demand import Demand, Mix
from packing.cost.device_costs import device_costs, size_weight
from packing.cost.fill_tables import NO_GPUS, FreeGpus, Tables, build_tables
from packing.cost.inventory_kernels import inventory_cost
from packing.cost.kernel_args import STEP, CachedCost, Nodes, RequestArgs, ValueTables, nodes_of, request_args
from packing.cost.slots import Sizes, Slots
from packing.fleet.arrays import Floats
from packing.fleet.fleet import Fleet
from packing.fleet.permitted import permitted_on
from packing.fleet.placement import tightest
from packing.fleet.stranded import idle_nodes
from packing.jit import checked
from packing.model.request import Request
from packing.policies.interface import Due, Solve

_MOST_CELLS = 2_000_000
"""Maximum of requests x nodes in the cache, about 60 MB."""
_MOST_REQUESTS = 1_000
"""Maximum number of cached requests on a small fleet, because each may contain many names."""


class CostCache:
    """The costs of the last few hundred distinct requests on one fleet, each with the value of
    ``Fleet.replaced`` and the weight of sizes for which its ``device`` was computed (``device_costs``).

    Requests repeat and a placement changes one node, so most of the costs computed for one pod are still
    valid for the next pod with the same request.
    """

    def __init__(self) -> None:
        self._costs: dict[Request, tuple[CachedCost, RequestArgs, tuple[int, float] | None]] = {}
        self._size_weight = size_weight(0)
        self._layout = 0, 0, 0
        self._nodes: Nodes | None = None
        self._last: tuple[Request | None, int, CachedCost | None] = None, -1, None

    def current(self, fleet: Fleet, request: Request) -> CachedCost | None:
        """The cost that ``outdated`` returned last if it is of the same request object and no node has
        changed since, else None. Choosing a node and listing the terms of a cost follow its computation; this
        saves 5 % of ``filter``."""
        last, changes, cached = self._last
        return cached if last is request and changes == fleet.changes else None

    def outdated(self, fleet: Fleet, request: Request) -> tuple[CachedCost, Nodes, RequestArgs]:
        """The cached cost of this request, which the caller brings up to date, and the kernel arguments for
        that."""
        layout = fleet.layout
        if layout != self._layout or self._nodes is None:
            self._costs.clear()
            self._layout, self._nodes = layout, nodes_of(fleet)
        found = self._costs.get(request)
        if found is None:
            if len(self._costs) >= min(_MOST_REQUESTS, _MOST_CELLS // fleet.arrays.capacity):
                self._costs.pop(next(iter(self._costs)), None)
            nodes = fleet.arrays.capacity
            cost, terms = np.full(nodes, np.inf, np.float32), np.zeros((4, nodes), np.float32)
            seen, gpus = np.full(nodes, -1, np.int64), np.zeros(nodes, np.int64)
            unknown = checked(CachedCost(seen, cost, gpus, terms, np.zeros(nodes, np.float32)))
            found = unknown, request_args(fleet, request), None
        cached, args, computed_for = found
        if computed_for != (current := (fleet.replaced, self._size_weight)):
            # For another weight, or other nodes: device costs depend on the cheapest device of any node.
            device = device_costs(fleet, request, self._size_weight)
            if not np.array_equal(device, cached.device):
                cached.device[:] = device
                cached.seen.fill(-1)
            self._costs[request] = cached, args, current
        self._last = request, fleet.changes, cached
        return cached, self._nodes, args

    def forget(self, size_weight: float | None = None) -> None:
        """Mark all costs as outdated, because prices, tables or the weight of sizes changed."""
        if size_weight is not None:
            self._size_weight = size_weight
        for cached, *_ in self._costs.values():
            cached.seen.fill(-1)
        self._last = None, -1, None


def gpus_in(mask: int) -> tuple[int, ...]:
    """The indices of the bits that are set."""
    if mask & (mask - 1) == 0:  # usually none or one
        return (mask.bit_length() - 1,) if mask else ()
    return tuple(g for g in range(mask.bit_length()) if mask >> g & 1)


FILL, STRANDING, STRAND_MARGIN = 8.0, 1.1, 0.77
"""F, S and e above. Found together with ``slots.SCARCITY``, on the same six traces. The optimum is flat: a
fill weight of 5 or 13 instead of 8 costs 0.1 points, no stranding 0.55. A smooth curve instead of max() in
stranding costs cpu250 0.6."""

MOVED = 0.1
"""Maximum fraction of the GPUs whose state has changed since the fill tables were computed for the present
fleet; beyond it they are recomputed."""
_NO_CPU_COUNTS = 1e9
"""CPU milli per GPU before any GPU request is known: free CPU then counts (nearly) nothing."""


class InventoryPolicy:
    """The policy of the module's docstring. If no ``mix`` is given, ``demand`` learns it. The rest of a GPU
    below ``minimum_milli`` of compute or memory counts as waste. ``filling``: pods are placed, and none ends
    (turnover 0). The attribute ``tables`` contains the current ones."""

    name = "inventory"

    def __init__(
        self,
        mix: Mix | None = None,
        demand: Demand | None = None,
        *,
        minimum_milli: int = 0,
        filling: bool = False,
    ) -> None:
        self._mix, self._demand, self._minimum = mix, demand or Demand(), minimum_milli
        self._filling = filling
        self.tables = build_tables(Mix((), ()), NO_GPUS)
        self._cache, self._sizes = CostCache(), Sizes()
        self._priced: _PricedSlots | None = None

    def observe(self, request: Request) -> None:
        self._demand.observe(request)

    def update(self, fleet: Fleet, due: Due) -> Solve | None:
        if due is Due.PRICES:
            self._price(fleet)
        gpus, tables, minimum = FreeGpus.of(fleet), self.tables, self._minimum
        if due is Due.TABLES:
            mix = self._known_mix(fleet)
            return lambda: partial(self._adopt, fleet, build_tables(mix, gpus, minimum))
        if tables.moved(gpus) > MOVED:
            return lambda: partial(self._adopt, fleet, tables.restocked(gpus))
        return None

    def _price(self, fleet: Fleet) -> None:
        if self._priced is not None and self._priced.has_nodes_of(fleet):
            self._price_slots(self._priced, fleet)
        elif self._priced is not None:
            self._adopt(fleet, self.tables)
        else:  # requests arrived before the first tables
            self._adopt(fleet, build_tables(self._known_mix(fleet), FreeGpus.of(fleet), self._minimum))

    def _adopt(self, fleet: Fleet, tables: Tables) -> None:
        same_nodes = self._priced is not None and self._priced.has_nodes_of(fleet)
        if self._priced is not None and same_nodes and tables.restocks(self.tables):
            self._priced.values = checked(self._priced.values._replace(fill=tables.fill))
        else:
            priced = _PricedSlots(fleet, tables, self._sizes)
            self._price_slots(priced, fleet)
            self._priced = priced  # if anything raised, the old ones are kept
        self.tables = tables
        self._cache.forget()

    def _price_slots(self, priced: _PricedSlots, fleet: Fleet) -> None:
        turnover = priced.price(fleet, 0 if self._filling else self._demand.seen)
        self._cache.forget(size_weight(turnover))

    def _known_mix(self, fleet: Fleet) -> Mix:
        return self._mix or self._demand.mix(known_set=fleet.names.known_set)

    def cost(self, fleet: Fleet, request: Request) -> Floats:
        cost, idle = self._costs(fleet, request).cost, _idle_parts(fleet)
        return cost if idle is None else cost + STEP * idle

    def choose(self, fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
        """The GPUs on which the shares cost least; the tightest if the request may not have one of these."""
        cheapest = gpus_in(int(self._costs(fleet, request).gpus[row]))
        permitted = permitted_on(fleet, request, row).issuperset(cheapest)
        return cheapest if permitted else tightest(fleet, request, row)

    def terms(self, fleet: Fleet, request: Request, row: int) -> dict[str, float]:
        costs = self._costs(fleet, request)
        names, values = ("slots", "fill", "stranding", "islands"), costs.terms[:, row].tolist()
        terms = {**dict(zip(names, values, strict=True)), "device": float(costs.device[row])}
        idle = _idle_parts(fleet)
        return terms if idle is None else {**terms, "domains": STEP * float(idle[row])}

    def _costs(self, fleet: Fleet, request: Request) -> CachedCost:
        """The request's costs, recomputed for the nodes that changed since its last call."""
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


def _idle_parts(fleet: Fleet) -> Floats | None:
    """(N,) the mean fraction of the nodes in the same domain (NVLink, leaf or spine switch) that are idle,
    over the levels of domains in the fleet; None if no node is in a domain."""
    levels = fleet.network.levels(fleet)
    if not len(levels):
        return None
    idle, parts = idle_nodes(fleet.arrays), np.zeros(fleet.arrays.capacity, np.float32)
    for level in levels:
        inside = np.flatnonzero((level >= 0) & (fleet.arrays.compute_capacity[0] > 0))
        domain = level[inside]
        count = np.maximum(np.bincount(domain), 1)
        parts[inside] += (np.bincount(domain, weights=idle[inside]) / count)[domain] / len(levels)
    return parts


class _PricedSlots:
    """The slots of one fleet for the types of the tables, and their prices."""

    def __init__(self, fleet: Fleet, tables: Tables, sizes: Sizes) -> None:
        self.layout, self._replaced = fleet.layout, fleet.replaced
        self._nodes = nodes_of(fleet)
        self.slots = slots = Slots(fleet, tables.slotted, sizes)
        prices = np.zeros_like(slots.counts.totals, np.float32)
        memory_mib = np.array(tables.memory_mib, np.float32)
        gpus = dict(zip(slots.requests, slots.gpus.tolist(), strict=True))
        self._gpu_per_pod = tables.mix.gpu_per_pod(gpus)
        rho = tables.mix.cpu_per_gpu(gpus)
        per_gpu = STRAND_MARGIN * rho if rho > 0 else _NO_CPU_COUNTS
        stranding = STRANDING if rho > 0 else 0.0
        self.values = checked(ValueTables(prices, tables.fill, memory_mib, FILL, stranding, per_gpu))

    def has_nodes_of(self, fleet: Fleet) -> bool:
        """Whether the fleet still has the nodes for which this was built; their free resources may differ."""
        return self.layout == fleet.layout and self._replaced == fleet.replaced

    def price(self, fleet: Fleet, arrived: int) -> float:
        """Recount the slots and update their prices; ``arrived`` is the number of pods so far. Returns the
        turnover."""
        self.slots.recount(self._nodes)
        free, has_arrived = fleet.arrays.free_gpu(), arrived * self._gpu_per_pod
        used = float(fleet.arrays.whole_parts().sum()) - free
        turnover = max(0.0, 1 - used / has_arrived) if has_arrived else 0.0
        self.values.prices[:] = self.slots.prices(free, turnover)
        return turnover
