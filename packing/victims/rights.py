"""The rules and costs of evictions: one definition for the service, its explanations, and the replay. For the
reasons see docs/preemption.md."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # it loads the compiler
    from packing.fleet.arrays import Doubles, Flags

_Numbers = TypeVar("_Numbers", float, "Doubles")

RESTART = 300.0
"""Seconds of work lost by a restart in addition to the work since the last checkpoint: the pod waits for a
node, pulls its image, loads data and model, and warms up. Minutes for most training jobs."""
SMALLEST = 0.01
"""Minimum GPUs of a pod in costs, so that evicting a pod without a GPU is not free."""
ROOM_SECONDS = 3600.0
"""GPU-seconds per GPU of a placement's policy cost: a bad placement lasts for about an hour."""
_MOST_DOUBLINGS = 30


class EvictionVerdict(IntEnum):
    """Whether a pod may be evicted; if not, the first rule that forbids it."""

    MAY_LEAVE = 0
    NEVER = 1
    PRIORITY = 2
    QUEUE = 3
    MIN_RUNTIME = 4
    SAME_GANG = 5
    FORBIDDEN = 6
    TOLERATION = 7
    SHIELDED = 8
    HOURLY_BOUND = 9


class Standing(NamedTuple):
    """The protection of a pod, independent of the preemptor. Times in seconds.

    Pods of higher priority may evict it from ``guaranteed_until`` on (its minimum runtime), pods of equal
    priority from ``overtime_from`` on, no pod before ``forbidden_until`` and ``shielded_until``, and until
    ``tolerates_until`` no pod with a priority below ``tolerates_below``.
    """

    priority: float
    guaranteed_until: float = -math.inf
    overtime_from: float = math.inf
    forbidden_until: float = -math.inf
    tolerates_below: float = 0.0
    tolerates_until: float = -math.inf
    shielded_until: float = -math.inf


class Relations(NamedTuple):
    """The preemptor's relation to each of V victims, each (V,) or one value for all. Its queue permits it to
    preempt those that are ``lower``, and to take over from ``equals`` in overtime. ``same_gang``: in the
    preemptor's gang or job. ``used_up``: their queues have reached their limit of lost pods."""

    lower: Flags
    equals: Flags | bool
    same_gang: Flags | bool = False
    used_up: Flags | bool = False


def verdicts(
    priority: float, standings: Doubles, relations: Relations, now: float, *, never_preempts: bool = False
) -> npt.NDArray[np.int8]:
    """The ``EvictionVerdict`` of each victim (V,) for a preemptor of this priority. ``standings``: a row for
    each field of ``Standing``, (7, V).

    ``preemptionPolicy: Never`` (``never_preempts``) does not forbid takeovers: it is about "pods with lower
    priority" (k8s.io/api core/v1).
    """
    victim = Standing(*standings)
    by_priority = ~((victim.priority == priority) & relations.equals & (now >= victim.overtime_from))
    forbidding = {
        EvictionVerdict.NEVER: by_priority & never_preempts,
        EvictionVerdict.PRIORITY: by_priority & (victim.priority >= priority),
        EvictionVerdict.QUEUE: by_priority & ~relations.lower,
        EvictionVerdict.MIN_RUNTIME: by_priority & (now < victim.guaranteed_until),
        EvictionVerdict.SAME_GANG: relations.same_gang,
        EvictionVerdict.FORBIDDEN: now < victim.forbidden_until,
        EvictionVerdict.TOLERATION: (priority < victim.tolerates_below) & (now < victim.tolerates_until),
        EvictionVerdict.SHIELDED: now < victim.shielded_until,
        EvictionVerdict.HOURLY_BOUND: relations.used_up,
    }
    found = np.zeros(standings.shape[1], np.int8)
    for verdict, forbids in reversed(forbidding.items()):
        found[forbids] = verdict
    return found


def may_preempt(queue: str, preempts: Collection[str], victims_queue: str) -> bool:
    """Whether pods of the queue may preempt pods of the other queue. A pod without a queue ("") is subject
    only to priorities."""
    return not (queue and victims_queue) or victims_queue in preempts


def may_take_over(queue: str, preempts: Collection[str], victims_queue: str) -> bool:
    """Whether pods of the queue may take over from pods of equal priority of the other queue in overtime."""
    return victims_queue == queue or victims_queue in preempts


def longest_run(max_duration: float, rounds: int) -> float:
    """Seconds that a pod may run before equal pods may take over, in a queue with this ``max_duration``.

    ``rounds``: number of earlier preemptions of its job. Each doubles the duration: otherwise two long jobs
    without checkpoints would take over from each other forever.
    """
    return max_duration * (1 << min(rounds, _MOST_DOUBLINGS))


def rounds_of(preemptions: Iterable[float], apart: float) -> int:
    """Number of preemptions of a job, from their times (ascending, in seconds). Those within ``apart``
    seconds count once: a job may lose all its pods to one pending pod."""
    rounds, begun = 0, -math.inf
    for at in preemptions:
        if at >= begun + apart:
            rounds, begun = rounds + 1, at
    return rounds


def gpu_seconds(gpus: _Numbers, lost: _Numbers, restarts: _Numbers) -> _Numbers:
    """The cost of evicting a pod, or each of many. ``gpus``: held GPUs; ``lost``: seconds of lost work;
    ``restarts``: how often its job has lost a pod before."""
    cost: _Numbers = np.maximum(gpus, SMALLEST) * (lost + RESTART * (1 + restarts))
    return cost
