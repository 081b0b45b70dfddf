"""The cheapest pods of a node to evict, so that a request fits there at device level.

A *victim* is a pod that may be evicted; what it costs is a vector that is compared lexicographically, the
first component first. Members of a *gang* may leave one by one as long as enough of them remain (``spare``);
beyond that the whole gang leaves, at the gang's cost.

The search is exact up to ``MOST_STEPS`` steps: it describes the node by amounts (``Holdings``), and searches
the GPUs and then the victims by branch and bound (``search_kernels``). The fleet confirms every answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from packing.fleet.feasibility import fits_when_empty, named_gpus, reason_on_row
from packing.fleet.fleet import Fleet
from packing.jit import checked
from packing.model.node_spec import MOST_GPUS
from packing.model.reasons import Reason
from packing.model.request import ANY, WHOLE, Request
from packing.victims.holdings import MOST_AMOUNT, Holdings, mask_of
from packing.victims.needs import overcommitted_amounts, slice_holders
from packing.victims.oracle import cheapest_by_oracle, reprieve
from packing.victims.records import Asked, Leaving, Sizes, Work, view_of, work_for
from packing.victims.search_kernels import FOUND, search_units
from packing.victims.victim import Cost, GangCost, Victim, VictimSet, as_set

__all__ = ["Cost", "GangCost", "Holdings", "Victim", "VictimSearch", "VictimSet", "cheapest_victims"]

MOST_STEPS = 20_000
"""Steps of the search on one node. One takes about a microsecond."""
_MOST_DEVICES = 8
"""Requests for more kinds of counted devices are left to the slow search."""


def cheapest_victims(
    fleet: Fleet,
    row: int,
    request: Request,
    victims: Sequence[Victim],
    gangs: Sequence[GangCost] = (),
    required: Collection[int] = (),
) -> VictimSet | None:
    """The cheapest set, with all ``required`` victims in it, after whose eviction the request fits on the
    node; None if not even all of them are enough. The fleet is unchanged afterwards."""
    return VictimSearch(fleet, request).on(row, victims, gangs, required)


class VictimSearch:
    """Searches victims for one request on the nodes of a fleet. The fleet must not change in between."""

    def __init__(self, fleet: Fleet, request: Request, *, most_steps: int = MOST_STEPS) -> None:
        self.disagreements = 0
        """Answers that the fleet did not confirm, so that the slow search took over."""
        self._fleet, self._request, self._most_steps = fleet, request, most_steps
        self._possible = fits_when_empty(fleet, request)
        self._asked, self._modelled = _asked(fleet, request)
        self._view = view_of(fleet)
        named = None if request.uuids is ANY else named_gpus(fleet, fleet.arrays, request)
        self._named: npt.NDArray[np.uint8] | None = named
        self._work: tuple[Sizes, Work] | None = None

    def on(
        self,
        row: int,
        victims: Sequence[Victim],
        gangs: Sequence[GangCost] = (),
        required: Collection[int] = (),
        holdings: Holdings | None = None,
    ) -> VictimSet | None:
        """As ``cheapest_victims``. ``holdings``: those of these victims, kept from an earlier search."""
        if not self._possible[row]:
            return None
        if holdings is None or not holdings.is_for(self._fleet, row):
            holdings = Holdings.of(self._fleet, row, [victim.held for victim in victims])
        needed = overcommitted_amounts(self._fleet, row, holdings.held)
        if not (self._modelled and holdings.modelled and needed is not None and self._in_bounds(row)):
            return self._slow(row, victims, gangs, required)
        leaving = self._leaving(row, victims, gangs, required, holdings, needed)
        work = self._work_for(holdings, leaving)
        search_units(self._view, self._asked, holdings.held, leaving, work)
        is_cut = work.outcome[1] < 0
        if work.outcome[0] != FOUND:
            return self._slow(row, victims, gangs, required) if is_cut else None
        chosen = _victims_of(work.best_units, leaving)
        if not self._fits_without(row, victims, chosen):
            self.disagreements += 1
            return self._slow(row, victims, gangs, required)
        if is_cut:
            chosen = self._reprieve(row, victims, gangs, required, chosen)
        costs, gang_of = [victim.cost for victim in victims], [victim.gang for victim in victims]
        return as_set(costs, gang_of, gangs, chosen, exact=not is_cut)

    def _slow(
        self, row: int, victims: Sequence[Victim], gangs: Sequence[GangCost], required: Collection[int]
    ) -> VictimSet | None:
        return cheapest_by_oracle(
            [victim.cost for victim in victims],
            gangs,
            required,
            lambda chosen: self._fits_without(row, victims, chosen),
            gang_of=[victim.gang for victim in victims],
        )

    def _reprieve(
        self,
        row: int,
        victims: Sequence[Victim],
        gangs: Sequence[GangCost],
        required: Collection[int],
        chosen: Collection[int],
    ) -> frozenset[int]:
        return reprieve(
            [victim.cost for victim in victims],
            [victim.gang for victim in victims],
            gangs,
            required,
            chosen,
            lambda rest: self._fits_without(row, victims, rest),
        )

    def _fits_without(self, row: int, victims: Sequence[Victim], evicted: Iterable[int]) -> bool:
        with self._fleet.without([held for v in evicted for held in victims[v].held]):
            return reason_on_row(self._fleet, self._request, row) is Reason.FITS

    def _in_bounds(self, row: int) -> bool:
        """Whether no sum of the node's amounts can overflow."""
        arrays = self._fleet.arrays
        free = abs(int(arrays.free_cpu[row])), abs(int(arrays.free_memory[row]))
        return max(self._request.cpu_milli, self._request.memory_bytes, *free) <= MOST_AMOUNT

    def _leaving(
        self,
        row: int,
        victims: Sequence[Victim],
        gangs: Sequence[GangCost],
        required: Collection[int],
        holdings: Holdings,
        needed: npt.NDArray[np.int64],
    ) -> Leaving:
        width = (len(victims[0].cost) if victims else 0) + 1
        cost = np.ones((len(victims), width))
        cost[:, :-1] = [victim.cost for victim in victims]
        gang = np.array([victim.gang for victim in victims], np.int32)
        whole = np.zeros((len(gangs), width))
        for number, one in enumerate(gangs):
            if one.whole is not None and victims:
                whole[number, :-1], whole[number, -1] = one.whole, np.count_nonzero(gang == number)
        flags = np.zeros(len(victims), np.uint8)
        flags[list(required)] = 1
        named = -1 if self._named is None else mask_of(np.flatnonzero(self._named[:, row]).tolist())
        return checked(
            Leaving(
                np.array([row, named, self._most_steps], np.int64),
                cost,
                gang,
                np.array([one.spare for one in gangs], np.int32),
                np.array([one.whole is not None for one in gangs], np.uint8),
                whole,
                flags,
                slice_holders(self._fleet, row, holdings.held),
                needed,
            )
        )

    def _work_for(self, holdings: Holdings, leaving: Leaving) -> Work:
        """The scratch of the last search if it is large enough."""
        held = holdings.held
        gpus, choices = held.slices.size, 2 * len(self._request.devices) + 1
        sizes = Sizes(
            victims=len(leaving.gang),
            gangs=len(leaving.spare),
            entries=held.row.size,
            rows=held.row_start.size - 1,
            gpus=gpus,
            choices=choices,
            targets=choices * (gpus + held.place_gpu.size),
            needs=choices * (3 * gpus + held.place_gpu.size * (1 + int(held.slices.max(initial=0)))),
            width=leaving.cost.shape[1],
        )
        if self._work is not None:
            before = self._work[0]
            if before.width == sizes.width and all(a >= b for a, b in zip(before, sizes, strict=True)):
                return self._work[1]
            most = Sizes(*map(max, before, sizes))
            sizes = most._replace(width=sizes.width)
        self._work = sizes, work_for(sizes)
        return self._work[1]


