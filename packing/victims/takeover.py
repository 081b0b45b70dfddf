"""From when a pod of equal priority may take over from one that runs, in the service and in the replay."""

from __future__ import annotations

from collections.abc import Iterable

_MOST_DOUBLINGS = 30


def longest_run(max_duration: float, rounds: int) -> float:
    """Seconds that a pod may run before its equals may take over, in a queue with this ``max_duration``.

    ``rounds``: how often its job was preempted before. Each time doubles the duration: otherwise two long
    jobs without checkpoints would take over from each other forever.
    """
    return max_duration * (1 << min(rounds, _MOST_DOUBLINGS))


def rounds_of(preemptions: Iterable[float], apart: float) -> int:
    """How often a job was preempted, by the times of its preemptions (ascending, in seconds). Those within
    ``apart`` seconds count once: a job may lose all its pods for one that waits."""
    rounds, begun = 0, -float("inf")
    for at in preemptions:
        if at >= begun + apart:
            rounds, begun = rounds + 1, at
    return rounds
