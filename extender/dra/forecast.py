"""The devices that kube-scheduler would allocate to a pod's claims on each node, and their cost.

The search on a node builds the input of ``allocator`` from the claims: requests, classes, selectors,
tolerations and constraints. The checks of a device, and their order, are those of
``allocator_incubating.go`` (see ``allocator``).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache, lru_cache, partial
from itertools import repeat
from typing import NamedTuple

from extender.dra.allocator import (
    CounterAmounts,
    SearchAborted,
    SearchConstraint,
    SearchRequest,
    SearchSubRequest,
    allocate,
)
from extender.dra.cel.program import BudgetExhausted, EvaluationFailed, MatchUnknown, Meter, Unsupported
from extender.dra.cel.selector import Selector, compile_selector
from extender.dra.device_cache import DeviceCache, Labels
from extender.dra.node_devices import NodeDevices
from extender.dra.pod_claims import AllocationRefused, DeviceClaims, allocated_on, unallocated_claims
from extender.dra.pools import LostSlots, lost_slots, slot_prices
from extender.k8s.affinity import tolerated
from extender.k8s.objects import Pod
from extender.k8s.quantity import QuantityError
from extender.k8s.resource_claims import DeviceClaim, DeviceConstraint, DeviceSubRequest
from extender.k8s.resource_slices import Amount, DeviceId, Unread, Version
from extender.untrusted.bounded_cache import BoundedMap
from extender.untrusted.limits import DEVICE_STEPS, FORECAST_STEPS, MOST_STEPS, NODE_STEPS, quoted, shorten

FIRST_AVAILABLE_PENALTY = 100.0
"""In GPUs: the order of ``firstAvailable`` outweighs everything else, as in kube-scheduler's own score, which
ours outweighs (``computeScore`` of its plugin ``dynamicresources``, v1.36.3)."""
UNFINISHED = "the search for devices has not reached the node yet"
_MAX_RESULTS = 1 << 17  # each of one pod's claims on one node; a cluster has few claim templates
_MAX_BYTES, _ENTRY = 64 << 20, 400  # approximate bytes of all, if nothing were shared; of one without devices
HOLDINGS_UNKNOWN = "a claim whose allocation cannot be read may hold the devices"
POOL_INCOMPLETE = "all devices are requested, and a pool is incomplete"


class NoDevices(StrEnum):
    """Why kube-scheduler would allocate no devices on a node, whatever the claims request."""

    NOTHING_FITS = "the node has no devices that fit"
    ELSEWHERE = "the devices of one of the pod's claims are on other nodes"


@dataclass(frozen=True, slots=True)
class Forecast:
    """The devices that the claims would be allocated, in the order of their requests, and the cost in GPUs.

    ``rank`` is the sum of the subrequests' positions in their ``firstAvailable`` lists: 0 if all are first.
    Without devices, ``problem`` has the reason: kube-scheduler would allocate nothing either (``refused``),
    or the result is unknown. With neither devices nor a problem, all claims are already allocated.
    ``lost_slots``: of the search on a node, before prices make them the cost.
    """

    devices: tuple[DeviceId, ...] = ()
    cost: float = 0.0
    rank: int = 0
    problem: str = ""
    refused: bool = False
    lost_slots: LostSlots = ()

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
    result: Forecast | None


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

    def _result(self, search: NodeSearch, budget: SearchBudget, node: str, labels: Labels) -> Forecast:
        node_devices = self._cache.on_node(node, labels)
        version = (node_devices.version, self._cache.rules_version)
        known = self._known.get(key := (search.claims, node))
        if known is not None and known.version != version:
            known = None
        if known is not None and known.result is not None:
            return known.result
        if not budget.grant(NODE_STEPS + DEVICE_STEPS * len(node_devices.devices)):
            return Forecast(problem=UNFINISHED)
        try:
            result = search.on_node(node_devices)
        except BudgetExhausted as error:
            result = Forecast(problem=str(error))
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


@dataclass(slots=True)
class NodeSearch:
    """Searches devices for a pod's claims, node by node. ``meter`` counts the steps of all nodes."""

    claims: DeviceClaims
    cache: DeviceCache
    meter: Meter
    _selectors: dict[str, Selector | Unsupported] = field(default_factory=dict)

    def on_node(self, node: NodeDevices) -> Forecast:
        """The result for a node. Raises ``BudgetExhausted``."""
        if node.holdings_unknown:
            return Forecast(problem=HOLDINGS_UNKNOWN)
        try:
            requests, constraints = self._search_input(node)
            allocated = allocate(node.available, requests, constraints, self.meter.spend)
        except BudgetExhausted:
            raise
        except (MatchUnknown, SearchAborted) as error:
            return Forecast(problem=shorten(str(error)), refused=isinstance(error, EvaluationFailed))
        except RecursionError:
            return Forecast(problem="too many devices are requested at once")
        if allocated is None:
            return Forecast(problem=NoDevices.NOTHING_FITS, refused=not node.has_incomplete_pool)
        taken = [d for index, sub, d in allocated if not requests[index].subrequests[sub].admin_access]
        remaining = node.slots_without(taken)
        return Forecast(
            tuple(node.device_id(device.device) for device in allocated),
            rank=sum(number for _, number in {device[:2] for device in allocated}),
            lost_slots=lost_slots(node.slots, remaining),
        )

    def _search_input(self, node: NodeDevices) -> tuple[list[SearchRequest], list[SearchConstraint]]:
        requests: list[SearchRequest] = []
        constraints: list[SearchConstraint] = []
        for number, claim in enumerate(self.claims):
            names = _names(claim, len(requests))
            self.meter.spend(len(names))
            for request in claim.requests:
                subrequests = [self._subrequest(sub, node) for sub in request.subrequests]
                requests.append(SearchRequest(subrequests, number))
            for constraint in claim.constraints:
                self.meter.spend(1 + len(node.devices))
                constraints.append(_search_constraint(constraint, names, node))
        return requests, constraints

    def _subrequest(self, sub: DeviceSubRequest, node: NodeDevices) -> SearchSubRequest:
        self.meter.spend(16)
        device_class = self.cache.classes[sub.device_class]
        if device_class.problem:
            raise Unsupported(f"device class {quoted(sub.device_class)} cannot be read")
        if sub.count is None and node.has_incomplete_pool:
            raise Unsupported(POOL_INCOMPLETE)
        return SearchSubRequest(
            sub.count,
            cache(partial(self._matches, sub, device_class.selectors, node)),
            partial(self._tolerates_taints, sub, node),
            partial(self._capacity, sub.capacity.amounts, node),
            sub.admin_access,
        )

    def _matches(
        self, sub: DeviceSubRequest, class_selectors: tuple[str, ...], node: NodeDevices, device: int
    ) -> bool:
        pool, index = node.devices[device]
        for selectors, of_class in ((class_selectors, True), (sub.expressions, False)):
            for expression in selectors:
                self.meter.spend(2)
                selector = self._selector(expression)
                if not pool.matches(index, selector, self.meter, of_class=of_class):
                    return False
        if problem := pool.devices[index].problem:
            raise Unsupported(f"{problem} of pool {pool.id.pool}")
        return True

    def _selector(self, expression: str) -> Selector:
        known = self._selectors.get(expression)
        if known is None:
            try:
                known = compile_selector(expression, self.meter)
            except Unsupported as error:  # includes BudgetExhausted: the next node has no budget either
                known = error
            self._selectors[expression] = known
        if isinstance(known, Unsupported):
            raise known
        return known

    def _tolerates_taints(self, sub: DeviceSubRequest, node: NodeDevices, device: int) -> bool:
        taints = self.cache.taints_of(node.device_id(device), node.device(device))
        self.meter.spend(1 + len(taints) * len(sub.tolerations) // 8)
        return tolerated(taints, sub.tolerations)

    def _capacity(
        self, requested: Mapping[str, Amount], node: NodeDevices, device: int
    ) -> CounterAmounts | None:
        """The amounts that an allocation consumes of a device's capacities, None if the device has less.
        Without multiple allocations, a device must be large enough, and is allocated as a whole."""
        pool, index = node.devices[device]
        record = pool.devices[index]
        if not requested and not record.allow_multiple_allocations:
            return {}
        self.meter.spend(len(record.capacity_by_name) // 4)
        consumed = record.consumed_capacity(requested, fractional=self.cache.since_1_37)
        if consumed and record.allow_multiple_allocations:
            return {(pool.id, index, name): amount for name, amount in consumed.items()}
        return None if consumed is None else {}


def _names(claim: DeviceClaim, first_index: int) -> list[tuple[tuple[int, int], frozenset[str]]]:
    """Each subrequest of a claim in the search (request, number), with the names that constraints use for it.
    ``first_index`` is the index of the claim's first request."""
    return [
        ((index, number), frozenset({name, f"{name}/{sub.name}"} if request.first_available else {name}))
        for index, request in enumerate(claim.requests, first_index)
        for name in [request.name]
        for number, sub in enumerate(request.subrequests)
    ]


def _search_constraint(
    constraint: DeviceConstraint, names: list[tuple[tuple[int, int], frozenset[str]]], node: NodeDevices
) -> SearchConstraint:
    wanted = frozenset(constraint.requests)
    subrequests = frozenset(sub for sub, named in names if not wanted or not wanted.isdisjoint(named))
    domain, _, name = constraint.attribute.partition("/")
    attributes = (pool.devices[index].attributes for pool, index in node.devices)
    values = [_comparable(of_device.get(domain, {}).get(name)) for of_device in attributes]
    return SearchConstraint(values, subrequests, constraint.distinct)


def _comparable(value: object) -> Hashable | None:
    """A key that is equal for values of the same type and text: 1 is not true, 1.0.0+a is not 1.0.0+b. Raises
    ``Unsupported`` for an attribute that cannot be read."""
    if value is None:
        return None
    if isinstance(value, Unread):
        raise Unsupported(value.problem)
    return type(value), value.text if isinstance(value, Version) else value
