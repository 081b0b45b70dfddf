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

from packing.fleet.feasibility import fits_when_empty, permitted_gpus, reason_on_row
from packing.fleet.fleet import Fleet
from packing.fleet.separate_gpus import idle_gpus, separation
from packing.jit import checked
from packing.model.node_spec import MOST_GPUS
from packing.model.reasons import Reason
from packing.model.request import WHOLE, Request
from packing.victims.holdings import MOST_AMOUNT, Holdings, mask_of
from packing.victims.needs import overcommitted_amounts, raise_for_peers, slice_holders
from packing.victims.oracle import ORACLE_CALLS, cheapest_by_trial, reprieve
from packing.victims.records import (
    BEST,
    FOUND,
    STEPS,
    Asked,
    Leaving,
    Sizes,
    View,
    Work,
    sizes_for,
    view_of,
    work_for,
)
from packing.victims.victim import GangCost, Victim, Victims, VictimSet, set_of

MOST_STEPS = 20_000
"""Steps of the search on one node. One takes about a microsecond."""
_MOST_DEVICES = 8
"""Requests for more kinds of counted devices are left to the slow search."""


class VictimSearch:
    """Searches victims for one request on the nodes of a fleet. Pods may come and go in between, nodes must
    not change."""

    def __init__(self, fleet: Fleet, request: Request, *, most_steps: int = MOST_STEPS) -> None:
        # Here, because these kernels take longer to compile than all others, and few commands need them.
        from packing.victims.search_kernels import search_units

        self._search_units = search_units
        self.disagreements = 0
        """Answers that the fleet did not confirm, so that the slow search took over."""
        self._fleet, self._request, self._most_steps = fleet, request, most_steps
        self._possible = fits_when_empty(fleet, request)
        self._asked, self._modelled = _asked(fleet, request)
        self._view = view_of(fleet)
        self._permitted = permitted_gpus(fleet, fleet.arrays, request)
        self._work: tuple[Sizes, Work] | None = None

    def on(
        self,
        row: int,
        victims: Sequence[Victim],
        gangs: Sequence[GangCost] = (),
        required: Collection[int] = (),
        *,
        holdings: Holdings | None = None,
        confirm: bool = True,
    ) -> VictimSet | None:
        """``among``, for victims one by one."""
        return self.among(row, Victims.of(victims), gangs, required, holdings=holdings, confirm=confirm)

    def among(
        self,
        row: int,
        victims: Victims,
        gangs: Sequence[GangCost] = (),
        required: Collection[int] = (),
        *,
        holdings: Holdings | None = None,
        confirm: bool = True,
    ) -> VictimSet | None:
        """The cheapest set, with all ``required`` victims in it, after whose eviction the request fits on the
        node; None if not even all of them are enough. The fleet is unchanged afterwards. ``holdings``: those
        of the victims, kept from an earlier search.

        Without ``confirm`` the fleet is not asked, which takes most of the time: for a caller that ranks many
        nodes and asks again for the one that it chooses.
        """
        if not self._possible[row]:
            return None
        if holdings is None or not holdings.is_for(self._fleet, row, victims.held):
            holdings = Holdings.of(self._fleet, row, victims.held)
        needed = overcommitted_amounts(self._fleet, row, holdings.held)
        if not (self._modelled and holdings.modelled and needed is not None and self._in_bounds(row)):
            return self._slow(row, victims, gangs, required)
        if self._request.island:
            needed = raise_for_peers(self._fleet, row, holdings.held, self._request, needed)
        leaving = self._leaving(row, victims, gangs, required, holdings, needed)
        work = self._work_for(holdings, leaving)
        self._search_units(self._view_now(), self._asked, holdings.held, leaving, work)
        is_cut = work.scalars[STEPS] < 0
        if not work.scalars[FOUND]:
            return self._slow(row, victims, gangs, required) if is_cut else None
        chosen = _victims_of(work.ints[BEST], leaving)
        if confirm and not self._fits_without(row, victims, chosen):
            self.disagreements += 1
            return self._slow(row, victims, gangs, required)
        if is_cut:
            chosen = self._reprieve(row, victims, gangs, required, chosen)
        return set_of(victims, gangs, chosen, exact=not is_cut)

    def _view_now(self) -> View:
        """What is free; where devices must be on different GPUs, devices count that certainly are."""
        if separation(self._fleet, self._request) != "require":
            return self._view
        free, fleet = self._view.free_devices.copy(), self._fleet
        for name, count in self._request.devices:
            if count > 1 and (resource := fleet.names.resources.get(name)) is not None:
                free[resource] = idle_gpus(fleet.arrays, resource)
        return self._view._replace(free_devices=free)

    def _slow(
        self, row: int, victims: Victims, gangs: Sequence[GangCost], required: Collection[int]
    ) -> VictimSet | None:
        return cheapest_by_trial(
            victims, gangs, required, lambda chosen: self._fits_without(row, victims, chosen), ORACLE_CALLS
        )

    def _reprieve(
        self,
        row: int,
        victims: Victims,
        gangs: Sequence[GangCost],
        required: Collection[int],
        chosen: Collection[int],
    ) -> frozenset[int]:
        return reprieve(
            [victims.cost_of(v) for v in range(len(victims))],
            victims.gang_of.tolist(),
            gangs,
            required,
            chosen,
            lambda rest: self._fits_without(row, victims, rest),
        )

    def _fits_without(self, row: int, victims: Victims, evicted: Iterable[int]) -> bool:
        with self._fleet.without([held for v in evicted for held in victims.held[v]]):
            return reason_on_row(self._fleet, self._request, row) is Reason.FITS

    def _in_bounds(self, row: int) -> bool:
        """Whether no sum of the node's amounts can overflow."""
        arrays = self._fleet.arrays
        free = abs(int(arrays.free_cpu[row])), abs(int(arrays.free_memory[row]))
        return max(self._request.cpu_milli, self._request.memory_bytes, *free) <= MOST_AMOUNT

    def _leaving(
        self,
        row: int,
        victims: Victims,
        gangs: Sequence[GangCost],
        required: Collection[int],
        holdings: Holdings,
        needed: npt.NDArray[np.int64],
    ) -> Leaving:
        """The record for the kernel; the last component of its costs counts victims."""
        count, components = victims.costs.shape
        cost = np.empty((count, components + 1))
        cost[:, :-1], cost[:, -1] = victims.costs, 1.0
        each = np.zeros((3, count), np.int64)
        each[0], each[2] = victims.gang_of, victims.stays
        if required:
            each[1, list(required)] = 1
        if gangs or each[0].max(initial=-1) >= 0:
            whole, rules = _gang_rules(gangs, victims)
        else:
            whole, rules = np.zeros((0, components + 1)), np.zeros((2, 0), np.int64)
        permitted = self._permitted
        mask = -1 if permitted is None else mask_of(np.flatnonzero(permitted[:, row]).tolist())
        numbers = np.array([row, mask, self._most_steps], np.int64)
        rows = np.array([slice_holders(self._fleet, row, holdings.held), needed])
        # Unchecked: a check takes longer than the search.
        return Leaving(numbers, cost, each, rules, whole, rows)

    def _work_for(self, holdings: Holdings, leaving: Leaving) -> Work:
        """The scratch of the last search if it is large enough."""
        sizes = sizes_for(holdings.held, leaving, 2 * len(self._request.devices) + 1, holdings.most_slices)
        if self._work is not None:
            before = self._work[0]
            if before.width == sizes.width and all(a >= b for a, b in zip(before, sizes, strict=True)):
                return self._work[1]
            sizes = Sizes(*map(max, before, sizes))._replace(width=sizes.width)
        self._work = sizes, work_for(sizes)
        return self._work[1]


