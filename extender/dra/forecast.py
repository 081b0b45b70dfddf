"""Which devices kube-scheduler would allocate to a pod's claims on each node, and what that costs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import TypeAlias
from weakref import ref

from extender.dra.cel.program import BudgetExhausted, EvaluationFailed, MatchUnknown, Meter
from extender.dra.device_cache import DeviceCache, Labels
from extender.dra.device_slots import LostSlots, slot_prices
from extender.dra.node_search import HOLDINGS_UNKNOWN, POOL_INCOMPLETE, NodeSearch, SearchResult
from extender.dra.pod_claims import AllocationRefused, DeviceClaims, allocated_on, unallocated_claims
from extender.k8s.objects import Pod
from extender.k8s.quantity import QuantityError
from extender.k8s.resource_claims import DeviceClaim
from extender.k8s.resource_slices import DeviceId
from extender.untrusted.bounded_cache import BoundedMap
from extender.untrusted.limits import DEVICE_STEPS, FORECAST_STEPS, MOST_STEPS, NODE_STEPS, shorten

FIRST_AVAILABLE_PENALTY = 100.0
"""GPUs: the order of ``firstAvailable`` outweighs all else, as in kube-scheduler's own score, which ours
outweighs (``computeScore`` of its plugin ``dynamicresources``, v1.36.3)."""
ELSEWHERE = "the devices of a claim of the pod are on other nodes"
_MAX_TEMPLATES = 128  # different (sets of) claims with cached results: a cluster has few templates
_MAX_BYTES = 32 << 20  # of all cached results, about


@dataclass(frozen=True, slots=True)
class Forecast:
    """The devices that the claims would get, in the order of their requests, and their cost in GPUs.

    ``rank`` adds up the positions of the subrequests in their ``firstAvailable`` lists: 0 if all are first.
    Without devices, ``problem`` says why: kube-scheduler would allocate nothing either (``refused``), or
    nothing is known. Neither devices nor a problem: all claims have their devices already.
    """

    devices: tuple[DeviceId, ...] = ()
    cost: float = 0.0
    rank: int = 0
    problem: str = ""
    refused: bool = False

    @property
    def first_available_penalty(self) -> float:
        """In GPUs: what it costs that the pod does not get what it prefers. More than any waste."""
        return FIRST_AVAILABLE_PENALTY * self.rank


class _Budget:
    """The steps of one forecast: so many for each node, and ``MOST_STEPS`` at most."""

    def __init__(self) -> None:
        self.meter = Meter(min(FORECAST_STEPS, MOST_STEPS))
        self.granted = self.meter.left

    def grant(self, steps: int) -> None:
        steps = min(steps, MOST_STEPS - self.granted)
        self.granted += steps
        self.meter.left += steps


@dataclass(slots=True)
class _ClaimResults:
    """The results for equal claims, by node, each with the version of what it depends on. ``exhausted`` has
    the versions for which the budget of a forecast was too small. ``size`` is in bytes, about."""

    exhausted: dict[str, Hashable] = field(default_factory=dict)
    size: int = 0
    is_cached: bool = True
    by_node: dict[str, tuple[Hashable, SearchResult]] = field(default_factory=dict)
    lost_slots: dict[LostSlots, LostSlots] = field(default_factory=dict)  # one object for nodes alike

    def get(self, node: str, version: Hashable) -> SearchResult | None:
        """The result for a node, if it is of this version."""
        known_version, result = self.by_node.get(node, (None, None))
        return result if known_version == version else None


_Key: TypeAlias = tuple[ref[DeviceClaim], ...]


class _SearchCache:
    """The results for the claims that were asked about last, as long as these claims exist."""

    def __init__(self) -> None:
        self._results: OrderedDict[_Key, _ClaimResults] = OrderedDict()
        self._size = 0

    def results_for(self, claims: DeviceClaims) -> _ClaimResults:
        key = tuple(ref(claim, self._drop_claim) for claim in claims)
        results = self._results.setdefault(key, _ClaimResults())
        self._results.move_to_end(key)
        if len(self._results) > _MAX_TEMPLATES:
            self._drop(next(iter(self._results)))
        return results

    def put(self, results: _ClaimResults, node: str, version: Hashable, result: SearchResult) -> None:
        """Store a result, and drop the oldest ones if the cache gets too large."""
        if not results.is_cached:
            return
        size = 400 + 100 * len(result.devices)
        if result.lost_slots not in results.lost_slots:
            size += 150 * len(result.lost_slots)
        shared = results.lost_slots.setdefault(result.lost_slots, result.lost_slots)
        results.by_node[node] = version, replace(result, lost_slots=shared)
        results.size += size
        self._size += size
        while self._size > _MAX_BYTES and self._results:
            self._drop(next(iter(self._results)))

    def _drop_claim(self, claim: ref[DeviceClaim]) -> None:
        for key in [key for key in self._results if any(known is claim for known in key)]:
            self._drop(key)

    def _drop(self, key: _Key) -> None:
        results = self._results.pop(key)
        self._size -= results.size
        results.is_cached = False


class AllocationSimulator:
    """Predicts what kube-scheduler's allocator does with the devices of this cache. Results are cached for as
    long as devices, claims and classes stay as they are."""

    def __init__(self, cache: DeviceCache) -> None:
        self._cache = cache
        self._results = _SearchCache()
        # Claims for extended resources exist nowhere else; results are dropped with their claims.
        self._generated: BoundedMap[DeviceClaim, None] = BoundedMap(_MAX_TEMPLATES)

    def forecasts(
        self,
        pod: Pod,
        nodes: Iterable[tuple[str, Labels]],
        resources_on_nodes: Iterable[Sequence[str]] = repeat(()),
    ) -> list[Forecast]:
        """The forecast for a pod on each node (name, labels).

        ``resources_on_nodes`` are the extended resources that each node provides as devices.
        """
        budget = _Budget()
        prices = slot_prices(self._cache.total_slots)
        searches: dict[tuple[str, ...], tuple[NodeSearch, _ClaimResults] | Forecast] = {}
        scopes = allocated_on(self._cache, pod)
        forecasts = []
        for (name, labels), resources in zip(nodes, resources_on_nodes, strict=False):
            search = searches.get(key := tuple(resources))
            if search is None:
                search = searches[key] = self._search_for(pod, key, budget)
            if not all(scope.includes(name, labels) for scope in scopes):
                forecasts.append(Forecast(problem=ELSEWHERE, refused=True))
                continue
            if isinstance(search, Forecast):
                forecasts.append(search)
                continue
            found = self._result(*search, budget, name, labels)
            cost = sum((prices.get(slot, 0.0) * count for slot, count in found.lost_slots), 0.0)
            forecasts.append(Forecast(found.devices, cost, found.rank, found.problem, found.refused))
        return forecasts

    def _search_for(
        self, pod: Pod, resources: Sequence[str], budget: _Budget
    ) -> tuple[NodeSearch, _ClaimResults] | Forecast:
        """The search for a pod's claims with its known results, or the forecast if no search is needed."""
        try:
            claims = unallocated_claims(self._cache, pod, resources)
        except (MatchUnknown, QuantityError, AllocationRefused) as error:
            refused = isinstance(error, EvaluationFailed | AllocationRefused)
            return Forecast(problem=shorten(str(error)), refused=refused)
        if resources:
            self._generated.put(claims[-1], None, size=1)
        if not claims:
            return Forecast()
        if self._cache.any_device_may_be_held:
            return Forecast(problem=HOLDINGS_UNKNOWN)
        if any(claim.wants_all for claim in claims) and self._cache.blocks_allocation_mode_all:
            return Forecast(problem=POOL_INCOMPLETE)
        return NodeSearch(claims, self._cache, budget.meter), self._results.results_for(claims)

    def _result(
        self, search: NodeSearch, results: _ClaimResults, budget: _Budget, node: str, labels: Labels
    ) -> SearchResult:
        node_devices = self._cache.on_node(node, labels)
        version = (node_devices.version, self._cache.rules_version)
        if (known := results.get(node, version)) is not None:
            return known
        budget.grant(NODE_STEPS + DEVICE_STEPS * len(node_devices.devices))
        try:
            result = search.on_node(node_devices)
        except BudgetExhausted as error:
            result = SearchResult(problem=str(error))
            # A second try may succeed, because matches of selectors are cached then. After that the node is
            # known to need too many steps, unless there were too many nodes for one forecast.
            tried_before = results.exhausted.get(node) == version
            results.exhausted[node] = version
            if not tried_before or budget.granted >= MOST_STEPS:
                return result
        self._results.put(results, node, version, result)
        return result
