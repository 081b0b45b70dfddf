"""The cheapest pods of a node to evict, so that a request fits there at device level.

A *victim* is a pod that may be evicted; what it costs is a vector that is compared lexicographically, the
first component first. Members of a *gang* may leave one by one as long as enough of them remain (``spare``);
beyond that the whole gang leaves, at the gang's cost.

The search is greedy (``cheapest``) on amounts (``Holdings``, ``demand_of``), and the fleet confirms the
answer. Where amounts do not decide, the same search asks the fleet at each step.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import numpy as np

from packing.fleet.arrays import Longs
from packing.fleet.feasibility import fits_when_empty, reason_on_row
from packing.fleet.fleet import Fleet
from packing.model.reasons import Reason
from packing.model.request import Request
from packing.victims.demand import demand_of
from packing.victims.greedy import cheapest, cheapest_by_trial
from packing.victims.holdings import Holdings
from packing.victims.reprieve_kernels import reprieve
from packing.victims.units import Flags, Units
from packing.victims.victim import Victims, VictimSet

_MOST_TRIALS = 400
"""Questions to the fleet where amounts do not decide. One takes about 0.1 ms."""


class VictimSearch:
    """Searches victims for one request on the nodes of a fleet. Pods may come and go in between, nodes must
    not change."""

    def __init__(self, fleet: Fleet, request: Request) -> None:
        self._fleet, self._request = fleet, request
        self._possible = fits_when_empty(fleet, request)

    def among(
        self,
        row: int,
        victims: Victims,
        *,
        holdings: Holdings | None = None,
        confirm: bool = True,
        roughly: bool = False,
    ) -> VictimSet | None:
        """The cheapest set that is found, with all required victims in it, after whose eviction the request
        fits on the node; None if none is found. The fleet is unchanged afterwards. ``holdings``: those of the
        victims, kept from an earlier search.

        A caller that ranks many nodes, and asks again for those that it chooses, saves most of the time:
        without ``confirm`` the fleet is not asked, and a ``roughly`` found set may cost some percent more.
        """
        if not self._possible[row]:
            return None
        fits = partial(self._fits_without, row, victims)
        if holdings is None or not holdings.is_for(self._fleet, row, victims.held):
            holdings = Holdings.of(self._fleet, row, victims.held)
        if holdings.rows.decide and not self._fleet.arrays.overcommitted[row]:
            found = self._by_amounts(row, victims, holdings, roughly=roughly)
            if found is None or not confirm or fits(found.victims):
                return found
        return cheapest_by_trial(victims, fits, _MOST_TRIALS, roughly=roughly)

    def _by_amounts(
        self, row: int, victims: Victims, holdings: Holdings, *, roughly: bool
    ) -> VictimSet | None:
        units = Units(victims, holdings.parts)
        demand = demand_of(self._fleet, self._request, row, holdings.rows)
        amounts, freed = units.with_gangs(holdings.amounts), np.empty(holdings.rows.count)

        def by_amounts(orders: Longs, sets: Flags) -> Flags:
            fits = np.empty(len(sets), np.bool_)
            reprieve(demand, amounts, orders, sets, freed, fits)
            return fits

        return cheapest(victims, units, by_amounts, roughly=roughly)

    def _fits_without(self, row: int, victims: Victims, evicted: Collection[int]) -> bool:
        with self._fleet.without([held for v in evicted for held in victims.held[v]]):
            return reason_on_row(self._fleet, self._request, row) is Reason.FITS
