"""Which few moves free the most: a branch and bound over what could become free, and the pods in its way.

Something (a GPU, a node) becomes free when all pods on it have moved. A pod may be in the way of several.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

Pods = frozenset[Hashable]


class Trial(Protocol):
    """Moves that are tried one after another and taken back in reverse order."""

    def free(self, unit: int) -> bool:
        """Move what is still in the way of a unit; False, and nothing has moved, if that is not possible."""

    def take_back(self) -> None:
        """Undo the last ``free`` that succeeded."""


@dataclass(frozen=True, slots=True)
class Freed:
    """``units`` in the order in which they become free; no choice frees more than ``at_most``."""

    units: tuple[int, ...]
    at_most: int


def most_freed(units: Sequence[Pods], moves: int) -> int:
    """An upper bound on how many units so few moves free, wherever the pods go.

    A pod in the way of several units counts for a part of each, so the cheapest units by this measure are a
    bound: any set of units has at least the sum of its parts in pods.
    """
    in_the_way = Counter(pod for unit in units for pod in unit)
    costs = sorted(sum(1 / in_the_way[pod] for pod in unit) for unit in units)
    count, spent = 0, 0.0
    for cost in costs:
        spent += cost
        if spent > moves + 1e-9:
            break
        count += 1
    return count


def free_most(units: Sequence[Pods], moves: int, trial: Trial, tries: int = 400) -> Freed:
    """The best choice that ``tries`` attempts find, cheapest units first. The trial ends as it began."""
    order = sorted((u for u in range(len(units)) if 0 < len(units[u]) <= moves), key=lambda u: len(units[u]))
    bound = most_freed([units[u] for u in order], moves)
    search = _Search(units, moves, trial, tries, bound)
    search.extend(order, frozenset())
    return Freed(tuple(search.best), bound)


class _Search:
    def __init__(self, units: Sequence[Pods], moves: int, trial: Trial, tries: int, bound: int) -> None:
        self._units, self._moves, self._trial = units, moves, trial
        self._left, self._bound = tries, bound
        self._chosen: list[int] = []
        self.best: list[int] = []

    def extend(self, order: Sequence[int], moved: Pods) -> None:
        """Try every choice of further units in ``order`` that may beat the best one."""
        for place, unit in enumerate(order):
            rest = [self._units[other] - moved for other in order[place:]]
            if len(self._chosen) + most_freed(rest, self._moves - len(moved)) <= len(self.best):
                return
            if self._left <= 0 or len(self.best) >= self._bound:
                return
            after = moved | self._units[unit]
            if len(after) > self._moves:
                continue
            self._left -= 1
            if not self._trial.free(unit):
                continue
            self._chosen.append(unit)
            if len(self._chosen) > len(self.best):
                self.best = list(self._chosen)
            self.extend(order[place + 1 :], after)
            self._chosen.pop()
            self._trial.take_back()
