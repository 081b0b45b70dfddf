"""The devices that kube-scheduler would allocate to a pod's claims on each node, and their cost."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import repeat
from typing import NamedTuple

from extender.dra.cel.program import BudgetExhausted, EvaluationFailed, MatchUnknown, Meter
from extender.dra.device_cache import DeviceCache, Labels
from extender.dra.device_slots import LostSlots, slot_prices
from extender.dra.node_search import HOLDINGS_UNKNOWN, POOL_INCOMPLETE, NodeSearch, NoDevices, SearchResult
from extender.dra.pod_claims import AllocationRefused, DeviceClaims, allocated_on, unallocated_claims
from extender.k8s.objects import Pod
from extender.k8s.quantity import QuantityError
from extender.k8s.resource_slices import DeviceId
from extender.untrusted.bounded_cache import BoundedMap
from extender.untrusted.limits import DEVICE_STEPS, FORECAST_STEPS, MOST_STEPS, NODE_STEPS, shorten

FIRST_AVAILABLE_PENALTY = 100.0
"""In GPUs: the order of ``firstAvailable`` outweighs everything else, as in kube-scheduler's own score, which
ours outweighs (``computeScore`` of its plugin ``dynamicresources``, v1.36.3)."""
UNFINISHED = "the search for devices has not reached the node yet"
_MAX_RESULTS = 1 << 17  # each of one pod's claims on one node; a cluster has few claim templates
_MAX_BYTES, _ENTRY = 64 << 20, 400  # approximate bytes of all, if nothing were shared; of one without devices


@dataclass(frozen=True, slots=True)
class Forecast:
    """The devices that the claims would be allocated, in the order of their requests, and the cost in GPUs.

    ``rank`` is the sum of the subrequests' positions in their ``firstAvailable`` lists: 0 if all are first.
    Without devices, ``problem`` has the reason: kube-scheduler would allocate nothing either (``refused``),
    or the result is unknown. With neither devices nor a problem, all claims are already allocated.
    """

    devices: tuple[DeviceId, ...] = ()
    cost: float = 0.0
    rank: int = 0
    problem: str = ""
    refused: bool = False

    @property
    def first_available_penalty(self) -> float:
        """Cost in GPUs of missing the pod's preferred devices. Exceeds any waste."""
        return FIRST_AVAILABLE_PENALTY * self.rank


class SearchBudget:
    """``most`` steps for all nodes. Each node adds its own to the ``meter``, which has at most
    ``FORECAST_STEPS``."""

    def __init__(self, most: int) -> None:
        self._left, self._before = most, FORECAST_STEPS
        self.meter = Meter(FORECAST_STEPS)

    def grant(self, steps: int) -> bool:
        """Add the steps of the next node. False if nothing is left of all."""
        self._left -= self._before - self.meter.left
        self._before = self.meter.left = min(self.meter.left + steps, max(steps, FORECAST_STEPS))
        return self._left > 0


class _Known(NamedTuple):
    """The cached result of claims on a node, valid for this version of its inputs. ``result``: None if its
    budget was too small."""

    version: Hashable
    result: SearchResult | None


class AllocationSimulator:
    """Predicts the results of kube-scheduler's allocator on the devices of this cache. Results are cached
    until devices, claims or classes change. One call of ``forecasts`` takes ``at_once`` steps, or the
    ``budget``; further nodes are ``UNFINISHED``."""

    def __init__(self, cache: DeviceCache, budget: SearchBudget | None = None) -> None:
        self._cache, self._budget = cache, budget
        self.at_once = MOST_STEPS
        self._known: BoundedMap[tuple[DeviceClaims, str], _Known] = BoundedMap(_MAX_RESULTS, _MAX_BYTES)

    def forecasts(
        self,
        pod: Pod,
        nodes: Iterable[tuple[str, Labels]],
        resources_on_nodes: Iterable[Sequence[str]] = repeat(()),
    ) -> list[Forecast]:
        """The forecast for a pod on each node (name, labels).

        ``resources_on_nodes`` are the extended resources that each node provides as devices.
        """
        budget = self._budget or SearchBudget(self.at_once)
        return list(self.each(pod, nodes, resources_on_nodes, budget))

    def each(
        self,
        pod: Pod,
        nodes: Iterable[tuple[str, Labels]],
        resources_on_nodes: Iterable[Sequence[str]],
        budget: SearchBudget,
    ) -> Iterator[Forecast]:
        """The same, node by node: the devices may change in between."""
        prices = slot_prices(self._cache.total_slots)
        searches: dict[tuple[Sequence[str], int], NodeSearch | Forecast] = {}
        scopes = allocated_on(self._cache, pod)
        for (name, labels), resources in zip(nodes, resources_on_nodes, strict=False):
            search = searches.get(key := (tuple(resources), self._cache.rules_version))
            if search is None:
                search = searches[key] = self._search_for(pod, resources, budget)
            if not all(scope.includes(name, labels) for scope in scopes):
                yield Forecast(problem=NoDevices.ELSEWHERE, refused=True)
            elif isinstance(search, Forecast):
                yield search
            else:
                found = self._result(search, budget, name, labels)
                cost = sum((prices.get(slot, 0.0) * count for slot, count in found.lost_slots), 0.0)
                yield Forecast(found.devices, cost, found.rank, found.problem, found.refused)

    def _search_for(self, pod: Pod, resources: Sequence[str], budget: SearchBudget) -> NodeSearch | Forecast:
        """The search for a pod's claims, or the forecast if no search is needed."""
        try:
            claims = unallocated_claims(self._cache, pod, resources)
        except (MatchUnknown, QuantityError, AllocationRefused) as error:
            refused = isinstance(error, EvaluationFailed | AllocationRefused)
            return Forecast(problem=shorten(str(error)), refused=refused)
        if not claims:
            return Forecast()
        if self._cache.any_device_may_be_held:
            return Forecast(problem=HOLDINGS_UNKNOWN)
        if any(claim.wants_all for claim in claims) and self._cache.blocks_allocation_mode_all:
            return Forecast(problem=POOL_INCOMPLETE)
        return NodeSearch(claims, self._cache, budget.meter)

    def _result(self, search: NodeSearch, budget: SearchBudget, node: str, labels: Labels) -> SearchResult:
        node_devices = self._cache.on_node(node, labels)
        version = (node_devices.version, self._cache.rules_version)
        known = self._known.get(key := (search.claims, node))
        if known is not None and known.version != version:
            known = None
        if known is not None and known.result is not None:
            return known.result
        if not budget.grant(NODE_STEPS + DEVICE_STEPS * len(node_devices.devices)):
            return SearchResult(problem=UNFINISHED)
        try:
            result = search.on_node(node_devices)
        except BudgetExhausted as error:
            result = SearchResult(problem=str(error))
            # A second attempt may succeed, because matches of selectors are cached by then. After that the
            # node is known to need too many steps.
            if known is None:
                self._known.put(key, _Known(version, None), _ENTRY)
                return result
        size = _ENTRY + 100 * len(result.devices) + 150 * len(result.lost_slots)
        self._known.put(key, _Known(version, replace(result, lost_slots=_shared(result.lost_slots))), size)
        return result


@lru_cache(maxsize=256)
def _shared(lost: LostSlots) -> LostSlots:
    """One shared object for equal nodes."""
    return lost
