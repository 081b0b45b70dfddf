"""The pods of a timeline, their queues, when and how each of them ran, and the spot nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from packing.model.node_spec import NodeSpec
from packing.model.request import Request


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


class Ended(IntEnum):
    """How a run ended."""

    FINISHED = 0
    EVICTED = 1
    INTERRUPTED = 2


@dataclass(frozen=True, slots=True)
class TimedPod:
    """A pod that arrives at ``created`` and must run for ``duration`` (infinite: for ever), in seconds."""

    request: Request
    created: float
    duration: float
    queue: QueueRules = ONE_QUEUE


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
class SpotRows:
    """The rows (N,) that are spot nodes, when which of them is interrupted, and for how long it is away.
    Restartable pods prefer them, other pods never use them. Times in seconds."""

    rows: npt.NDArray[np.bool_]
    interruptions: Sequence[tuple[float, int]] = ()
    outage: float = 0.0


@dataclass(frozen=True, slots=True)
class SpotMarket:
    """``share`` of the GPUs are on spot nodes. A spot node costs ``discount`` (a part of 1) less than
    another, is interrupted ``rate`` times per hour on average, and comes back after ``outage`` seconds."""

    share: float
    discount: float
    rate: float
    outage: float = 300.0

    def draw(self, nodes: Sequence[NodeSpec], rng: np.random.Generator) -> npt.NDArray[np.bool_]:
        """Which nodes are on spot (N,): random ones, until they have the share of the GPUs or more."""
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
