"""Searches devices for requests like Kubernetes's allocator: by backtracking to the first solution.

Devices are numbers here (0 to D - 1), in the order in which they are tried. Requests are tried in order, too;
the devices of one request ascend, so no set is tried twice. Source: k8s.io/dynamic-resource-allocation
v0.36.3, ``structured/internal/incubating/allocator_incubating.go``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

from extender.k8s.resource_slices import Number

CounterKey: TypeAlias = Hashable
CounterAmounts: TypeAlias = Mapping[CounterKey, Number]


@dataclass(frozen=True, slots=True)
class AvailableDevices:
    """The counter amounts that each device of a node consumes (D,), and the remaining amount of each counter.

    Only requests with admin access can be allocated devices in ``allocated``. ``capacity_counters`` has the
    devices that allow multiple allocations, with the counters of their own capacities. Those in
    ``partially_consumed`` already have an allocation, which has consumed the counters of the device.
    """

    consumption: Sequence[CounterAmounts]
    remaining: CounterAmounts
    allocated: AbstractSet[int] = frozenset()
    capacity_counters: Mapping[int, Collection[CounterKey]] = field(default_factory=dict)
    partially_consumed: AbstractSet[int] = frozenset()

    def is_available(self, device: int) -> bool:
        """Whether the device, or a part of it, can still be allocated."""
        capacities = self.capacity_counters.get(device, ())
        if device in self.allocated or any(self.remaining[counter] <= 0 for counter in capacities):
            return False
        fits = (self.remaining[counter] >= amount for counter, amount in self.consumption[device].items())
        return device in self.partially_consumed or all(fits)


@dataclass(frozen=True, slots=True)
class SearchSubRequest:
    """``count`` devices (None: all) for which ``matches`` is true; it may raise. Matching devices with taints
    that are not tolerated are not allocated. ``capacity`` is the amount consumed of a device's own
    capacities, None if it has less. With ``admin_access``, a device may also be allocated to other claims."""

    count: int | None
    matches: Callable[[int], bool]
    tolerates_taints: Callable[[int], bool] = lambda device: True
    capacity: Callable[[int], CounterAmounts | None] = lambda device: {}
    admin_access: bool = False


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """The first of the subrequests that can be satisfied. ``claim`` is the number of its claim."""

    subrequests: Sequence[SearchSubRequest]
    claim: int = 0


@dataclass(frozen=True, slots=True)
class SearchConstraint:
    """All devices of ``subrequests`` (request, subrequest) must have the same value of an attribute, or
    different ones (``distinct``). ``values`` has the value of each device (D,), None for no attribute."""

    values: Sequence[Hashable | None]
    subrequests: AbstractSet[tuple[int, int]]
    distinct: bool = False


MAX_DEVICES_PER_CLAIM = 32  # ``AllocationResultsMaxSize`` of the API
_MAX_DEVICES = 128  # of all claims in total: each device is a level of recursion
_MAX_STEPS = 50_000  # before the search is aborted; kube-scheduler stops after ten seconds
_DEVICES_PER_CHARGE = 8  # number of devices whose steps are spent at once


class SearchAborted(Exception):
    """The search takes too long, or the requests contradict each other."""


class AllocatedDevice(NamedTuple):
    """A device, and the request and subrequest to which it is allocated."""

    request: int
    subrequest: int
    device: int


def allocate(
    available: AvailableDevices,
    requests: Sequence[SearchRequest],
    constraints: Sequence[SearchConstraint] = (),
    spend: Callable[[int], None] = lambda steps: None,
) -> list[AllocatedDevice] | None:
    """The first solution, in the order of the requests, or None if there is none.

    ``spend`` is called with a number of steps before they are taken. Raises ``SearchAborted``, and the errors
    of ``spend`` and ``SearchSubRequest.matches``.
    """
    search = _Search(available, requests, [_ConstraintState(c) for c in constraints], spend)
    try:
        return search.allocated if search.satisfy_from(0) else None
    except _ClaimTooLarge:
        return None


class _ClaimTooLarge(Exception):
    """A claim would exceed its maximum number of devices."""


@dataclass(slots=True)
class _ConstraintState:
    """A constraint, and the values of the devices that are allocated under it, by request."""

    constraint: SearchConstraint
    values: dict[int, Hashable] = field(default_factory=dict)
    count: int = 0

    def add(self, new: AllocatedDevice) -> bool:
        """Whether the constraint allows the device; if not, nothing changes."""
        constraint = self.constraint
        if (new.request, new.subrequest) not in constraint.subrequests:
            return True
        value = constraint.values[new.device]
        if value is None:
            return False
        if self.count and (value in self.values.values()) is constraint.distinct:
            return False
        if constraint.distinct or not self.count:
            # Only the last value of each request is kept, as in Kubernetes's allocator.
            self.values = self.values | {new.request: value} if constraint.distinct else {0: value}
        self.count += 1
        return True

    def remove(self, old: AllocatedDevice) -> None:
        if (old.request, old.subrequest) in self.constraint.subrequests:
            self.count -= 1
            if self.constraint.distinct:
                self.values = {number: v for number, v in self.values.items() if number != old.request}


@dataclass
class _Search:
    _available: AvailableDevices
    _requests: Sequence[SearchRequest]
    _constraints: list[_ConstraintState]
    _spend_outside: Callable[[int], None]

    def __post_init__(self) -> None:
        self._remaining = dict(self._available.remaining)
        self._claims_of: defaultdict[int, list[int]] = defaultdict(list)  # by device
        self._device_count: defaultdict[int, int] = defaultdict(int)  # by claim
        self._steps = _MAX_STEPS
        self._devices = range(len(self._available.consumption))
        self.allocated: list[AllocatedDevice] = []
        self._consumed: list[CounterAmounts] = []  # by each of ``allocated``
        # "All" devices are determined before the search begins.
        self._all_devices = {
            (index, number): [
                device
                for device in self._devices
                if self._spend_and_match(sub, device) and self._fits(sub.capacity(device))
            ]
            for index, request in enumerate(self._requests)
            for number, sub in enumerate(request.subrequests)
            if sub.count is None
        }

    def _spend(self, steps: int = 1) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise SearchAborted("the search for devices takes too long")
        self._spend_outside(steps)

    def _spend_and_match(self, sub: SearchSubRequest, device: int) -> bool:
        self._spend()
        return sub.matches(device)

    def satisfy_from(self, index: int) -> bool:
        """Satisfy the request with this index and all later ones."""
        if index >= len(self._requests):
            return True
        begins_claim = index > 0 and self._requests[index].claim != self._requests[index - 1].claim
        try:
            return self._satisfy(index)
        except _ClaimTooLarge:
            if begins_claim:
                return False
            raise

    def _satisfy(self, index: int) -> bool:
        subrequests = self._requests[index].subrequests
        too_large = 0
        for number in range(len(subrequests)):
            try:
                if self._satisfy_with(index, number):
                    return True
            except _ClaimTooLarge:
                too_large += 1
        if subrequests and too_large == len(subrequests):
            raise _ClaimTooLarge
        return False

    def _satisfy_with(self, index: int, number: int) -> bool:
        sub = self._requests[index].subrequests[number]
        claim = self._requests[index].claim
        self._spend()
        devices = self._all_devices.get((index, number), [])
        count = len(devices) if sub.count is None else sub.count
        if self._device_count[claim] + count > MAX_DEVICES_PER_CLAIM:
            raise _ClaimTooLarge
        if len(self.allocated) + count > _MAX_DEVICES:
            raise SearchAborted("too many devices are requested at once")
        if sub.count is not None:
            return self._allocate_count(index, number, sub.count, 0)
        return bool(devices) and self._allocate_all(index, number, devices)

    def _allocate_all(self, index: int, number: int, devices: Sequence[int]) -> bool:
        """Allocate all of these devices and satisfy the rest, or allocate nothing."""
        if not devices:
            return self.satisfy_from(index + 1)
        new, sub = AllocatedDevice(index, number, devices[0]), self._requests[index].subrequests[number]
        if not self._is_free(sub, self._requests[index].claim, new.device):
            return False
        if not sub.tolerates_taints(new.device) or (consumed := self._consumption(sub, new.device)) is None:
            return False
        if not self._add(new, consumed):
            raise SearchAborted("a constraint excludes a device although all are requested")
        return self._finish(new, lambda: self._allocate_all(index, number, devices[1:]))

    def _allocate_count(self, index: int, number: int, count: int, start: int) -> bool:
        """Allocate ``count`` devices, the first at ``start`` or later, and satisfy the rest."""
        if count <= 0:
            return self.satisfy_from(index + 1)
        sub, claim = self._requests[index].subrequests[number], self._requests[index].claim
        for device in self._devices[start:]:
            if not (device - start) % _DEVICES_PER_CHARGE:
                self._spend(min(_DEVICES_PER_CHARGE, len(self._devices) - device))
            in_use = device in self._available.allocated or self._claims_of.get(device)
            if (in_use and not self._is_free(sub, claim, device)) or not sub.matches(device):
                continue
            new, consumed = AllocatedDevice(index, number, device), self._consumption(sub, device)
            if consumed is None or not sub.tolerates_taints(device) or not self._add(new, consumed):
                continue
            if self._finish(new, partial(self._allocate_count, index, number, count - 1, device + 1)):
                return True
        return False

    def _finish(self, new: AllocatedDevice, rest: Callable[[], bool]) -> bool:
        """Whether the rest can be satisfied with this device allocated; if not, the device is released."""
        done = False
        try:
            done = rest()
        finally:
            if not done:
                self._remove(new)
        return done

    def _is_free(self, sub: SearchSubRequest, claim: int, device: int) -> bool:
        claims = self._claims_of.get(device)
        if claims and device not in self._available.capacity_counters:
            return sub.admin_access and claim not in claims
        return sub.admin_access or device not in self._available.allocated

    def _consumption(self, sub: SearchSubRequest, device: int) -> CounterAmounts | None:
        """The amounts that an allocation of the device consumes of all counters, None if less remains."""
        consumed = sub.capacity(device)
        if consumed is None:
            return None
        available, whole = self._available, self._available.consumption[device]
        is_in_use = device in available.partially_consumed or bool(self._claims_of.get(device))
        if not is_in_use or device not in available.capacity_counters:
            consumed = {**whole, **consumed} if consumed else whole
        return consumed if self._fits(consumed) else None

    def _fits(self, amounts: CounterAmounts | None) -> bool:
        return amounts is not None and all(self._remaining[counter] >= n for counter, n in amounts.items())

    def _add(self, new: AllocatedDevice, consumed: CounterAmounts) -> bool:
        self._spend(4 + 2 * len(self._constraints) + len(consumed) // 4)
        for number, constraint in enumerate(self._constraints):
            if not constraint.add(new):
                for earlier in self._constraints[:number]:
                    earlier.remove(new)
                return False
        claim = self._requests[new.request].claim
        self._claims_of[new.device].append(claim)
        self._device_count[claim] += 1
        self.allocated.append(new)
        self._consumed.append(consumed)
        for counter, amount in consumed.items():
            self._remaining[counter] -= amount
        return True

    def _remove(self, old: AllocatedDevice) -> None:
        for counter, amount in self._consumed.pop().items():
            self._remaining[counter] += amount
        self.allocated.pop()
        self._device_count[self._requests[old.request].claim] -= 1
        self._claims_of[old.device].pop()
        for constraint in self._constraints:
            constraint.remove(old)
