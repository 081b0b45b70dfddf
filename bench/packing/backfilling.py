"""Reservations for large jobs in a world with a queue, by the code of the service, and what is known of ends.

``today``: none. ``strict``: once a large job has waited, nothing else starts. ``unknown``: nodes are
reserved, and no other pod may use them. ``learned``, ``limits``, ``known``: pods may use them that will have
ended by then: by the 80 % end of their owner's runs, by their declared limit, or for certain.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cache
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from extender.cluster.end_costs import EVERY
from packing.fleet.arrays import Doubles
from packing.fleet.fleet import Fleet
from packing.fleet.network import DomainIds
from packing.fleet.node_usage import Allocation
from packing.model.lifetimes import Lifetimes, stratified
from packing.model.request import Request
from packing.plan.backfill import (
    Choice,
    LargeJob,
    Question,
    Reservations,
    Rules,
    is_large,
    renewal,
    renewed,
    soonest,
)
from packing.plan.starts import Running, StartQueue

Way: TypeAlias = Literal["today", "strict", "unknown", "learned", "limits", "known"]
WAYS: Sequence[Way] = ("today", "strict", "unknown", "learned", "limits", "known")
FUTURES = 16
_ADMITTED = 0.8
_PER_LIFE = 40
"""Times that nodes are chosen in a mean run time."""


@cache
def _futures_of(number: int) -> Doubles:
    return stratified(number, FUTURES)


class Job(NamedTuple):
    """A job of a world. ``limit``: the declared one, infinite for none."""

    number: int
    request: Request
    gang: int
    rows: npt.NDArray[np.bool_]
    in_domain: bool
    gpus: float
    time: float
    duration: float
    owner: int | None
    priority: int
    limit: float

    def kinds(self) -> tuple[Hashable, ...]:
        like = ("size", self.gpus), EVERY
        return like if self.owner is None else (("owner", self.owner), *like)


class Backfilling:
    """The reservations of one world, and its running jobs with their allocations."""

    def __init__(self, way: Way, fleet: Fleet, domains: DomainIds, life: float) -> None:
        self.way, self._fleet, self._life = way, fleet, life
        self._domains = domains
        self._rules = Rules(life / 4, 6 * life, life / _PER_LIFE)  # as the defaults of the settings
        self.reservations = Reservations()
        self._lifetimes = Lifetimes()
        self._running: dict[int, tuple[Job, float, Sequence[Allocation]]] = {}
        self._on_row: defaultdict[int, set[int]] = defaultdict(set)
        self._large: dict[tuple[Request, int], bool] = {}
        self._renewed, self._started = -math.inf, set[str]()
        self._blocks = ""

    def starts(self, job: Job, now: float, held: Sequence[Allocation]) -> None:
        self._running[job.number] = job, now, held
        self._started.add(str(job.number))
        for allocation in held:
            self._on_row[allocation.row].add(job.number)

    def ends(self, job: Job) -> None:
        *_, held = self._running.pop(job.number)
        self._lifetimes.ended(job.kinds(), job.duration, job.limit if self.way == "limits" else math.inf)
        for allocation in held:
            self._on_row[allocation.row].discard(job.number)

    def closed_to(self, job: Job, now: float) -> tuple[str, ...]:
        """The nodes that are reserved for others."""
        if self._blocks not in ("", str(job.number)):
            return tuple(self._fleet.rows)
        current = [other for other in self.reservations.current if other.key not in self._started]
        ends = now + self._latest(job) if current else 0.0
        closed = (other for other in current if other.key != str(job.number))
        closed = (other for other in closed if not other.admits(job.priority, ends))
        return tuple(node for other in closed for node in other.nodes)

    def renew(self, waiting: Sequence[Job], now: float) -> None:
        """Choose anew if it is time; a job that has started releases its nodes at once."""
        released = any(old.key in self._started for old in self.reservations.current)
        if self.way == "today" or (now < self._renewed + self._life / _PER_LIFE and not released):
            return
        large = [job for job in waiting if self._is_large(job)]
        if self.way == "strict":
            old = [str(job.number) for job in large if now - job.time >= self._rules.after]
            self._blocks = old[0] if old else ""
            return
        self._count_idle(now)
        if not (large or self.reservations.current):
            self._started = set()
            return
        pending = [
            LargeJob(
                str(job.number),
                str(job.owner),
                job.request,
                job.gang,
                job.priority,
                job.time,
                job.rows,
                self._level() if job.in_domain else None,
            )
            for job in large
        ]
        self._count_running(now)
        soon = self._soon(now)

        queue = StartQueue(self._fleet, self._running_on, FUTURES)

        def answer(question: Question) -> Choice | None:
            queue.release()
            return soonest(self._fleet, queue, question, soon, now)

        renewing = renewal(self.reservations, pending, self._started, now, self._rules)
        self.reservations = renewed(renewing, answer)
        self._started = set()

    def _count_idle(self, now: float) -> None:
        free, old = self._fleet.arrays.free_parts().sum(axis=0), self.reservations
        held = [free[[self._fleet.rows[node] for node in one.nodes]].sum() for one in old.current]
        more = [float(now - self._renewed) * float(gpus) for gpus in held]
        current = (one._replace(idle=one.idle + idle) for one, idle in zip(old.current, more, strict=True))
        self.reservations, self._renewed = replace(old, current=tuple(current)), now

    def _level(self) -> npt.NDArray[np.int32]:
        return next((ids for ids in self._domains if (ids >= 0).any()), self._domains[0])

    def _is_large(self, job: Job) -> bool:
        kind = job.request, job.gang
        if kind not in self._large:
            self._large[kind] = is_large(self._fleet, job.request, job.gang, job.rows)
        return self._large[kind]

    def _count_running(self, now: float) -> None:
        ages = defaultdict[Hashable, list[float]](list)
        for job, since, _ in self._running.values():
            for kind in job.kinds():
                ages[kind].append(now - since)
        self._lifetimes.count_running(ages)
        self._remaining = {
            number: self._left(job, now - since) for number, (job, since, _) in self._running.items()
        }

    def _soon(self, now: float) -> Doubles:
        soon: Doubles = self._fleet.arrays.free_parts().sum(axis=0, dtype=np.float64)
        for number, (_, _, held) in self._running.items():
            left = float(np.median(self._remaining[number]))
            for allocation in held:
                gpus = sum(count for _, count in allocation.devices)
                soon[allocation.row] += gpus / (1 + left / self._life)
        return soon

    def _running_on(self, row: int) -> list[Running]:
        found = []
        for number in sorted(self._on_row[row]):
            held = tuple(allocation for allocation in self._running[number][2] if allocation.row == row)
            found.append(Running(str(number), held, self._remaining[number]))
        return found

    def _left(self, job: Job, age: float) -> Doubles:
        if self.way == "known":
            return (job.duration - age) * np.ones(FUTURES)
        if self.way == "unknown":
            return self._lifetimes.usual.remaining(0.0, _futures_of(job.number))
        limit = job.limit if self.way == "limits" else math.inf
        lifetime = self._lifetimes.of(*job.kinds(), limit=limit) or self._lifetimes.usual
        left = lifetime.remaining(age, _futures_of(job.number))
        ends: Doubles = np.minimum(left, max(limit - age, 0.0))
        return ends

    def _latest(self, job: Job) -> float:
        if self.way == "known":
            return job.duration
        if self.way == "limits":
            return job.limit
        lifetime = self._lifetimes.of(*job.kinds()) if self.way == "learned" else None
        return float(lifetime.remaining(0.0, np.array([_ADMITTED]))[0]) if lifetime else math.inf
