"""Victims of a pending pod on a node, under the rules of queues and under those of kube-scheduler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from packing.fleet.arrays import Flags
from packing.fleet.feasibility import reason_on_row
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.model.reasons import Reason
from packing.model.request import Request
from packing.victims.amounts import Holdings
from packing.victims.rights import (
    ROOM_SECONDS,
    EvictionVerdict,
    Relations,
    Standing,
    gpu_seconds,
    longest_run,
    may_preempt,
    may_take_over,
    verdicts,
)
from packing.victims.search import VictimSearch
from packing.victims.victims import Victims

SHIELD = 600.0
"""Default seconds after an eviction or interruption for which a pod is not evicted."""
_PRIORITY_OFFSET = 1 << 31
"""kube-scheduler adds MaxInt32 + 1 to priorities before it sums them."""
_MOST_SEARCHES = 512


@dataclass(frozen=True, slots=True)
class QueueRules:
    """The rules of a queue. Times in seconds.

    Pods of higher ``priority`` are tried first, and may evict pods of lower priority in the queues listed in
    ``preempts``, once these have run for ``min_runtime``. A pod that has run for ``max_duration`` (longer
    after each eviction) may also be evicted for a pod of equal priority. A pod saves its work every
    ``checkpoint_interval`` (infinite: never) and loses the rest. ``restartable`` pods may run on spot nodes.
    """

    name: str = ""
    priority: int = 0
    preempts: frozenset[str] = frozenset()
    min_runtime: float = 0.0
    max_duration: float = math.inf
    checkpoint_interval: float = math.inf
    restartable: bool = False

    def saved(self, ran: float) -> float:
        """Seconds of work that are not lost if the pod is evicted after it ``ran`` for this long."""
        if math.isinf(self.checkpoint_interval):
            return 0.0
        return ran // self.checkpoint_interval * self.checkpoint_interval


ONE_QUEUE = QueueRules()
"""For pods without queues: first in, first out, without evictions."""


@dataclass(frozen=True, slots=True)
class RunningPod:
    """A pod (index) that has been running since ``started`` (seconds): its queue, its requested GPUs, and its
    allocation. It was evicted or interrupted ``restarts`` times before."""

    pod: int
    queue: QueueRules
    gpus: float
    started: float
    held: Allocation
    restarts: int = 0
    standing: Standing = Standing(0.0)  # noqa: RUF009

    def lost(self, now: float) -> float:
        """Seconds of work lost if it is evicted now."""
        ran = now - self.started
        return ran - self.queue.saved(ran)


Found = tuple[tuple[float, ...], list[RunningPod]]
"""The cost of the victims of a node, for comparison between nodes, and the victims."""


def could_make_room(fleet: Fleet, row: int, request: Request, candidates: Sequence[RunningPod]) -> bool:
    """False only if the request would not fit on this node even without all the candidates. A cheap test by
    sums of CPU, memory and compute, before a search."""
    arrays, held = fleet.arrays, [candidate.held for candidate in candidates]
    if sum(one.cpu_milli for one in held) + int(arrays.free_cpu[row]) < request.cpu_milli:
        return False
    if sum(one.memory_bytes for one in held) + int(arrays.free_memory[row]) < request.memory_bytes:
        return False
    if (part := request.shares) is None:
        return True
    milli: list[float] = arrays.compute[:, row].tolist()
    for one in held:
        for gpu, freed, _ in one.shares:
            milli[gpu] += freed
    return sum(free >= part.compute_milli for free in milli) >= part.count


class EvictionRule(Protocol):
    """Decides which pods a pod may evict, and the victims on a node. The last number of a cost includes
    ``room_seconds`` x the policy's cost of placing the pod there."""

    room_seconds: float

    def standing(self, queue: QueueRules, started: float, disrupted: float, rounds: int) -> Standing:
        """The protection of a pod of the queue that starts now. ``disrupted``: time of its last eviction or
        interruption; ``rounds`` as in ``longest_run``. Times in seconds."""

    def may_evict(self, queue: QueueRules, victims: Sequence[RunningPod], now: float) -> Flags:
        """(V,) whether pods of the queue may evict these pods now."""

    def victims(
        self, fleet: Fleet, row: int, request: Request, candidates: Sequence[RunningPod], now: float
    ) -> Found | None:
        """The pods to evict among the candidates on this node so that the request fits; None if even all of
        them are not sufficient."""


