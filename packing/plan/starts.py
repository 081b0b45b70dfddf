"""Start times of pending requests in many sampled futures.

In each future every running pod has an end time. A request starts on a node as soon as enough pods have ended
there, which is counted by amounts, as for victims; it takes the node where that happens first. Requests ahead
of it in the queue are placed first, and keep their allocations.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from packing.fleet.arrays import Doubles, Flags
from packing.fleet.feasibility import fits_when_empty, reason_on_row
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import allocation_of, freest_gpus
from packing.model.lifetimes import PARTS
from packing.model.reasons import Reason
from packing.model.request import Request
from packing.victims.amounts import Holdings, demand_of
from packing.victims.reprieve_kernels import reprieve

_FIRST_STEP, _STEP, _MOST_STRETCH = 0.7, 0.1, 5.0
"""Logarithms of the maximum stretch of the times: by the first start, by one of many at least, and in
total."""
_MOST_PLACES = 8
"""Maximum number of nodes on which a request is placed, each in different futures."""
_MOST_DUE = 8192
"""Maximum number of results that wait until they are due."""


class Stretch:
    """Learns the factor by which forecast times must be stretched, so that the stated fraction of requests
    starts in time (Gibbs and Candes, "Adaptive conformal inference under distribution shift", 2021). Times
    are in seconds of any clock."""

    def __init__(self) -> None:
        self._logarithm, self._learned = dict.fromkeys(PARTS, 0.0), dict.fromkeys(PARTS, 0)
        self._due: list[tuple[float, float, bool]] = []

    def learn(self, part: float, by: float, *, in_time: bool) -> None:
        """Record whether a request that was to start ``by`` this time with this probability has started in
        time. It counts only from that time on: otherwise early starts would be learned before late ones."""
        if len(self._due) < _MOST_DUE:
            heappush(self._due, (by, part, in_time))

    def times(self, start: Start, now: float) -> tuple[float, ...]:
        """The seconds by which a request starts with each probability of ``PARTS``, infinite for never."""
        while self._due and self._due[0][0] <= now:
            _, part, in_time = heappop(self._due)
            self._learned[part] += 1
            step = max(_STEP, _FIRST_STEP / math.sqrt(self._learned[part]))
            known = self._logarithm[part] + step * (part - in_time)
            self._logarithm[part] = min(max(known, -_MOST_STRETCH), _MOST_STRETCH)
        times = [float(np.quantile(start.times, part, method="higher")) for part in PARTS]
        stretched = (time * math.exp(self._logarithm[part]) for time, part in zip(times, PARTS, strict=True))
        return tuple(accumulate(stretched, max))


class Running(NamedTuple):
    """A pod, its allocations on one node, and the seconds until it ends in each future (S,), infinite for
    never."""

    key: str
    held: tuple[Allocation, ...]
    ends: Doubles


class Start(NamedTuple):
    """The seconds until a request starts in each future (S,), infinite for never. ``row``: where it starts
    most often, -1 for nowhere; ``needs``: the keys of the pods that end before it starts there, in the median
    of these futures. ``elsewhere``: other rows with such keys, and (S,) the futures in which it starts
    there."""

    times: Doubles
    row: int
    needs: tuple[str, ...]
    elsewhere: tuple[tuple[int, tuple[str, ...], Flags], ...] = ()


@dataclass(frozen=True, slots=True)
class _OnRow:
    """The times when a request starts on one node, (S,), and which of its pods must have ended by then,
    (S, V)."""

    pods: Sequence[Running]
    times: Doubles
    leaving: Flags


class StartQueue:
    """Requests in the order in which they are placed. ``running`` returns the present pods of a row; each has
    times in all ``futures``."""

    def __init__(self, fleet: Fleet, running: Callable[[int], Sequence[Running]], futures: int) -> None:
        self._fleet, self._running, self._futures = fleet, running, futures
        self._ahead = defaultdict[int, list[Running]](list)
        self._known = defaultdict[Request, dict[int, _OnRow]](dict)

    def release(self) -> None:
        """Forget all places that were taken."""
        for known in self._known.values():
            for row in self._ahead:
                known.pop(row, None)
        self._ahead.clear()

    def look(self, request: Request, row: int) -> None:
        """Compute when the request starts on this node. Takes about 0.2 ms; other tasks may run between two
        calls."""
        if row not in self._known[request]:
            self._known[request][row] = self._on_row(request, row)

    def candidates(self, request: Request, allowed: Flags, soon: Doubles, most: int) -> list[int]:
        """The rows to consider: of the ``allowed`` ones (N,) where the request fits on the empty node, the
        ``most`` with the most GPUs free ``soon`` (N,)."""
        rows = np.flatnonzero(allowed & fits_when_empty(self._fleet, request))
        nearest: list[int] = rows[np.argsort(-soon[rows], kind="stable")][:most].tolist()
        return nearest

    def start_on(self, request: Request, row: int) -> Start:
        """The start of the request on this row in all futures."""
        self.look(request, row)
        times = self._known[request][row].times
        starts = bool(np.isfinite(times).any())
        return Start(times, row if starts else -1, self._needed(request, row) if starts else ())

    def start(self, request: Request, rows: Sequence[int]) -> Start:
        """The start of the request on any of these rows, which are candidates for it."""
        for row in rows:
            self.look(request, row)
        never = Start(np.full(self._futures, np.inf), -1, ())
        if not rows:
            return never
        times = np.array([self._known[request][row].times for row in rows])
        first, earliest = times.argmin(axis=0), times.min(axis=0)
        starts = np.flatnonzero(np.isfinite(earliest))
        if not starts.size:
            return never
        (place, _), *others = Counter(first[starts].tolist()).most_common(_MOST_PLACES)
        elsewhere = (
            (rows[other], self._needed(request, rows[other]), np.isfinite(earliest) & (first == other))
            for other, _ in others
        )
        return Start(earliest, rows[place], self._needed(request, rows[place]), tuple(elsewhere))

    def _needed(self, request: Request, row: int) -> tuple[str, ...]:
        """The keys of the pods that end before the request starts there, in the median future."""
        there = self._known[request][row]
        median = np.argsort(there.times, kind="stable")[np.isfinite(there.times).sum() // 2]
        return tuple(pod.key for pod, ends in zip(there.pods, there.leaving[median], strict=True) if ends)

    def take(self, key: str, request: Request, start: Start, lasts: Doubles) -> None:
        """Reserve the place of this start for the request for ``lasts`` seconds, (S,): in each future on its
        node."""
        ends = start.times + lasts
        rest = ~np.any([np.zeros(self._futures, np.bool_), *(here for *_, here in start.elsewhere)], axis=0)
        for row, needs, here in ((start.row, start.needs, rest), *start.elsewhere):
            if row >= 0 and self._fleet.specs[row] is not None:
                self._take_on(row, {*needs}, key, request, np.where(here, ends, 0.0))

    def _take_on(self, row: int, needs: set[str], key: str, request: Request, ends: Doubles) -> None:
        """Place the request on this row. In futures in which it does not start there, it ends at once."""
        ahead = self._ahead[row]
        ended = [allocation for pod in self._running(row) if pod.key in needs for allocation in pod.held]
        stays = [allocation for pod in ahead if pod.key not in needs for allocation in pod.held]
        with self._fleet.without(ended), self._fleet.holding(stays):
            held = allocation_of(self._fleet, row, request, freest_gpus(self._fleet, row, request))
        ahead.append(Running(key, (held,), ends))
        for known in self._known.values():
            known.pop(row, None)

    def _on_row(self, request: Request, row: int) -> _OnRow:
        fleet, ahead = self._fleet, self._ahead[row]
        pods = [*self._running(row), *ahead] if fleet.specs[row] else []
        leaving = np.zeros((self._futures, len(pods)), np.bool_)
        if fleet.specs[row] is None:
            return _OnRow(pods, np.full(self._futures, np.inf), leaving)
        ends = np.array([pod.ends for pod in pods]).reshape(len(pods), self._futures).T
        leaving[:], fits = np.isfinite(ends), np.empty(self._futures, np.bool_)
        with fleet.holding([allocation for pod in ahead for allocation in pod.held]):
            holdings = Holdings.of(fleet, row, [pod.held for pod in pods])
            if not holdings.rows.decide or fleet.arrays.overcommitted[row]:
                fits = self._by_trial(request, row, pods, ends, leaving)
            else:
                demand = demand_of(fleet, request, row, holdings.rows)
                latest_first = np.ascontiguousarray(np.argsort(-ends, axis=1, kind="stable"))
                freed = np.empty(holdings.rows.count)
                reprieve(demand, holdings.amounts, latest_first, leaving, freed, fits)
        times = np.where(leaving, ends, 0.0).max(axis=1, initial=0.0)
        return _OnRow(pods, np.where(fits, times, np.inf), leaving)

    def _by_trial(
        self, request: Request, row: int, pods: Sequence[Running], ends: Doubles, leaving: Flags
    ) -> Flags:
        """Find the starts by trial where amounts are not sufficient: remove the pods in the order in which
        they end, until the fleet confirms that the request fits. Sets ``leaving``; returns whether it ever
        fits, (S,)."""

        @cache
        def fits(gone: frozenset[int]) -> bool:
            with self._fleet.without([allocation for number in gone for allocation in pods[number].held]):
                return reason_on_row(self._fleet, request, row) is Reason.FITS

        for order, leaves in zip(np.argsort(ends, axis=1, kind="stable"), leaving, strict=True):
            first = [number for number in order.tolist() if leaves[number]]
            least = bisect_left(range(len(first) + 1), x=True, key=lambda n: fits(frozenset(first[:n])))
            leaves[first[least:]] = False
        return np.array([fits(frozenset(np.flatnonzero(flags).tolist())) for flags in leaving], np.bool_)
