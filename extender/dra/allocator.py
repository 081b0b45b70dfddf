"""Which devices a search that takes the first solution finds: that of Kubernetes' own device allocator.

The search goes through what is wanted in order, and for each wanted device through the offered ones in order;
what cannot be completed is taken back, and the search goes on. Within one want, devices are only tried in the
offered order, so that no set of them is tried twice. Described in k8s.io/dynamic-resource-allocation v0.36.3,
``structured/internal/incubating/allocator_incubating.go``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from extender.k8s.resource_api.objects import Number

MOST = 32
"""Devices that one claim can have (``AllocationResultsMaxSize`` of the API)."""
_STEPS = 50_000
"""Steps before the search is given up: devices and options that are looked at. kube-scheduler stops after ten
seconds."""
_LOOKS = 8
"""Devices that are counted at a time."""
_AT_ONCE = 128
"""Devices of all claims; the search for each is a level of recursion."""

Counter: TypeAlias = Hashable
Amounts: TypeAlias = Mapping[Counter, Number]
_NOTHING: Amounts = {}


class NoAnswer(Exception):
    """The search takes too long, or what is wanted contradicts itself."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What there is, in the order in which it is tried: what each device consumes (D,), what is left of each
    counter, and the devices that are taken.

    Some devices are given out in parts: ``parts`` has the counters of what each of them consists of, which no
    other device consumes. Of those in ``begun`` a part is given out, and with it what the device consumes.
    """

    consumes: Sequence[Amounts]
    left: Amounts
    taken: AbstractSet[int] = frozenset()
    parts: Mapping[int, Collection[Counter]] = field(default_factory=dict)
    begun: AbstractSet[int] = frozenset()

    def has(self, device: int) -> bool:
        """Whether the device is to be had, or something of it."""
        if device in self.taken or any(self.left[counter] <= 0 for counter in self.parts.get(device, ())):
            return False
        enough = (self.left[counter] >= amount for counter, amount in self.consumes[device].items())
        return device in self.begun or all(enough)


@dataclass(frozen=True, slots=True)
class Option:
    """``count`` devices (``None``: all of them) for which ``suits`` is true; it may raise. Those for which
    ``admits`` is false are there, and are not given to this option.

    ``takes`` is what it takes of the parts of a device beside what that consumes, None where a device cannot
    give it. One that ``watches`` has devices beside whoever has them, but not twice in a claim.
    """

    count: int | None
    suits: Callable[[int], bool]
    admits: Callable[[int], bool] = lambda device: True
    takes: Callable[[int], Amounts | None] = lambda device: _NOTHING
    watches: bool = False


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


def first_fit(
    offer: Offer,
    wants: Sequence[Want],
    rules: Sequence[Rule] = (),
    spend: Callable[[int], None] = lambda steps: None,
) -> list[Pick] | None:
    """The devices that are found, in the order of the wants; ``None`` where there is no solution.

    ``spend`` is told of the steps before they are taken, and may raise to end the search. Raises
    ``NoAnswer``, and what ``spend`` and ``Option.suits`` raise.
    """
    search = _Search(offer, wants, [_Ruling(rule) for rule in rules], spend)
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
    def __init__(
        self, offer: Offer, wants: Sequence[Want], rulings: list[_Ruling], spend: Callable[[int], None]
    ) -> None:
        self._offer, self._wants, self._rulings, self._tell = offer, wants, rulings, spend
        self._left = dict(offer.left)
        self._users: defaultdict[int, list[int]] = defaultdict(list)  # claims, by device
        self._held: defaultdict[int, int] = defaultdict(int)  # devices, by claim
        self._steps = _STEPS
        self._devices = range(len(offer.consumes))
        self.picks: list[Pick] = []
        self._paid: list[Amounts] = []  # what each pick has taken
        # "All" devices are told before anything is tried.
        self._all = {
            (index, number): [
                device
                for device in self._devices
                if self._looks(option, device) and self._enough(option.takes(device))
            ]
            for index, want in enumerate(wants)
            for number, option in enumerate(want.options)
            if option.count is None
        }

    def _spend(self, steps: int = 1) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise NoAnswer("the search for devices takes too long")
        self._tell(steps)

    def _looks(self, option: Option, device: int) -> bool:
        self._spend()
        return option.suits(device)

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
        self._spend()
        devices = self._all.get((index, number), [])
        count = len(devices) if option.count is None else option.count
        if self._held[claim] + count > MOST:
            raise _TooMany
        if len(self.picks) + count > _AT_ONCE:
            raise NoAnswer("too many devices are asked for at once")
        if option.count is not None:
            return self._some(index, number, option.count, 0)
        return bool(devices) and self._each(index, number, devices)

    def _each(self, index: int, number: int, devices: Sequence[int]) -> bool:
        """Take all of these devices, or none."""
        if not devices:
            return self.want(index + 1)
        pick, option = Pick(index, number, devices[0]), self._wants[index].options[number]
        if not self._free(option, self._wants[index].claim, pick.device) or not option.admits(pick.device):
            return False
        if (price := self._price(option, pick.device)) is None:
            return False
        if not self._take(pick, price):
            raise NoAnswer("a constraint excludes one of all devices")
        return self._goes_on(pick, lambda: self._each(index, number, devices[1:]))

    def _some(self, index: int, number: int, count: int, start: int) -> bool:
        """Take ``count`` devices from ``start`` on."""
        if count <= 0:
            return self.want(index + 1)
        option, claim = self._wants[index].options[number], self._wants[index].claim
        for device in self._devices[start:]:
            if not (device - start) % _LOOKS:
                self._spend(min(_LOOKS, len(self._devices) - device))
            touched = device in self._offer.taken or self._users.get(device)
            if (touched and not self._free(option, claim, device)) or not option.suits(device):
                continue
            pick, price = Pick(index, number, device), self._price(option, device)
            if price is None or not option.admits(device) or not self._take(pick, price):
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

    def _free(self, option: Option, claim: int, device: int) -> bool:
        """Whether nobody has the device who excludes this."""
        users = self._users.get(device)
        if users and device not in self._offer.parts:
            return option.watches and claim not in users
        return option.watches or device not in self._offer.taken

    def _price(self, option: Option, device: int) -> Amounts | None:
        """What this takes of all counters, None where it cannot be had."""
        price = option.takes(device)
        if price is None:
            return None
        begun = device in self._offer.parts and (device in self._offer.begun or self._users.get(device))
        if not begun:
            price = {**self._offer.consumes[device], **price} if price else self._offer.consumes[device]
        return price if self._enough(price) else None

    def _enough(self, amounts: Amounts | None) -> bool:
        return amounts is not None and all(self._left[counter] >= n for counter, n in amounts.items())

    def _take(self, pick: Pick, price: Amounts) -> bool:
        self._spend(4 + 2 * len(self._rulings) + len(price) // 4)
        for number, ruling in enumerate(self._rulings):
            if not ruling.add(pick):
                for earlier in self._rulings[:number]:
                    earlier.remove(pick)
                return False
        claim = self._wants[pick.want].claim
        self._users[pick.device].append(claim)
        self._held[claim] += 1
        self.picks.append(pick)
        self._paid.append(price)
        for counter, amount in price.items():
            self._left[counter] -= amount
        return True

    def _give_back(self, pick: Pick) -> None:
        for counter, amount in self._paid.pop().items():
            self._left[counter] += amount
        self.picks.pop()
        self._held[self._wants[pick.want].claim] -= 1
        self._users[pick.device].pop()
        for ruling in self._rulings:
            ruling.remove(pick)