def _asked(fleet: Fleet, request: Request) -> tuple[Asked, bool]:
    """The request as arrays, and whether the fast search understands it."""
    numbers = [(fleet.names.resources.get(name, -1), count) for name, count in request.devices]
    part = request.shares
    share = [0] * 4
    if part:
        share = [min(part.count, MOST_GPUS + 1), part.compute_milli, part.memory_mib, part.memory_milli]
    share += [int(request.island), part.slots if part else 1]
    cpu_and_memory = [min(amount, MOST_AMOUNT) for amount in (request.cpu_milli, request.memory_bytes)]
    asked = Asked(
        np.array(cpu_and_memory, np.int64),
        np.array(numbers, np.int64).reshape(len(numbers), 2).T.copy(),
        np.array(share, np.int64),
        np.array([0, WHOLE, 0, WHOLE, 0, 1], np.int64),
    )
    return checked(asked), len(numbers) <= _MOST_DEVICES


def _gang_rules(
    gangs: Sequence[GangCost], victims: Victims
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """``whole`` and ``gangs`` of ``Leaving``."""
    if victims.gang_of.max(initial=-1) >= len(gangs):
        raise ValueError("a victim is in a gang that is not given")
    whole = np.zeros((len(gangs), victims.costs.shape[1] + 1))
    rules = np.zeros((2, len(gangs)), np.int64)
    for number, one in enumerate(gangs):
        rules[:, number] = one.spare, one.whole is not None
        if one.whole is not None and len(victims):
            whole[number, :-1], whole[number, -1] = one.whole, np.count_nonzero(victims.gang_of == number)
    return whole, rules


def _victims_of(units: npt.NDArray[np.int64], leaving: Leaving) -> frozenset[int]:
    """The victims in these units."""
    count, gangs = leaving.victims.shape[1], leaving.gangs.shape[1]
    chosen = units[: count + gangs].nonzero()[0].tolist()
    if not gangs:
        return frozenset(chosen)
    alone = {u for u in chosen if u < count}
    for u in chosen:
        if u >= count:
            alone.update((leaving.victims[0] == u - count).nonzero()[0].tolist())
    return frozenset(alone)
