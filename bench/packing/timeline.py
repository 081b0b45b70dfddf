"""Replay of a trace with its times: pods wait until they fit, run, and leave.

The waiting pods are tried in the order in which they came, whenever pods have left; one that does not fit
does not hold up those behind it.
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
    """A pod that arrives at ``created`` and must run for ``duration`` (infinite: for ever), in seconds."""

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
    """A pod (index) ran on a row from ``started`` to ``ended``, after it had waited since ``queued``.
    ``lost`` is the work that it has to do again. All in seconds."""

    pod: int
    row: int
    queued: float
    started: float
    ended: float
    how: Ended = Ended.FINISHED
    lost: float = 0.0


@dataclass(frozen=True, slots=True)
class Running:
    """What a pod holds since ``started``, after it had waited since ``queued`` (seconds)."""

    queued: float
    started: float
    held: Allocation


END = 0
"""The event in which a run ends; a subclass has others, with higher numbers, which come later if at the same
time."""


class Timeline:
    """One replay: first in, first out, and nobody is evicted. A subclass may rank the pods, add events, and
    make room for pods that wait."""

    def __init__(self, placer: Placer, pods: Sequence[TimedPod]) -> None:
        self.placer, self.fleet = placer, placer.fleet
        self.running: dict[int, Running] = {}
        self.runs: list[Run] = []
        self.events: list[tuple[float, int, int, float]] = []
        """A heap: time, what happens, to which pod (or row), and the start of the pod's run."""
        self.waiting: list[tuple[int, float, int, int]] = []
        """Minus the priority, since when it waits, its rank among the arrivals, and the pod; sorted."""
        self._timed = pods
        self._left = [pod.duration for pod in pods]
        self._order: list[int] = np.argsort([pod.created for pod in pods], kind="stable").tolist()
        self._rank = {pod: rank for rank, pod in enumerate(self._order)}

    def replay(self, progress: Callable[[float], None] = lambda part: None) -> list[Run]:
        """All runs, in the order in which they ended; those that never end come last, with an infinite end.
        A pod without a run never started."""
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
        """Waiting pods of higher priority are tried first."""
        return 0

    def kind(self, pod: int) -> Hashable:
        """Of pods of one kind, one fits now if another does."""
        return self._timed[pod].request

    def place(self, pod: int) -> Allocation | None:
        """Take a place for the pod where it fits now."""
        return self.placer.place(self._timed[pod].request)

    def make_room(self, pod: int, now: float, queued: float) -> bool:
        """Start a pod that fits nowhere in the place of others, which ``stop``."""
        return False

    def happens(self, what: int, subject: int, started: float, now: float) -> bool:
        """An event, by default the end of a run. Whether it changed anything."""
        if not self.still_runs(subject, started):
            return False
        self.stop(subject, now)
        return True

    def still_runs(self, pod: int, started: float) -> bool:
        """Whether the run that began then has not ended; the pod may have been evicted, and run anew."""
        running = self.running.get(pod)
        return running is not None and running.started == started

    def start(self, pod: int, now: float, queued: float, held: Allocation) -> None:
        """The pod runs from now on, with this place."""
        self.running[pod] = Running(queued, now, held)
        end = now + self._left[pod]
        if np.isfinite(end):
            heapq.heappush(self.events, (end, END, pod, now))

    def stop(self, pod: int, now: float, how: Ended = Ended.FINISHED, lost: float = 0.0) -> None:
        """The run ends. A pod that has not finished waits again, and has to do what is ``lost`` again."""
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
        """When the pod's run ends, if nobody stops it."""
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
        """All events up to a time; after each moment at which something changed, try the pods that wait."""
        while self.events and self.events[0][0] <= until:
            now, changed = self.events[0][0], False
            while self.events and self.events[0][0] == now:
                _, what, subject, started = heapq.heappop(self.events)
                changed |= self.happens(what, subject, started, now)
            if changed:
                self._try_waiting(now)

    def _try_waiting(self, now: float) -> None:
        """Start the waiting pods that fit. If others had to leave, the first in the queue is tried again."""
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
            return False  # nowhere, which a policy would find in more time
        if (held := self.place(pod)) is None:
            return False
        self.start(pod, now, queued, held)
        return True
