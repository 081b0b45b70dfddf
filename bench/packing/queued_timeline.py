"""A timeline with queues and spot nodes: pending pods evict others, which return to the queue and repeat the
work that they have not saved. Evicted pods end at once, without a grace period."""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from bench.packing.eviction_rules import (
    ONE_QUEUE,
    EvictionRule,
    Found,
    QueueRules,
    RunningPod,
    could_make_room,
)
from bench.packing.filling import gpus_of
from bench.packing.placer import Placer
from bench.packing.timeline import END, Ended, TimedPod, Timeline
from packing.fleet.feasibility import eviction_may_help, reasons_for
from packing.fleet.node_usage import Allocation
from packing.model.node_spec import NodeSpec
from packing.model.reasons import Reason
from packing.model.request import Request
from packing.victims.rights import Standing, rounds_of


@dataclass(frozen=True, slots=True)
class QueuedPod(TimedPod):
    """A pod of a queue."""

    queue: QueueRules = ONE_QUEUE


@dataclass(frozen=True, slots=True)
class SpotRows:
    """The rows (N,) that are spot nodes, the times of their interruptions, and the duration of an outage.
    Restartable pods prefer them, other pods never use them. Times in seconds."""

    rows: npt.NDArray[np.bool_]
    interruptions: Sequence[tuple[float, int]] = ()
    outage: float = 0.0


@dataclass(frozen=True, slots=True)
class SpotMarket:
    """``share`` of the GPUs are on spot nodes. A spot node costs a fraction ``discount`` less than another,
    is interrupted ``rate`` times per hour on average, and returns after ``outage`` seconds."""

    share: float
    discount: float
    rate: float
    outage: float = 300.0

    def draw(self, nodes: Sequence[NodeSpec], rng: np.random.Generator) -> npt.NDArray[np.bool_]:
        """(N,) which nodes are spot nodes: random ones, until they have the share of the GPUs or more."""
        gpus = np.array([len(node.gpus) for node in nodes])
        order = rng.permutation(len(nodes))
        before = np.cumsum(gpus[order]) - gpus[order]
        spot = np.zeros(len(nodes), bool)
        spot[order] = before < self.share * gpus.sum()
        return spot

    def interruptions(
        self, rows: Sequence[int], start: float, end: float, rng: np.random.Generator
    ) -> Iterator[tuple[float, int]]:
        """(Time in seconds, row) of every interruption between two times: a Poisson process for each row,
        which does not run during an outage."""
        for row in rows:
            now = start
            while self.rate > 0 and (now := now + rng.exponential(3600 / self.rate)) < end:
                yield now, row
                now += self.outage


class _Event(IntEnum):
    """Events, in the order in which simultaneous ones happen, after ``END``."""

    INTERRUPTION = END + 1
    RETURN = END + 2
    MATURITY = END + 3


@dataclass(slots=True)
class _Searches:
    """The rows on which a search for victims may succeed: those that changed since it last failed."""

    changed: npt.NDArray[np.int64]
    failed: dict[Hashable, npt.NDArray[np.int64]] = field(default_factory=dict)

    def failed_at(self, kind: Hashable) -> npt.NDArray[np.int64]:
        """(N,) the state of each row when the last search found no victims there."""
        if kind not in self.failed:
            self.failed[kind] = np.full(self.changed.size, -1)
        return self.failed[kind]


