"""The devices that kube-scheduler would allocate to a pod's claims on one node.

Builds the input of ``allocator`` from the claims: requests, classes, selectors, tolerations and constraints.
The checks of a device, and their order, are those of ``allocator_incubating.go`` (see ``allocator``).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, partial

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
from extender.dra.device_cache import DeviceCache
from extender.dra.device_slots import LostSlots, lost_slots
from extender.dra.node_devices import NodeDevices
from extender.dra.pod_claims import DeviceClaims
from extender.k8s.affinity import tolerated
from extender.k8s.resource_claims import DeviceClaim, DeviceConstraint, DeviceSubRequest
from extender.k8s.resource_slices import Amount, DeviceId, Unread, Version
from extender.untrusted.limits import quoted, shorten

HOLDINGS_UNKNOWN = "a claim whose allocation cannot be read may hold the devices"
POOL_INCOMPLETE = "all devices are requested, and a pool is incomplete"


class NoDevices(StrEnum):
    """Why kube-scheduler would allocate no devices on a node, whatever the claims request."""

    NOTHING_FITS = "the node has no devices that fit"
    ELSEWHERE = "the devices of one of the pod's claims are on other nodes"


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The devices that the claims would be allocated, in the order of their requests, and the slots lost.

    ``rank`` is the sum of the subrequests' positions in their ``firstAvailable`` lists: 0 if all are first.
    Without devices, ``problem`` has the reason; ``refused``: kube-scheduler would not find any either.
    """

    devices: tuple[DeviceId, ...] = ()
    rank: int = 0
    lost_slots: LostSlots = ()
    problem: str = ""
    refused: bool = False


@dataclass(slots=True)
class NodeSearch:
    """Searches devices for a pod's claims, node by node. ``meter`` counts the steps of all nodes."""

    claims: DeviceClaims
    cache: DeviceCache
    meter: Meter
    _selectors: dict[str, Selector | Unsupported] = field(default_factory=dict)

    def on_node(self, node: NodeDevices) -> SearchResult:
        """The result for a node. Raises ``BudgetExhausted``."""
        if node.holdings_unknown:
            return SearchResult(problem=HOLDINGS_UNKNOWN)
        try:
            requests, constraints = self._search_input(node)
            allocated = allocate(node.available, requests, constraints, self.meter.spend)
        except BudgetExhausted:
            raise
        except (MatchUnknown, SearchAborted) as error:
            return SearchResult(problem=shorten(str(error)), refused=isinstance(error, EvaluationFailed))
        except RecursionError:
            return SearchResult(problem="too many devices are requested at once")
        if allocated is None:
            return SearchResult(problem=NoDevices.NOTHING_FITS, refused=not node.has_incomplete_pool)
        taken = [d for index, sub, d in allocated if not requests[index].subrequests[sub].admin_access]
        remaining = node.slots_without(taken)
        return SearchResult(
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
