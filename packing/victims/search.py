"""The cheapest pods of a node to evict so that a request fits there at device level.

A *victim* is a pod that may be evicted; its cost is a vector that is compared lexicographically. Members of a
*gang* may be evicted one by one as long as enough of them remain (``spare``); beyond that the whole gang is
evicted, at the gang's cost.

The search is greedy: start with evicting all victims, then let as many as possible stay, one by one. The
order determines the remaining set, so several orders are tried, then each unit alone, and then the neighbors
of the best set. The resulting sets are minimal: no unit can be left out. Whether the request fits is
determined by amounts, or by trial where these are not sufficient.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

import numpy as np

from packing.fleet.arrays import Flags, Longs
from packing.fleet.feasibility import fits_when_empty, reason_on_row
from packing.fleet.fleet import Fleet
from packing.model.reasons import Reason
from packing.model.request import Request
from packing.victims.amounts import Holdings, demand_of
from packing.victims.reprieve_kernels import reprieve
from packing.victims.victims import Cost, Recount, Units, Victims, VictimSet

Reprieve: TypeAlias = Callable[[Longs, Flags], Flags]
"""Orders of units (P, M) and sets to evict (Q, U), of which the first P have an order: removes units that may
stay from the sets in place. Returns (Q,) whether the request fits without the whole set."""
Fits: TypeAlias = Callable[[frozenset[int]], bool]
"""Whether the request fits without these victims. If it does, it also fits without any superset."""

_MOST_STEPS = 2
"""Maximum number of steps from a set to a cheaper neighbor."""
_MOST_TRIALS = 400
"""Maximum number of trials on the fleet where amounts are not sufficient. One takes about 0.1 ms."""


class VictimSearch:
    """Searches victims for one request on the nodes of a fleet. Pods may change in between, but nodes must
    not."""

    def __init__(self, fleet: Fleet, request: Request) -> None:
        self._fleet, self._request = fleet, request
        self._possible = fits_when_empty(fleet, request)

    def among(
        self, row: int, holdings: Holdings, victims: Victims, *, roughly: bool = False
    ) -> VictimSet | None:
        """The cheapest set found, including all required victims, after whose eviction the request fits on
        the node; None if none is found. ``holdings``: those of the victims on this node. The fleet is used
        only where amounts are not sufficient to decide, and is unchanged afterwards.

        ``roughly``: faster, but the set may cost a few percent more. A caller that ranks many nodes repeats
        the search for the best one.
        """
        if not self._possible[row]:
            return None
        if not holdings.rows.decide or self._fleet.arrays.overcommitted[row]:

            def fits(chosen: Collection[int]) -> bool:
                evicted = [held for victim in chosen for held in holdings.allocations[victim]]
                with self._fleet.without(evicted):
                    return reason_on_row(self._fleet, self._request, row) is Reason.FITS

            return cheapest_by_trial(victims, fits, _MOST_TRIALS, roughly=roughly)
        units = Units(victims, holdings.parts)
        demand = demand_of(self._fleet, self._request, row, holdings.rows)
        amounts, freed = units.with_gangs(holdings.amounts), np.empty(holdings.rows.count)

        def by_amounts(orders: Longs, sets: Flags) -> Flags:
            fits = np.empty(len(sets), np.bool_)
            reprieve(demand, amounts, orders, sets, freed, fits)
            return fits

        return _cheapest(victims, units, by_amounts, roughly=roughly)


def _cheapest(victims: Victims, units: Units, reprieve: Reprieve, *, roughly: bool) -> VictimSet | None:
    """The cheapest set found, including all required victims; None if there is none. It costs no more than
    the proposed victims, nor than any single unit with the required ones, if these are sufficient.

    ``roughly``: only the orders are tried, unless the first component is recounted and not 0.
    """
    if not units.everyone[list(victims.required)].all():
        return None
    best = _Best(units, reprieve, victims.recount)
    orders = units.orders(victims.recount.stay_first if victims.recount else None)
    best.try_orders(orders)
    if victims.proposed:
        proposed = units.required.copy()
        proposed[list(victims.proposed)] = True
        best.try_sets(proposed[None], orders[:1])
    if not roughly or (victims.recount and best.cost[0]):
        best.try_sets(units.cheaper_units(best.cost), orders[:0])
        best.try_neighbors()
    return None if best.units is None else VictimSet(*units.members(best.units), best.cost)


def cheapest_by_trial(
    victims: Victims, fits: Fits, budget: int, *, roughly: bool = False
) -> VictimSet | None:
    """The cheapest set found with at most ``budget`` calls of ``fits``."""
    units = Units(victims, np.zeros((0, len(victims))))
    return _cheapest(victims, units, _Trials(units, fits, budget), roughly=roughly)


class _Best:
    """The cheapest set of ``units`` (U,) that was tried, and its cost."""

    def __init__(self, units: Units, reprieve: Reprieve, recount: Recount | None) -> None:
        self._units, self._reprieve, self._recount = units, reprieve, recount
        self.units: Flags | None = None
        self.cost: Cost = (np.inf,)

    def try_orders(self, orders: Longs) -> None:
        """Start with evicting all units, in each of these orders (P, M)."""
        self.try_sets(np.repeat(self._units.everyone[None], len(orders), axis=0), orders)

    def try_neighbors(self) -> None:
        """Move to the cheapest neighbor of the best set, as long as it is cheaper."""
        for _ in range(_MOST_STEPS):
            before = self.units
            if before is not None and before.any():
                self.try_orders(self._units.neighbors(before))
            if self.units is before:
                return

    def try_sets(self, sets: Flags, orders: Longs) -> None:
        """Let as many units of each set stay as possible, in its order if it has one (see ``Reprieve``), and
        keep the cheapest set."""
        fits = self._reprieve(orders, sets)
        if self._units.has_gangs:
            fits &= self._units.join_gangs(sets)
            self._reprieve(orders, sets)  # now that whole gangs leave, others or one of these gangs may stay
        costs = sets @ self._units.costs
        if not fits.all():
            costs[~fits] = np.inf
        for p in np.lexsort(costs.T[::-1]).tolist():
            cost = tuple(costs[p].tolist())
            if cost >= self.cost:
                break
            if self._recount:
                cost = self._recount.first(*self._units.members(sets[p])), *cost[1:]
            if cost < self.cost:
                self.cost, self.units = cost, sets[p]


class _Trials:
    """A ``Reprieve`` that calls ``fits`` at most ``budget`` times, and not for sets whose result follows from
    earlier ones. Once the budget is used up, no further units stay."""

    def __init__(self, units: Units, fits: Fits, budget: int) -> None:
        self._units, self._callback, self._left = units, fits, budget
        self._fitting: list[frozenset[int]] = []
        self._failing: list[frozenset[int]] = []

    def __call__(self, orders: Longs, sets: Flags) -> Flags:
        fits = np.array([self._fits(leaving) for leaving in sets], np.bool_)
        for order, leaving, fit in zip(orders.tolist(), sets, fits, strict=False):
            if fit:
                self._reprieve([unit for unit in order if leaving[unit]], leaving)
        return fits

    def _reprieve(self, order: Sequence[int], leaving: Flags) -> None:
        stay, most = 0, len(order)
        while stay < most:  # how many of the first can stay together, by bisection
            middle = (stay + most + 1) // 2
            if self._fits_with(order[:middle], leaving):
                stay = middle
            else:
                most = middle - 1
        leaving[order[:stay]] = False
        for unit in order[stay + 1 :]:
            leaving[unit] = not self._fits_with([unit], leaving)

    def _fits_with(self, units: Sequence[int], leaving: Flags) -> bool:
        """Whether the request fits if these units of the set stay."""
        rest = leaving.copy()
        rest[units] = False
        return self._fits(rest)

    def _fits(self, leaving: Flags) -> bool:
        victims = frozenset(self._units.victims_in(leaving).nonzero()[0].tolist())
        if any(known <= victims for known in self._fitting):
            return True
        if self._left <= 0 or any(victims <= known for known in self._failing):
            return False
        self._left -= 1
        fits = self._callback(victims)
        (self._fitting if fits else self._failing).append(victims)
        return fits
