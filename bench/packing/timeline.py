"""Replay of a trace with its times: pods wait until they fit, run, and end.

Whenever pods have ended, pending pods are tried in order of arrival; one that does not fit does not block
those behind it.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from bench.packing.placer import Placer
from packing.fleet.feasibility import reasons_for
from packing.fleet.node_usage import Allocation
from packing.model.request import Request


@dataclass(frozen=True, slots=True)
class TimedPod:
    """A pod that arrives at ``created`` and must run for ``duration`` (infinite: forever), in seconds."""

    request: Request
    created: float
    duration: float


class Ended(IntEnum):
    """How a run ended."""

    FINISHED = 0
    EVICTED = 1
    INTERRUPTED = 2


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a pod (index) on a row from ``started`` to ``ended``, after waiting since ``queued``. ``lost``
    is the work that it has to repeat. All in seconds."""

    pod: int
    row: int
    queued: float
    started: float
    ended: float
    how: Ended = Ended.FINISHED
    lost: float = 0.0


@dataclass(frozen=True, slots=True)
class Running:
    """The allocation of a pod since ``started``, after waiting since ``queued`` (seconds)."""

    queued: float
    started: float
    held: Allocation


END = 0
"""The event in which a run ends; subclasses have others, with higher numbers, which come later if
simultaneous."""


class Timeline:
    """One replay: first in, first out, without evictions. A subclass may rank the pods, add events, and make
    room for pending pods."""

    def __init__(self, placer: Placer, pods: Sequence[TimedPod]) -> None:
        self.placer, self.fleet = placer, placer.fleet
        self.running: dict[int, Running] = {}
        self.runs: list[Run] = []
        self.events: list[tuple[float, int, int, float]] = []
        """A heap: time, kind of event, its pod (or row), and the start of the pod's run."""
        self.waiting: list[tuple[int, float, int, int]] = []
        """Negative priority, start of the wait, rank among the arrivals, and the pod; sorted."""
        self._timed = pods
        self._left = [pod.duration for pod in pods]
        self._order: list[int] = np.argsort([pod.created for pod in pods], kind="stable").tolist()
        self._rank = {pod: rank for rank, pod in enumerate(self._order)}

    def replay(self, progress: Callable[[float], None] = lambda part: None) -> list[Run]:
        """All runs, in the order in which they ended; those that never end are last, with an infinite end. A
        pod without a run never started."""
        for done, pod in enumerate(self._order):
            if done % 100 == 0:
                progress(done / len(self._order))
            now = self._timed[pod].created
            self._pass_time(now)
            self._arrive(pod, now)
        self._pass_time(float("inf"))
        for pod, one in self.running.items():
            self.runs.append(Run(pod, one.held.row, one.queued, one.started, float("inf")))
        progress(1.0)
        return self.runs

    def priority(self, pod: int) -> int:
        """Pending pods of higher priority are tried first."""
        return 0

    def kind(self, pod: int) -> Hashable:
        """If one pod of a kind fits now, so do the others."""
        return self._timed[pod].request

    def place(self, pod: int) -> Allocation | None:
        """Place the pod where it fits now."""
        return self.placer.place(self._timed[pod].request)

    def make_room(self, pod: int, now: float, queued: float) -> bool:
        """Start a pod that fits nowhere in place of others, which are stopped."""
        return False

    def happens(self, what: int, subject: int, started: float, now: float) -> bool:
        """Handle an event, by default the end of a run. Returns whether it changed anything."""
        if not self.still_runs(subject, started):
            return False
        self.stop(subject, now)
        return True

    def still_runs(self, pod: int, started: float) -> bool:
        """Whether the run that started then has not ended; the pod may have been evicted and restarted."""
        running = self.running.get(pod)
        return running is not None and running.started == started

    def start(self, pod: int, now: float, queued: float, held: Allocation) -> None:
        """The pod runs from now on, with this allocation."""
        self.running[pod] = Running(queued, now, held)
        end = now + self._left[pod]
        if np.isfinite(end):
            heapq.heappush(self.events, (end, END, pod, now))

    def stop(self, pod: int, now: float, how: Ended = Ended.FINISHED, lost: float = 0.0) -> None:
        """The run ends. A pod that has not finished waits again, and has to repeat the work that is
        ``lost``."""
        one = self.running.pop(pod)
        self.fleet.give_back(one.held)
        self.runs.append(Run(pod, one.held.row, one.queued, one.started, now, how, lost))
        if how is not Ended.FINISHED:
            self._left[pod] -= now - one.started - lost
            self.enqueue(pod, now)

    def enqueue(self, pod: int, now: float) -> None:
        """The pod waits from now on."""
        insort(self.waiting, (-self.priority(pod), now, self._rank[pod], pod))

    def end_of(self, pod: int) -> float:
        """The time when the pod's run ends, unless it is stopped."""
        return self.running[pod].started + self._left[pod]

    def _arrive(self, pod: int, now: float) -> None:
        self.placer.arrive(self._timed[pod].request)
        if self._start_where_it_fits(pod, now, now):
            return
        if self.make_room(pod, now, now):
            self._try_waiting(now)
        else:
            self.enqueue(pod, now)

    def _pass_time(self, until: float) -> None:
        """Handle all events up to a time; after each moment at which something changed, try the pending
        pods."""
        while self.events and self.events[0][0] <= until:
            now, changed = self.events[0][0], False
            while self.events and self.events[0][0] == now:
                _, what, subject, started = heapq.heappop(self.events)
                changed |= self.happens(what, subject, started, now)
            if changed:
                self._try_waiting(now)

    def _try_waiting(self, now: float) -> None:
        """Start the pending pods that fit. If others were evicted, start over with the first in the queue."""
        refused: set[Hashable] = set()
        place = 0
        while place < len(self.waiting):
            entry = self.waiting[place]
            _, queued, _, pod = entry
            kind = self.kind(pod)
            if kind in refused:
                place += 1
            elif self._start_where_it_fits(pod, now, queued):
                del self.waiting[place]
            elif self.make_room(pod, now, queued):
                self.waiting.remove(entry)
                refused.clear()
                place = 0
            else:
                refused.add(kind)
                place += 1

    def _start_where_it_fits(self, pod: int, now: float, queued: float) -> bool:
        if reasons_for(self.fleet, self._timed[pod].request).all():
            return False  # nowhere; a policy would take longer to find this
        if (held := self.place(pod)) is None:
            return False
        self.start(pod, now, queued, held)
        return True
