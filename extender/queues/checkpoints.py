"""How much work a pod loses if it ends now: the time since its last checkpoint, or since its start."""

from __future__ import annotations

import re
from datetime import datetime

from extender.k8s.duration import DurationError, seconds
from extender.k8s.objects import Pod
from extender.settings import Queue

CHECKPOINTED_AT = "stowage.dev/checkpointed-at"
"""Annotation: when the pod saved its work last, in RFC 3339."""
CHECKPOINT_INTERVAL = "stowage.dev/checkpoint-interval"
"""Annotation: how often the pod saves its work, as a Go duration or in seconds."""
_CLOCK_SKEW = 60.0  # seconds that the clock of a node may be ahead of ours
_LONGEST = 40  # characters: RFC 3339 with nanoseconds and an offset has 35
_SECONDS = re.compile(r"[0-9]{1,15}(\.[0-9]{0,15})?")


def lost_seconds(pod: Pod, queue: Queue, now: float) -> float:
    """Seconds of work that the pod loses if it ends at ``now`` (Unix seconds): from 0 to the time since its
    start; 0 for a pod that has not started.

    Its last checkpoint is the time in ``stowage.dev/checkpointed-at``. A time before the pod's start was
    copied from another pod, and one in the future is wrong: they do not count. Otherwise the pod is taken to
    save its work at each multiple of its interval after its start: that of
    ``stowage.dev/checkpoint-interval``, else ``queue.checkpoint_interval``. Without any of them all is lost.
    """
    ran = now - pod.started
    if not pod.started or ran <= 0:
        return 0.0
    saved = _timestamp(pod.annotations.get(CHECKPOINTED_AT, ""))
    if saved is not None and pod.started <= saved <= now + _CLOCK_SKEW:
        return max(0.0, now - saved)
    interval = _interval(pod.annotations.get(CHECKPOINT_INTERVAL, "")) or queue.checkpoint_interval
    return ran % interval if interval else ran


def _timestamp(text: str) -> float | None:
    """Unix seconds of a time in RFC 3339, None for anything else."""
    try:
        at = datetime.fromisoformat(text) if len(text) <= _LONGEST else None
        return at.timestamp() if at and at.tzinfo else None
    except (ValueError, OverflowError):
        return None


def _interval(text: str) -> float | None:
    """Seconds of a duration in Go's notation, or of a plain number; None if malformed or not positive."""
    if _SECONDS.fullmatch(text):
        return float(text) or None
    try:
        interval = seconds(text) if len(text) <= _LONGEST else 0.0
    except DurationError:
        return None
    return interval if interval > 0 else None
