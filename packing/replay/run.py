"""The pods of a timeline, and when and how each of them ran."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from packing.model.request import Request
from packing.replay.queue_rules import ONE_QUEUE, QueueRules


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
