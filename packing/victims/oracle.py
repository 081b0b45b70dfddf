"""The cheapest victims where only a callback knows whether the preemptor fits, as with ResourceClaims.

The callback must be monotone: after evicting more the preemptor still fits.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from packing.victims.victim import Cost, GangCost, Victims, VictimSet, as_set

Fits = Callable[[frozenset[int]], bool]
"""Whether the preemptor fits without these victims."""
ORACLE_CALLS = 400
_MOST_SETS = 5000
"""Sets that the exact search looks at; most of them need no call."""


def cheapest_by_oracle(
    costs: Sequence[Cost],
    gangs: Sequence[GangCost],
    required: Collection[int],
    fits: Fits,
    budget: int = ORACLE_CALLS,
    gang_of: Sequence[int] = (),
) -> VictimSet | None:
    """The cheapest set found with at most ``budget`` calls of ``fits``, with all ``required`` victims in it;
    None if none is found. ``gang_of``: the index of each victim's gang, -1 for none.

    ``exact`` says whether no cheaper set exists. The first set found is the one that is left when the most
    expensive victims stay, one after the other, as long as the preemptor fits: no victim in it is needless.
    That takes about as many calls as there are victims; the rest of the budget looks for a cheaper one.
    """
    units = _Units(costs, gangs, list(gang_of) or [-1] * len(costs), frozenset(required))
    oracle = _Oracle(fits, budget)
    best: VictimSet | None = None
    try:
        if not oracle.fits(units.everyone):
            return None
        best = units.greedy(oracle)
        needed = frozenset(v for v in units.everyone if not oracle.fits(units.everyone - {v}))
        for candidate in units.sets_by_cost(needed | units.required):
            if best is not None and best.cost <= candidate.cost:
                return best
            if oracle.fits(frozenset(candidate.victims)):
                return candidate
    except _OutOfBudget:
        return best and units.as_set(best.victims, exact=False)
    return best


def cheapest_by_trial(
    victims: Victims,
    gangs: Sequence[GangCost],
    required: Collection[int],
    fits: Fits,
    budget: int,
) -> VictimSet | None:
    """``cheapest_by_oracle`` for victims as arrays."""
    kept = np.flatnonzero(~victims.stays).tolist()
    place = {v: number for number, v in enumerate(kept)}
    if not place.keys() >= set(required):
        return None
    some = victims.only(kept)
    found = cheapest_by_oracle(
        [some.cost_of(number) for number in range(len(some))],
        gangs,
        [place[v] for v in required],
        lambda chosen: fits(frozenset(kept[number] for number in chosen)),
        budget,
        some.gang_of.tolist(),
    )
    return found and replace(found, victims=tuple(kept[number] for number in found.victims))


def reprieve(
    costs: Sequence[Cost],
    gang_of: Sequence[int],
    gangs: Sequence[GangCost],
    required: Collection[int],
    chosen: Collection[int],
    fits: Fits,
) -> frozenset[int]:
    """Those of the ``chosen`` victims that are left when the most expensive ones stay, alone or with their
    whole gang, one after the other, as long as the preemptor fits."""
    return _Units(costs, gangs, gang_of, frozenset(required)).reprieve(frozenset(chosen), fits)


class _OutOfBudget(Exception):
    """No calls are left, or too many sets were looked at."""


@dataclass(slots=True)
class _Oracle:
    """Asks the callback, but not for what follows from earlier answers."""

    callback: Fits
    calls: int
    fitting: list[frozenset[int]] = field(default_factory=list)
    failing: list[frozenset[int]] = field(default_factory=list)

    def fits(self, chosen: frozenset[int]) -> bool:
        if any(known <= chosen for known in self.fitting):
            return True
        if any(chosen <= known for known in self.failing):
            return False
        if self.calls <= 0:
            raise _OutOfBudget
        self.calls -= 1
        answer = self.callback(chosen)
        (self.fitting if answer else self.failing).append(chosen)
        return answer


@dataclass(frozen=True, slots=True)
class _Units:
    """What leaves together: a victim, or a whole gang."""

    costs: Sequence[Cost]
    gangs: Sequence[GangCost]
    gang_of: Sequence[int]
    required: frozenset[int]

    @property
    def everyone(self) -> frozenset[int]:
        return frozenset(range(len(self.costs)))

    def as_set(self, chosen: Collection[int], *, exact: bool = True) -> VictimSet | None:
        return as_set(self.costs, self.gang_of, self.gangs, chosen, exact=exact)

    def greedy(self, oracle: _Oracle) -> VictimSet | None:
        """A set from which nothing can be left out; None if the search meets no set that gangs allow."""
        order = sorted(self.everyone - self.required, key=lambda v: (self._stays_first(v), self.costs[v]))
        fewest, most = 0, len(order)
        while fewest < most:
            middle = (fewest + most) // 2
            if oracle.fits(self.required.union(order[:middle])):
                most = middle
            else:
                fewest = middle + 1
        chosen = self.required.union(order[:most])
        for v in reversed(order[:most]):
            if oracle.fits(chosen - {v}):
                chosen -= {v}
        for gang in {self.gang_of[v] for v in chosen} - {-1}:
            members = self._members(gang)
            if len(members & chosen) > self.gangs[gang].spare:
                chosen |= members
        if self.as_set(chosen) is None:
            return None
        return self.as_set(self.reprieve(chosen, oracle.fits))

    def reprieve(self, chosen: frozenset[int], fits: Fits) -> frozenset[int]:
        found = self.as_set(chosen)
        whole = found.gangs if found else ()
        units = [(self.costs[v], frozenset({v})) for v in chosen if self.gang_of[v] not in whole]
        units += [(cost, self._members(g)) for g in whole if (cost := self.gangs[g].whole) is not None]
        for _, unit in sorted(units, key=lambda unit: unit[0], reverse=True):
            if not unit & self.required and fits(chosen - unit):
                chosen -= unit
        return chosen

    def sets_by_cost(self, needed: frozenset[int]) -> Iterator[VictimSet]:
        """The sets that gangs allow with these victims in them, the cheapest first."""
        units = sorted(self._choices(), key=lambda unit: unit[0])
        start: Cost = (0.0,) * (len(self.costs[0]) if self.costs else 0)
        heap: list[tuple[Cost, int, tuple[int, ...]]] = [(start, 0, ())]
        for _ in range(_MOST_SETS):
            if not heap:
                return
            *_, chosen = heapq.heappop(heap)
            victims = frozenset[int]().union(*(units[i][1] for i in chosen))
            if needed <= victims and (found := self.as_set(victims)):
                gangs = tuple(sorted(units[i][2] for i in chosen if units[i][2] >= 0))
                if gangs == found.gangs:  # else its cost is not that of these units, and others have it
                    yield found
            following = chosen[-1] + 1 if chosen else 0
            if following < len(units):
                for kept in (chosen, chosen[:-1])[: 1 + bool(chosen)]:
                    extended = (*kept, following)
                    size = sum(len(units[i][1]) for i in extended)
                    heapq.heappush(heap, (_sum(units[i][0] for i in extended), size, extended))
        raise _OutOfBudget

    def _choices(self) -> list[tuple[Cost, frozenset[int], int]]:
        """The cost and the victims of each unit that may leave, and the gang that it is (-1: one victim)."""
        alone = [v for v in self.everyone if (g := self.gang_of[v]) < 0 or self.gangs[g].spare > 0]
        units = [(self.costs[v], frozenset({v}), -1) for v in alone]
        for number, gang in enumerate(self.gangs):
            if gang.whole is not None and len(self._members(number)) > gang.spare:
                units.append((gang.whole, self._members(number), number))
        return units

    def _members(self, gang: int) -> frozenset[int]:
        return frozenset(v for v, other in enumerate(self.gang_of) if other == gang)

    def _stays_first(self, v: int) -> bool:
        """Whether the victim is in a gang of which only some may leave."""
        gang = self.gang_of[v]
        return (
            gang >= 0 and self.gangs[gang].whole is None and len(self._members(gang)) > self.gangs[gang].spare
        )


def _sum(costs: Iterable[Cost]) -> Cost:
    return tuple(map(sum, zip(*costs, strict=True)))
