"""What the allocator searches: the devices of a node, and the requests and constraints of a pod's claims.

Devices are numbers here (0 to D - 1), in the order in which the allocator tries them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TypeAlias

from extender.k8s.resource_api.objects import Number

CounterKey: TypeAlias = Hashable
CounterAmounts: TypeAlias = Mapping[CounterKey, Number]


@dataclass(frozen=True, slots=True)
class AvailableDevices:
    """What each device of a node consumes of the counters (D,), and what is left of each counter.

    Only requests with admin access can have devices in ``allocated``. ``capacity_counters`` has the devices
    that allow multiple allocations, with the counters of their own capacities. Those in
    ``partially_consumed`` have an allocation already, which has consumed what the device consumes.
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
    """``count`` devices (None: all) for which ``matches`` is true; it may raise. A device that matches is not
    allocated if it has a taint that is not tolerated. ``capacity`` is what is consumed of a device's own
    capacities, None if it has less. With ``admin_access`` a device may belong to other claims as well."""

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
    """All devices of ``subrequests`` (request, subrequest) have the same value of an attribute, or different
    ones (``distinct``). ``values`` has it for each device (D,), None if the device has no such attribute."""

    values: Sequence[Hashable | None]
    subrequests: AbstractSet[tuple[int, int]]
    distinct: bool = False
