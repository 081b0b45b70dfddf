"""Which devices a search that takes the first solution finds: that of Kubernetes' own device allocator.

The search goes through what is wanted in order, and for each wanted device through the offered ones in order;
what cannot be completed is taken back, and the search goes on. Within one want, devices are only tried in the
offered order, so that no set of them is tried twice. Described in k8s.io/dynamic-resource-allocation v0.36.3,
``structured/internal/incubating/allocator_incubating.go``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import TypeAlias

MOST = 32
"""Devices that one claim can have (``AllocationResultsMaxSize`` of the API)."""
_STEPS = 20_000
"""Devices that are looked at before the search is given up; kube-scheduler stops after ten seconds."""

Counter: TypeAlias = Hashable
Number: TypeAlias = int | Fraction
Amounts: TypeAlias = Mapping[Counter, Number]


class NoAnswer(Exception):
    """The search takes too long, or what is wanted contradicts itself."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What there is, in the order in which it is tried: what each device consumes (D,), what is left of each
    counter, and the devices that are taken, or can have no part of a counter that is overdrawn."""

    consumes: Sequence[Amounts]
    left: Amounts
    taken: AbstractSet[int] = frozenset()

    def has(self, device: int) -> bool:
        """Whether the device is to be had."""
        enough = (self.left[counter] >= amount for counter, amount in self.consumes[device].items())
        return device not in self.taken and all(enough)


@dataclass(frozen=True, slots=True)
class Option:
    """``count`` devices (``None``: all of them) for which ``suits`` is true; it may raise. Those for which
    ``admits`` is false are there, and are not given to this option."""

    count: int | None
    suits: Callable[[int], bool]
    admits: Callable[[int], bool] = lambda device: True


@dataclass(frozen=True, slots=True)
class Want:
    """The first of the options that can be met. ``claim`` says which wants belong together."""

    options: Sequence[Option]
    claim: int = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """An attribute, ``values`` by device (D,), ``None`` where it is absent, that all devices of ``members``
    (want, option) have, with one value or (``distinct``) with different ones."""

    values: Sequence[Hashable | None]
    members: AbstractSet[tuple[int, int]]
    distinct: bool = False


@dataclass(frozen=True, slots=True)
class Pick:
    """A device for an option of a want."""

    want: int
    option: int
    device: int


def first_fit(offer: Offer, wants: Sequence[Want], rules: Sequence[Rule] = ()) -> list[Pick] | None:
    """The devices that are found, in the order of the wants; ``None`` where there is no solution.

    Raises ``NoAnswer``, and what ``Option.suits`` raises.
    """
    search = _Search(offer, wants, [_Ruling(rule) for rule in rules])
    try:
        return search.picks if search.want(0) else None
    except _TooMany:
        return None


class _TooMany(Exception):
    """A claim would have more devices than it can, whatever comes before in it."""


@dataclass(slots=True)
class _Ruling:
    """A rule, and what has been picked under it, by want."""

    rule: Rule
    seen: dict[int, Hashable] = field(default_factory=dict)
    count: int = 0

    def add(self, pick: Pick) -> bool:
        if (pick.want, pick.option) not in self.rule.members:
            return True
        value = self.rule.values[pick.device]
        if value is None:
            return False
        if self.count and (value in self.seen.values()) is self.rule.distinct:
            return False
        if self.rule.distinct or not self.count:
            # Of one want only the last value is remembered, as in the allocator.
            self.seen = self.seen | {pick.want: value} if self.rule.distinct else {0: value}
        self.count += 1
        return True

    def remove(self, pick: Pick) -> None:
        if (pick.want, pick.option) in self.rule.members:
            self.count -= 1
            if self.rule.distinct:
                self.seen = {want: value for want, value in self.seen.items() if want != pick.want}


class _Search:
    def __init__(self, offer: Offer, wants: Sequence[Want], rulings: list[_Ruling]) -> None:
        self._offer, self._wants, self._rulings = offer, wants, rulings
        self._left = dict(offer.left)
        self._used: set[int] = set()
        self._steps = _STEPS
        self._devices = range(len(offer.consumes))
        self.picks: list[Pick] = []
        # "All" devices are told before anything is tried.
        self._all = {
            (index, number): [device for device in self._devices if option.suits(device)]
            for index, want in enumerate(wants)
            for number, option in enumerate(want.options)
            if option.count is None
        }

    def want(self, index: int) -> bool:
        """Meet this want and all after it."""
        if index >= len(self._wants):
            return True
        begins = index > 0 and self._wants[index].claim != self._wants[index - 1].claim
        try:
            return self._any_option(index)
        except _TooMany:
            if begins:
                return False
            raise

    def _any_option(self, index: int) -> bool:
        options = self._wants[index].options
        exceeded = 0
        for number in range(len(options)):
            try:
                if self._option(index, number):
                    return True
            except _TooMany:
                exceeded += 1
        if options and exceeded == len(options):
            raise _TooMany
        return False

    def _option(self, index: int, number: int) -> bool:
        option = self._wants[index].options[number]
        claim = self._wants[index].claim
        held = sum(self._wants[pick.want].claim == claim for pick in self.picks)
        devices = self._all.get((index, number), [])
        if held + (len(devices) if option.count is None else option.count) > MOST:
            raise _TooMany
        if option.count is not None:
            return self._some(index, number, option.count, 0)
        return bool(devices) and self._each(index, number, devices)

    def _each(self, index: int, number: int, devices: Sequence[int]) -> bool:
        """Take all of these devices, or none."""
        if not devices:
            return self.want(index + 1)
        pick = Pick(index, number, devices[0])
        if not self._free(pick.device) or not self._wants[index].options[number].admits(pick.device):
            return False
        if not self._take(pick):
            raise NoAnswer("a constraint excludes one of all devices")
        return self._goes_on(pick, lambda: self._each(index, number, devices[1:]))

    def _some(self, index: int, number: int, count: int, start: int) -> bool:
        """Take ``count`` devices from ``start`` on."""
        if count <= 0:
            return self.want(index + 1)
        option = self._wants[index].options[number]
        for device in self._devices[start:]:
            self._steps -= 1
            if self._steps < 0:
                raise NoAnswer("the search for devices takes too long")
            if device in self._used or device in self._offer.taken or not option.suits(device):
                continue
            pick = Pick(index, number, device)
            if not self._free(device) or not option.admits(device) or not self._take(pick):
                continue
            if self._goes_on(pick, partial(self._some, index, number, count - 1, device + 1)):
                return True
        return False

    def _goes_on(self, pick: Pick, rest: Callable[[], bool]) -> bool:
        """Whether the rest can be met beside this pick, which is taken back otherwise."""
        done = False
        try:
            done = rest()
        finally:
            if not done:
                self._give_back(pick)
        return done

    def _free(self, device: int) -> bool:
        if device in self._used or device in self._offer.taken:
            return False
        return all(self._left[counter] >= amount for counter, amount in self._offer.consumes[device].items())

    def _take(self, pick: Pick) -> bool:
        for number, ruling in enumerate(self._rulings):
            if not ruling.add(pick):
                for earlier in self._rulings[:number]:
                    earlier.remove(pick)
                return False
        self._used.add(pick.device)
        self.picks.append(pick)
        for counter, amount in self._offer.consumes[pick.device].items():
            self._left[counter] -= amount
        return True

    def _give_back(self, pick: Pick) -> None:
        for counter, amount in self._offer.consumes[pick.device].items():
            self._left[counter] += amount
        self.picks.pop()
        self._used.remove(pick.device)
        for ruling in self._rulings:
            ruling.remove(pick)
