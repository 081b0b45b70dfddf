"""Replay of a trace with its times and with queues: pods wait until they fit, run, are evicted, run again.

The waiting pods are tried in order of priority, then of their time in the queue, whenever pods have left; one
that does not fit does not hold up those behind it. A pod that fits nowhere may evict others, which go back to
the queue and do again what they have not saved. Evicted pods leave at once, without a grace period.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from packing.fleet.feasibility import eviction_may_help, reasons_for
from packing.fleet.node_usage import Allocation
from packing.model.reasons import Reason
from packing.model.request import Request
from packing.policies.placer import Placer
from packing.replay.eviction_rules import EvictionRule, Found, RunningPod, could_make_room
from packing.replay.timed_pods import Ended, Run, SpotRows, TimedPod
from packing.replay.trace import gpus_of
from packing.victims.rights import Standing, rounds_of


class _Event(IntEnum):
    """In the order in which events of one moment happen."""

    END = 0
    INTERRUPTION = 1
    RETURN = 2
    MATURITY = 3


@dataclass(slots=True)
class _Searches:
    """On which rows a search for victims may find some: those that changed since it found none."""

    changed: npt.NDArray[np.int64]
    failed: dict[tuple[Request, str], npt.NDArray[np.int64]] = field(default_factory=dict)

    def failed_at(self, key: tuple[Request, str]) -> npt.NDArray[np.int64]:
        """(N,) the state of each row when the last search found no victims there."""
        if key not in self.failed:
            self.failed[key] = np.full(self.changed.size, -1)
        return self.failed[key]


class QueuedTimeline:
    """One replay. ``rule`` says who evicts whom (None: nobody)."""

    def __init__(
        self,
        placer: Placer,
        pods: Sequence[TimedPod],
        rule: EvictionRule | None = None,
        spot: SpotRows | None = None,
    ) -> None:
        self._placer, self._fleet, self._pods, self._rule = placer, placer.fleet, pods, rule
        self._spot = spot
        self.running: dict[int, tuple[RunningPod, float]] = {}
        """The pods that run, and since when they had waited."""
        self.runs: list[Run] = []
        self._on_row: list[dict[int, RunningPod]] = [{} for _ in range(self._fleet.arrays.capacity)]
        self._waiting: list[tuple[int, float, int, int]] = []  # priority, queued, rank, pod
        self._left = [pod.duration for pod in pods]
        self._restarts = [0] * len(pods)
        self._disrupted = [-np.inf] * len(pods)
        self._evicted: list[list[float]] = [[] for _ in pods]  # times
        self._searches = _Searches(np.zeros(self._fleet.arrays.capacity, np.int64))
        self._order = np.argsort([pod.created for pod in pods], kind="stable").tolist()
        self._rank = {pod: rank for rank, pod in enumerate(self._order)}
        self._events: list[tuple[float, _Event, int, float]] = []  # time, what, pod or row, start of the run
        for time, row in spot.interruptions if spot else ():
            self._events.append((time, _Event.INTERRUPTION, row, 0.0))
        heapq.heapify(self._events)

    def replay(self, progress: Callable[[float], None] = lambda part: None) -> list[Run]:
        """All runs, in the order in which they ended; those that never end come last, with an infinite end.
        A pod without a run never started."""
        for done, pod in enumerate(self._order):
            if done % 100 == 0:
                progress(done / len(self._order))
            now = self._pods[pod].created
            self._pass_time(now)
            self._arrive(pod, now)
        self._pass_time(float("inf"))
        for running, queued in self.running.values():
            self.runs.append(Run(running.pod, running.held.row, queued, running.started, float("inf")))
        progress(1.0)
        return self.runs

    def _arrive(self, pod: int, now: float) -> None:
        self._placer.arrive(self._pods[pod].request)
        if self._place(pod, now, now):
            return
        if self._preempt(pod, now, now):
            self._try_waiting(now)
        else:
            self._enqueue(pod, now)

    def _pass_time(self, until: float) -> None:
        """All events up to a time; after each moment at which something changed, try the pods that wait."""
        while self._events and self._events[0][0] <= until:
            now, changed = self._events[0][0], False
            while self._events and self._events[0][0] == now:
                _, what, subject, started = heapq.heappop(self._events)
                changed |= self._happens(what, subject, started, now)
            if changed:
                self._try_waiting(now)

    def _happens(self, what: _Event, subject: int, started: float, now: float) -> bool:
        """Whether the event changed anything."""
        if what is _Event.INTERRUPTION:
            for pod in list(self._on_row[subject]):
                self._stop(pod, now, Ended.INTERRUPTED)
            self._block(subject, Reason.UNKNOWN_NODE)
            assert self._spot is not None
            heapq.heappush(self._events, (now + self._spot.outage, _Event.RETURN, subject, 0.0))
            return True
        if what is _Event.RETURN:
            self._block(subject, Reason.FITS)
            return True
        running = self.running.get(subject)
        if running is None or running[0].started != started:
            return False  # it was evicted, and may run anew
        if what is _Event.END:
            self._stop(subject, now, Ended.FINISHED)
        else:
            self._searches.changed[running[0].held.row] += 1
        return True

    def _try_waiting(self, now: float) -> None:
        """Start the waiting pods that fit. After an eviction the first in the queue is tried again."""
        refused: set[tuple[Request, str]] = set()
        place = 0
        while place < len(self._waiting):
            entry = self._waiting[place]
            _, queued, _, pod = entry
            key = self._key(pod)
            if key in refused:
                place += 1
                continue
            if self._place(pod, now, queued):
                del self._waiting[place]
            elif self._preempt(pod, now, queued):
                self._waiting.remove(entry)
                refused.clear()
                place = 0
            else:
                refused.add(key)
                place += 1

    def _place(self, pod: int, now: float, queued: float) -> bool:
        """Start the pod where it fits now; a restartable one on a spot node if it can."""
        request, queue = self._pods[pod].request, self._pods[pod].queue
        if reasons_for(self._fleet, request).all():
            return False  # nowhere, which a policy would find in more time
        allocation = None
        if self._spot is None:
            allocation = self._placer.place(request)
        elif not queue.restartable:
            allocation = self._placer.place(request, ~self._spot.rows)
        else:
            allocation = self._placer.place(request, self._spot.rows) or self._placer.place(request)
        if allocation:
            self._start(pod, now, queued, allocation)
        return allocation is not None

    def _preempt(self, pod: int, now: float, queued: float) -> bool:
        """Start the pod in the place of others, on the node where their eviction is least bad."""
        best = self._best_victims(pod, now) if self._rule else None
        if best is None:
            return False
        row, victims = best
        for victim in victims:
            self._stop(victim.pod, now, Ended.EVICTED)
        allowed = np.zeros(self._fleet.arrays.capacity, bool)
        allowed[row] = True
        allocation = self._placer.place(self._pods[pod].request, allowed)
        assert allocation is not None, "the search for victims found room that is not there"
        self._start(pod, now, queued, allocation)
        return True

    def _best_victims(self, pod: int, now: float) -> tuple[int, list[RunningPod]] | None:
        """The node where the victims are least bad, and these victims."""
        rule, request = self._rule, self._pods[pod].request
        assert rule is not None
        failed, found = self._searches.failed_at(self._key(pod)), dict[int, Found]()
        candidates = self._candidates(pod, now, np.flatnonzero(failed != self._searches.changed).tolist())
        helps = eviction_may_help(reasons_for(self._fleet, request)) if any(candidates.values()) else ()
        for row, evictable in candidates.items():
            one: Found | None = None
            if evictable and helps[row] and could_make_room(self._fleet, row, request, evictable):
                one = rule.victims(self._fleet, row, request, evictable, now)
            if one:
                found[row] = one
            else:
                failed[row] = self._searches.changed[row]
        if not found:
            return None
        row = self._least_bad(rule, request, found)
        return row, found[row][1]

    def _least_bad(self, rule: EvictionRule, request: Request, found: Mapping[int, Found]) -> int:
        """The row of the least cost, with what the placement costs there once the victims are out."""
        cost = {row: cost for row, (cost, _) in found.items()}
        if rule.room_seconds and len(found) > 1:
            with self._fleet.without([pod.held for _, victims in found.values() for pod in victims]):
                room = rule.room_seconds * self._placer.price(request)
            cost = {row: (*one[:-1], one[-1] + float(room[row])) for row, one in cost.items()}
        return min(cost, key=cost.__getitem__)

    def _candidates(self, pod: int, now: float, rows: Sequence[int]) -> dict[int, list[RunningPod]]:
        """The pods on each of these rows that the pod may evict; none on nodes that it must not use."""
        rule, queue, spot = self._rule, self._pods[pod].queue, self._spot
        assert rule is not None
        if spot is not None and not queue.restartable:
            rows = [row for row in rows if not spot.rows[row]]
        running = [one for row in rows for one in self._on_row[row].values()]
        candidates: dict[int, list[RunningPod]] = {row: [] for row in rows}
        for one, may_leave in zip(running, rule.may_evict(queue, running, now).tolist(), strict=True):
            if may_leave:
                candidates[one.held.row].append(one)
        return candidates

    def _start(self, pod: int, now: float, queued: float, held: Allocation) -> None:
        timed, rule = self._pods[pod], self._rule
        rounds = rounds_of(self._evicted[pod], timed.queue.max_duration)
        standing = rule.standing(timed.queue, now, self._disrupted[pod], rounds) if rule else Standing(0.0)
        running = RunningPod(
            pod, timed.queue, gpus_of(timed.request), now, held, self._restarts[pod], standing
        )
        self.running[pod] = running, queued
        self._on_row[held.row][pod] = running
        self._searches.changed[held.row] += 1
        end = now + self._left[pod]
        if np.isfinite(end):
            heapq.heappush(self._events, (end, _Event.END, pod, now))
        for time in (standing.guaranteed_until, standing.overtime_from, standing.shielded_until):
            if now < time < end:
                heapq.heappush(self._events, (time, _Event.MATURITY, pod, now))

    def _stop(self, pod: int, now: float, how: Ended) -> None:
        running, queued = self.running.pop(pod)
        row = running.held.row
        del self._on_row[row][pod]
        self._fleet.give_back(running.held)
        self._searches.changed[row] += 1
        lost = 0.0
        if how is not Ended.FINISHED:
            lost = running.lost(now)
            self._left[pod] -= now - running.started - lost
            self._restarts[pod] += 1
            self._disrupted[pod] = now
            if how is Ended.EVICTED:
                self._evicted[pod].append(now)
            self._enqueue(pod, now)
        self.runs.append(Run(pod, row, queued, running.started, now, how, lost))

    def _enqueue(self, pod: int, now: float) -> None:
        insort(self._waiting, (-self._pods[pod].queue.priority, now, self._rank[pod], pod))

    def _block(self, row: int, reason: Reason) -> None:
        self._fleet.block(row, reason)
        self._searches.changed[row] += 1

    def _key(self, pod: int) -> tuple[Request, str]:
        return self._pods[pod].request, self._pods[pod].queue.name
