"""What the eviction of a pod costs. docs/preemption.md has the formula with its reasons.

A cost is a vector: how many PodDisruptionBudgets are violated, then GPU-seconds for each priority level, the
highest priority first. So whole numbers of violations come first, and a pod of higher priority is never
evicted to spare any number of pods of lower priority.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from extender.cluster.state import State
from extender.k8s.objects import Pod
from extender.queues.checkpoints import lost_seconds
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.model.mig_instances import every_slice
from packing.model.request import WHOLE
from packing.victims.search import Cost

RESTART = 300.0
"""Seconds of work that a restart costs beside what was computed since the last checkpoint: the pod waits for
a node, pulls its image, loads data and model, and warms up. Minutes for most training jobs."""
SMALLEST = 0.01
"""GPUs: a pod with less counts as this, so that pods without a GPU do not leave for nothing."""
ROOM_SECONDS = 3600.0
"""GPU-seconds for each GPU that a placement costs by the policy: a bad one stays for about an hour."""
MOST_LEVELS = 16
"""Priority levels that are told apart; all below the sixteenth count as one. Clusters have a few."""
_GRAIN = 1024
"""Costs are whole multiples of 1/1024 GPU-seconds, so that sums do not depend on their order."""


def gpus_held(fleet: Fleet, held: Iterable[Allocation]) -> float:
    """GPUs of these allocations: the mean of the parts of compute and memory, and for MIG instances that are
    made on demand the part of the GPU's slices."""
    arrays, total = fleet.arrays, 0.0
    for one in held:
        row, slices, spec = one.row, dict(one.slices), fleet.specs[one.row]
        for resource, count in one.devices:
            total += count * float(arrays.device_gpu[resource, row])
        for gpu, milli, mib in one.shares:
            if spec and gpu in slices:
                every = every_slice(spec.gpus[gpu].instances)
                total += (slices[gpu] & every).bit_count() / max(every.bit_count(), 1)
            else:
                total += (milli / WHOLE + mib / max(float(arrays.memory_capacity[gpu, row]), 1.0)) / 2
    return total


def work_lost(state: State, pod: Pod, now: float) -> float:
    """GPU-seconds of work that the pod loses if it is evicted now, without what its restart costs."""
    held = state.pods.allocations_of(pod)
    return gpus_held(state.fleet, held) * lost_seconds(pod, state.rights.queues.of(pod), now)


class Prices:
    """Costs of pods at one moment. All are of the same length: the priorities give the levels."""

    def __init__(self, state: State, now: float, priorities: Iterable[int]) -> None:
        self._state, self._now = state, now
        self._levels = sorted(set(priorities))[-MOST_LEVELS:] or [0]  # ascending

    @property
    def nothing(self) -> Cost:
        return (0.0,) * (1 + len(self._levels))

    def of(self, pod: Pod, held: Sequence[Allocation], *, violates: bool = False) -> Cost:
        """The cost of one pod that holds these allocations. A pod that terminates already costs nearly
        nothing: its work is lost anyway."""
        level = max(0, min(bisect_left(self._levels, pod.priority), len(self._levels) - 1))
        cost = [0.0] * (1 + len(self._levels))
        if pod.deleting:
            cost[-1] = 1 / _GRAIN
            return tuple(cost)
        lost = lost_seconds(pod, self._state.rights.queues.of(pod), self._now)
        seconds = lost + RESTART * (1 + self._state.disruptions.restarts(pod))
        gpus = max(gpus_held(self._state.fleet, held), SMALLEST)
        cost[0] = float(violates)
        cost[len(self._levels) - level] = max(1, math.floor(gpus * seconds * _GRAIN)) / _GRAIN
        return tuple(cost)


def total(costs: Iterable[Cost], nothing: Cost) -> Cost:
    """The sum of costs, ``nothing`` for none."""
    return tuple(map(sum, zip(nothing, *costs, strict=True)))