class QueuedTimeline(Timeline):
    """One replay. ``rule`` decides which pods may evict which (None: no evictions)."""

    def __init__(
        self,
        placer: Placer,
        pods: Sequence[QueuedPod],
        rule: EvictionRule | None = None,
        spot: SpotRows | None = None,
    ) -> None:
        super().__init__(placer, pods)
        self._pods, self._rule, self._spot = pods, rule, spot
        self._on_row: list[dict[int, RunningPod]] = [{} for _ in range(self.fleet.arrays.capacity)]
        self._restarts = [0] * len(pods)
        self._disrupted = [-math.inf] * len(pods)
        self._evicted: list[list[float]] = [[] for _ in pods]  # times
        self._searches = _Searches(np.zeros(self.fleet.arrays.capacity, np.int64))
        for time, row in spot.interruptions if spot else ():
            heapq.heappush(self.events, (time, _Event.INTERRUPTION, row, 0.0))

    def priority(self, pod: int) -> int:
        return self._pods[pod].queue.priority

    def kind(self, pod: int) -> Hashable:
        return self._pods[pod].request, self._pods[pod].queue.name

    def place(self, pod: int) -> Allocation | None:
        """A restartable pod is placed on a spot node if possible, other pods never."""
        request = self._pods[pod].request
        if self._spot is None:
            return self.placer.place(request)
        if not self._pods[pod].queue.restartable:
            return self.placer.place(request, ~self._spot.rows)
        return self.placer.place(request, self._spot.rows) or self.placer.place(request)

    def happens(self, what: int, subject: int, started: float, now: float) -> bool:
        if what == _Event.INTERRUPTION:
            for pod in list(self._on_row[subject]):
                self.disrupt(pod, now, Ended.INTERRUPTED)
            self._block(subject, Reason.UNKNOWN_NODE)
            assert self._spot is not None
            heapq.heappush(self.events, (now + self._spot.outage, _Event.RETURN, subject, 0.0))
            return True
        if what == _Event.RETURN:
            self._block(subject, Reason.FITS)
            return True
        if what == _Event.MATURITY:
            runs = self.still_runs(subject, started)
            if runs:
                self._searches.changed[self.running[subject].held.row] += 1
            return runs
        return super().happens(what, subject, started, now)

    def make_room(self, pod: int, now: float, queued: float) -> bool:
        """Evict pods on the node with the lowest cost."""
        best = self._best_victims(pod, now) if self._rule else None
        if best is None:
            return False
        row, victims = best
        for victim in victims:
            self.disrupt(victim.pod, now, Ended.EVICTED)
        allowed = np.zeros(self.fleet.arrays.capacity, bool)
        allowed[row] = True
        held = self.placer.place(self._pods[pod].request, allowed)
        assert held is not None, "the search for victims found room that does not exist"
        self.start(pod, now, queued, held)
        return True

    def start(self, pod: int, now: float, queued: float, held: Allocation) -> None:
        super().start(pod, now, queued, held)
        queue, rule = self._pods[pod].queue, self._rule
        rounds = rounds_of(self._evicted[pod], queue.max_duration)
        standing = rule.standing(queue, now, self._disrupted[pod], rounds) if rule else Standing(0.0)
        gpus = gpus_of(self._pods[pod].request)
        self._on_row[held.row][pod] = RunningPod(pod, queue, gpus, now, held, self._restarts[pod], standing)
        self._searches.changed[held.row] += 1
        for time in (standing.guaranteed_until, standing.overtime_from, standing.shielded_until):
            if now < time < self.end_of(pod):
                heapq.heappush(self.events, (time, _Event.MATURITY, pod, now))

    def disrupt(self, pod: int, now: float, how: Ended) -> None:
        """The pod is evicted or interrupted."""
        lost = self._on_row[self.running[pod].held.row][pod].lost(now)
        self._restarts[pod] += 1
        self._disrupted[pod] = now
        if how is Ended.EVICTED:
            self._evicted[pod].append(now)
        self.stop(pod, now, how, lost)

    def stop(self, pod: int, now: float, how: Ended = Ended.FINISHED, lost: float = 0.0) -> None:
        row = self.running[pod].held.row
        del self._on_row[row][pod]
        self._searches.changed[row] += 1
        super().stop(pod, now, how, lost)

    def _best_victims(self, pod: int, now: float) -> tuple[int, list[RunningPod]] | None:
        """The node with the cheapest victims, and these victims."""
        rule, request = self._rule, self._pods[pod].request
        assert rule is not None
        failed, found = self._searches.failed_at(self.kind(pod)), dict[int, Found]()
        candidates = self._candidates(pod, now, np.flatnonzero(failed != self._searches.changed).tolist())
        helps = eviction_may_help(reasons_for(self.fleet, request)) if any(candidates.values()) else ()
        for row, evictable in candidates.items():
            one: Found | None = None
            if evictable and helps[row] and could_make_room(self.fleet, row, request, evictable):
                one = rule.victims(self.fleet, row, request, evictable, now)
            if one:
                found[row] = one
            else:
                failed[row] = self._searches.changed[row]
        if not found:
            return None
        row = self._least_bad(rule, request, found)
        return row, found[row][1]

    def _least_bad(self, rule: EvictionRule, request: Request, found: Mapping[int, Found]) -> int:
        """The row of the lowest cost, including the cost of the placement there once the victims are
        removed."""
        cost = {row: cost for row, (cost, _) in found.items()}
        if rule.room_seconds and len(found) > 1:
            with self.fleet.without([pod.held for _, victims in found.values() for pod in victims]):
                room = rule.room_seconds * self.placer.price(request)
            cost = {row: (*one[:-1], one[-1] + float(room[row])) for row, one in cost.items()}
        return min(cost, key=cost.__getitem__)

    def _candidates(self, pod: int, now: float, rows: Sequence[int]) -> dict[int, list[RunningPod]]:
        """The pods on each of these rows that the pod may evict; empty for nodes that it may not use."""
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

    def _block(self, row: int, reason: Reason) -> None:
        self.fleet.block(row, reason)
        self._searches.changed[row] += 1