def _asked(fleet: Fleet, request: Request) -> tuple[Asked, bool]:
    """The request as arrays, and whether the fast search understands it."""
    numbers = [(fleet.names.resources.get(name, -1), count) for name, count in request.devices]
    part = request.shares
    share = [0] * 5
    if part:
        share = [min(part.count, MOST_GPUS + 1), part.compute_milli, part.memory_mib, part.memory_milli, 0]
    share[4] = int(request.island)
    cpu_and_memory = [min(amount, MOST_AMOUNT) for amount in (request.cpu_milli, request.memory_bytes)]
    asked = Asked(
        np.array(cpu_and_memory, np.int64),
        np.array([number for number, _ in numbers], np.int32),
        np.array([count for _, count in numbers], np.int32),
        np.array(share, np.int64),
        np.array([0, WHOLE, 0, WHOLE, 0], np.int64),
    )
    return checked(asked), len(numbers) <= _MOST_DEVICES


def _victims_of(units: npt.NDArray[np.uint8], leaving: Leaving) -> frozenset[int]:
    """The victims in these units."""
    count = len(leaving.gang)
    chosen = np.flatnonzero(units[: count + len(leaving.spare)]).tolist()
    alone = {u for u in chosen if u < count}
    for u in chosen:
        if u >= count:
            alone.update(np.flatnonzero(leaving.gang == u - count).tolist())
    return frozenset(alone)
