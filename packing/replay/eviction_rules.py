"""Whom a waiting pod evicts from a node, under the rules of queues and under those of kube-scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from packing.fleet.feasibility import reasons_for
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.model.reasons import Reason
from packing.model.request import Request
from packing.replay.queue_rules import QueueRules
from packing.victims.search import Victim, VictimSearch

_PRIORITY_OFFSET = 1 << 31
_RESTART = 60.0
"""GPU-seconds that a restart costs beyond the lost work: pulling the image, loading the model."""


@dataclass(frozen=True, slots=True)
class RunningPod:
    """A pod (index) that runs since ``started`` (seconds): its queue, the GPUs that it asked for, what it
    holds, and whether it has been evicted for a pod of equal priority before."""

    pod: int
    queue: QueueRules
    gpus: float
    started: float
    held: Allocation
    yielded: bool = False

    def lost(self, now: float) -> float:
        """Seconds of work that it loses if it is evicted now."""
        ran = now - self.started
        return ran - self.queue.saved(ran)


Found = tuple[tuple[float, ...], list[RunningPod]]
"""How bad the victims of a node are, to be compared with other nodes, and the victims."""


class EvictionRule(Protocol):
    """Decides whom a pod may evict, and which pods of a node it takes."""

    def may_evict(self, queue: QueueRules, victim: RunningPod, now: float) -> bool:
        """Whether pods of the queue may evict this one now."""

    def matures(self, running: RunningPod) -> Sequence[float]:
        """The times from which more pods may evict this one than before."""

    def victims(
        self, fleet: Fleet, row: int, request: Request, candidates: Sequence[RunningPod], now: float
    ) -> Found | None:
        """The pods to evict among the candidates on this node so that the request fits; None if not even all
        are enough."""


class CheapestVictims:
    """The rights of the queues, and the cheapest set of ``packing.victims``. The cost is compared by
    priority, the highest first: GPU-seconds lost by victims of this priority, and a restart for each.

    A pod is evicted for an equal once at most. Otherwise two pods that save nothing and need longer than
    their maximum duration would evict each other for ever.
    """

    def __init__(self, priorities: Sequence[int]) -> None:
        self._place = {p: i for i, p in enumerate(sorted(set(priorities), reverse=True))}
        self._search: tuple[Fleet, Request, int, VictimSearch] | None = None

    def may_evict(self, queue: QueueRules, victim: RunningPod, now: float) -> bool:
        if victim.yielded and victim.queue.priority == queue.priority:
            return False
        return queue.may_evict(victim.queue, victim.started, now)

    def matures(self, running: RunningPod) -> Sequence[float]:
        queue = running.queue
        return running.started + queue.min_runtime, running.started + queue.max_duration

    def victims(
        self, fleet: Fleet, row: int, request: Request, candidates: Sequence[RunningPod], now: float
    ) -> Found | None:
        victims = [Victim((candidate.held,), self._cost(candidate, now)) for candidate in candidates]
        found = self._search_for(fleet, request).on(row, victims)
        return (found.cost, [candidates[v] for v in found.victims]) if found else None

    def _search_for(self, fleet: Fleet, request: Request) -> VictimSearch:
        """The search is the same for all nodes until the fleet changes."""
        if self._search is None or self._search[:3] != (fleet, request, fleet.changes):
            self._search = fleet, request, fleet.changes, VictimSearch(fleet, request)
        return self._search[3]

    def _cost(self, victim: RunningPod, now: float) -> tuple[float, ...]:
        cost = [0.0] * len(self._place)
        cost[self._place[victim.queue.priority]] = victim.gpus * victim.lost(now) + _RESTART
        return tuple(cost)


class KubeScheduler:
    """Preemption as in kube-scheduler v1.36 (pkg/scheduler/framework: plugins/defaultpreemption
    SelectVictimsOnNode, preemption pickOneNodeForPreemption), without disruption budgets.

    All pods of lower priority leave the node; if the request fits then, they come back one by one, the most
    important first, as long as it still fits. The node is taken whose victims have the lowest highest
    priority, then the smallest sum of priorities, then the fewest pods, then the latest start of the most
    important victims.
    """

    def may_evict(self, queue: QueueRules, victim: RunningPod, now: float) -> bool:
        return victim.queue.priority < queue.priority

    def matures(self, running: RunningPod) -> Sequence[float]:
        return ()

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
        return bool(reasons_for(fleet, request)[row] == Reason.FITS)