class CheapestVictims:
    """The rights of the queues, and the cheapest set of ``packing.victims``. A pod that was evicted or
    interrupted is shielded for ``shield`` seconds.

    The cost is the service's (docs/preemption.md) without disruption budgets: GPU-seconds by priority, the
    highest first.
    """

    room_seconds = ROOM_SECONDS

    def __init__(self, priorities: Sequence[int], shield: float = SHIELD) -> None:
        self._place = {p: i for i, p in enumerate(sorted(set(priorities), reverse=True))}
        self._shield = shield
        self._nodes: tuple[Fleet, bytes] | None = None
        self._searches: dict[Request, VictimSearch] = {}

    def standing(self, queue: QueueRules, started: float, disrupted: float, rounds: int) -> Standing:
        return Standing(
            queue.priority,
            guaranteed_until=started + queue.min_runtime,
            overtime_from=started + longest_run(queue.max_duration, rounds),
            shielded_until=disrupted + self._shield,
        )

    def may_evict(self, queue: QueueRules, victims: Sequence[RunningPod], now: float) -> Flags:
        own, preempts, names = queue.name, queue.preempts, [victim.queue.name for victim in victims]
        lower = np.array([may_preempt(own, preempts, name) for name in names], np.bool_)
        equals = np.array([may_take_over(own, preempts, name) for name in names], np.bool_)
        standings = np.array([victim.standing for victim in victims], np.float64)
        by_field = standings.reshape(-1, len(Standing._fields)).T
        found = verdicts(queue.priority, by_field, Relations(lower, equals), now)
        may_leave: Flags = found == EvictionVerdict.MAY_LEAVE
        return may_leave

    def victims(
        self, fleet: Fleet, row: int, request: Request, candidates: Sequence[RunningPod], now: float
    ) -> Found | None:
        costs = np.array([self._cost(candidate, now) for candidate in candidates])
        alone, stays = np.full(len(costs), -1, np.int64), np.zeros(len(costs), np.bool_)
        holdings = Holdings.of(fleet, row, [(candidate.held,) for candidate in candidates])
        search = self._search_for(fleet, request)
        found = search.among(row, holdings, Victims(costs, alone, stays))  # placing the pod confirms it
        return (found.cost, [candidates[v] for v in found.victims]) if found else None

    def _search_for(self, fleet: Fleet, request: Request) -> VictimSearch:
        """Searches are reused until another node is opened or closed."""
        nodes = fleet, fleet.arrays.blocked.tobytes()
        if self._nodes != nodes or len(self._searches) >= _MOST_SEARCHES:
            self._nodes, self._searches = nodes, {}
        if request not in self._searches:
            self._searches[request] = VictimSearch(fleet, request)
        return self._searches[request]

    def _cost(self, victim: RunningPod, now: float) -> tuple[float, ...]:
        cost = [0.0] * len(self._place)
        cost[self._place[victim.queue.priority]] = gpu_seconds(victim.gpus, victim.lost(now), victim.restarts)
        return tuple(cost)


class KubeScheduler:
    """Preemption as in kube-scheduler v1.36 (pkg/scheduler/framework: plugins/defaultpreemption
    SelectVictimsOnNode, preemption pickOneNodeForPreemption), without disruption budgets.

    All pods of lower priority are removed from the node; if the request then fits, they are reprieved one by
    one, the most important first (higher priority, then earlier start), as long as it still fits. The chosen
    node is the one whose victims have the lowest highest priority, then the smallest sum of priorities (each
    + 2^31), then the fewest pods, then the latest start: for each node the earliest among the victims of the
    highest priority. Of equal nodes kube-scheduler takes any; here it is the first. All nodes are tried;
    kube-scheduler tries 10 % of them, but at least 100.
    """

    room_seconds = 0.0

    def standing(self, queue: QueueRules, started: float, disrupted: float, rounds: int) -> Standing:
        return Standing(queue.priority)

    def may_evict(self, queue: QueueRules, victims: Sequence[RunningPod], now: float) -> Flags:
        return np.array([victim.queue.priority < queue.priority for victim in victims], np.bool_)

    def victims(
        self, fleet: Fleet, row: int, request: Request, candidates: Sequence[RunningPod], now: float
    ) -> Found | None:
        ordered = sorted(candidates, key=lambda pod: (-pod.queue.priority, pod.started, pod.pod))
        evicted = list(ordered)
        if not _fits_without(fleet, row, request, evicted):
            return None
        for candidate in ordered:
            kept = [pod for pod in evicted if pod is not candidate]
            if _fits_without(fleet, row, request, kept):
                evicted = kept
        return (_badness(evicted), evicted) if evicted else None


def _badness(victims: Sequence[RunningPod]) -> tuple[float, ...]:
    highest = victims[0].queue.priority
    total = sum(victim.queue.priority + _PRIORITY_OFFSET for victim in victims)
    earliest = min(victim.started for victim in victims if victim.queue.priority == highest)
    return float(highest), float(total), float(len(victims)), -earliest


def _fits_without(fleet: Fleet, row: int, request: Request, evicted: Sequence[RunningPod]) -> bool:
    with fleet.without([pod.held for pod in evicted]):
        return reason_on_row(fleet, request, row) is Reason.FITS
