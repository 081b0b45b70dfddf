"""What the eviction of a pod costs. docs/preemption.md has the formula with its reasons.

A cost is a vector: how many PodDisruptionBudgets are violated, then GPU-seconds for each priority level, the
highest priority first. So whole numbers of violations come first, and a pod of higher priority is never
evicted to spare any number of pods of lower priority.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from extender.cluster.state import State
from extender.k8s.objects import Pod
from extender.queues.checkpoints import lost_by_each, lost_seconds
from extender.verbs.eviction.node_pods import (
    GPUS,
    INTERVAL,
    PRIORITY,
    RESTARTS,
    SAVED,
    STARTED,
    Numbers,
    gpus_held,
)
from packing.victims.eviction_cost import gpu_seconds

MOST_LEVELS = 16
"""Priority levels that are told apart; all below the sixteenth count as one. Clusters have a few."""
_GRAIN = 1024
"""Costs are whole multiples of 1/1024 GPU-seconds, so that sums do not depend on their order."""
_EACH_VICTIM = 2
"""Added to each victim's cost, in 1/1024 GPU-seconds: more than rounding down takes from it, so of sets that
cost the same the one with fewer pods leaves."""


def work_lost(state: State, pod: Pod, now: float) -> float:
    """GPU-seconds of work that the pod loses if it is evicted now, without what its restart costs."""
    held = state.pods.allocations_of(pod)
    return gpus_held(state.fleet, held) * lost_seconds(pod, state.rights.queue_of(pod), now)


class Prices:
    """Costs of pods at one moment. All are of the same length: the priorities give the levels."""

    def __init__(self, now: float, priorities: Iterable[float]) -> None:
        self._now = now
        levels = sorted(set(priorities))[-MOST_LEVELS:] or [0]
        self._levels = np.array(levels, np.float64)  # ascending

    def of_numbers(self, numbers: Numbers) -> Numbers:
        """(V, C) costs of pods that run, without violations: ``numbers`` as in ``NodePods``."""
        count, levels = numbers.shape[1], self._levels.size
        level = np.clip(np.searchsorted(self._levels, numbers[PRIORITY]), 0, levels - 1)
        lost = lost_by_each(numbers[STARTED], numbers[SAVED], numbers[INTERVAL], self._now)
        grains = np.floor(gpu_seconds(numbers[GPUS], lost, numbers[RESTARTS]) * _GRAIN) + _EACH_VICTIM
        costs = np.zeros((count, 1 + levels))
        costs[np.arange(count), levels - level] = grains / _GRAIN
        return costs
