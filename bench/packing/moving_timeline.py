"""A timeline in which small pods are moved so that large ones can start: the rule and the search of the
evictor (``packing.plan``), and as a rival a reservation for the large pod that has waited longest."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.packing.placer import Placer
from bench.packing.timeline import END, Ended, TimedPod, Timeline
from extender.evictor.book import LossBudget, SmallWaits, WaitClock
from packing.fleet.arrays import Floats
from packing.fleet.node_usage import Allocation
from packing.model.request import Request
from packing.plan.move_rule import MoveRule, free_pieces
from packing.plan.room_by_moves import Movable, Moves, Waiting, cheapest_moves
from packing.victims.rights import RESTART, gpu_seconds

LOOK, GRACE = 60.0, 30.0
"""Seconds between two searches for moves, and from the decision until the moved pods have ended."""
_LOOK_EVENT = END + 1


@dataclass(frozen=True, slots=True)
class Ways:
    """The help for large pending pods: others are moved by this ``rule``, and with ``reserve`` no other pod
    may use the node that lacks the least for the first of them. ``checkpoint``: seconds after which every pod
    saves its work (infinite: never)."""

    rule: MoveRule
    move: bool = False
    reserve: bool = False
    checkpoint: float = math.inf


class MovingTimeline(Timeline):
    """One replay. ``blocked``: seconds in which a large pod waits although its number of GPUs is free."""

    def __init__(self, placer: Placer, pods: Sequence[TimedPod], ways: Ways) -> None:
        super().__init__(placer, pods)
        self._pods, self._ways, self.blocked = pods, ways, 0.0
        self._clock, self._budget = WaitClock(), LossBudget(ways.rule)
        self._small = SmallWaits(ways.rule)
        self._moved_at: dict[int, float] = {}
        self._times_moved: dict[int, int] = {}
        self._moving, self._looks = -1, False
        self._reserved: tuple[int, int] | None = None  # pod, row
        self._gpus = float((placer.fleet.arrays.compute_capacity > 0).sum())

    def enqueue(self, pod: int, now: float) -> None:
        if pod != self._moving:
            super().enqueue(pod, now)
            self._look_later(now)

    def start(self, pod: int, now: float, queued: float, held: Allocation) -> None:
        self._small.started(self._pods[pod].request.gpus, now - queued, now)
        super().start(pod, now, queued, held)

    def place(self, pod: int) -> Allocation | None:
        request = self._pods[pod].request
        if self._reserved is None or self._reserved[0] == pod:
            return self.placer.place(request)
        allowed = np.ones(self.fleet.arrays.capacity, np.bool_)
        allowed[self._reserved[1]] = False
        return self.placer.place(request, allowed)

    def happens(self, what: int, subject: int, started: float, now: float) -> bool:
        if what != _LOOK_EVENT:
            return super().happens(what, subject, started, now)
        self._looks = False
        large = {pod: request for *_, pod in self.waiting if self._serves(request := self._pods[pod].request)}
        self._look(large, now)
        self._look_later(now)
        return self._reserved is not None

    def _serves(self, request: Request) -> bool:
        return request.gpus >= self._ways.rule.gpus

    def _look_later(self, now: float) -> None:
        if not self._looks and any(self._serves(self._pods[pod].request) for *_, pod in self.waiting):
            self._looks = True
            heapq.heappush(self.events, (now + LOOK, _LOOK_EVENT, -1, 0.0))

    def _look(self, large: Mapping[int, Request], now: float) -> None:
        """Start the clocks, reserve a node, and move other pods for one pending pod after another."""
        free = {request: int(free_pieces(self.fleet, request).sum()) for request in set(large.values())}
        enough = {pod: free[request] >= request.gpus for pod, request in large.items()}
        self.blocked += LOOK * any(enough.values())
        self._clock.keep([str(pod) for pod in large])
        self._reserve(large)
        hopeless = set[Request]()
        nobody = not self._ways.move or self._small.lately(now)
        for pod, request in large.items():
            waited = self._clock.look(str(pod), now, enough=enough[pod])
            may_lose = min(self._ways.rule.may_lose(request.gpus, waited), self._budget.left(self._gpus, now))
            if nobody or may_lose <= 0 or not enough[pod] or request in hopeless:
                continue
            moves = self._moves(request, now)
            if moves is None or not moves.targets or moves.cost > may_lose:
                hopeless.add(request)
            else:
                self._carry_out(pod, moves, now)

    def _reserve(self, large: Mapping[int, Request]) -> None:
        if self._ways.reserve and (self._reserved is None or self._reserved[0] not in large):
            self._reserved = None
            for pod, request in large.items():
                self._reserved = pod, int(np.argmax(free_pieces(self.fleet, request)))
                return

    def _moves(self, request: Request, now: float) -> Moves | None:
        movable, asked = [], {"waiting": request}
        for pod, one in self.running.items():
            ran, last = now - one.started, self._moved_at.get(pod, -math.inf)
            if ran < self._ways.rule.age or now - last < self._ways.rule.shield:
                continue
            gpus, lost = float(self._pods[pod].request.gpus), ran % self._ways.checkpoint
            cost = float(gpu_seconds(gpus, lost, self._times_moved.get(pod, 0)))
            asked[str(pod)] = self._pods[pod].request
            movable.append(Movable(str(pod), self._pods[pod].request, one.held, cost, kind=gpus))

        def costs(key: str) -> Floats:
            return self.placer.price(asked[key])

        rows = free_pieces(self.fleet, request) > 0
        waiting = [Waiting("waiting", request, rows)]
        return cheapest_moves(self.fleet, waiting, movable, costs, most=self._ways.rule.moves)

    def _carry_out(self, pod: int, moves: Moves, now: float) -> None:
        self._budget.spend(moves.cost, now)
        for key, target in moves.targets.items():
            self._moving = int(key)
            ran = now - self.running[self._moving].started
            self.stop(self._moving, now, Ended.EVICTED, ran % self._ways.checkpoint + RESTART)
            self._moved_at[self._moving] = now
            self._times_moved[self._moving] = self._times_moved.get(self._moving, 0) + 1
            self.fleet.take(target)
            self.start(self._moving, now, now, target)
        self._moving = -1
        (entry,) = (entry for entry in self.waiting if entry[-1] == pod)
        self.waiting.remove(entry)
        self.fleet.take(moves.places["waiting"])
        self.start(pod, now + GRACE, entry[1], moves.places["waiting"])
