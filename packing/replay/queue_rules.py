"""Queues in a replay: who may evict whom, and what an evicted pod must do again."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueRules:
    """The rules of a queue. Times in seconds.

    Pods of higher ``priority`` are tried first, and may evict pods of lower priority in the queues that they
    ``preempts``, once these have run for ``min_runtime``. A pod that has run for ``max_duration`` (longer
    after each eviction) may also be evicted for one of equal priority. A pod saves its work every
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
        """The part of so many seconds of work that is not lost when the pod is evicted."""
        if math.isinf(self.checkpoint_interval):
            return 0.0
        return ran // self.checkpoint_interval * self.checkpoint_interval


ONE_QUEUE = QueueRules()
"""For pods without queues: first in, first out, and nobody evicts anybody."""
