"""How much work a pod loses if it ends now: the time since its last checkpoint, or since its start."""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from extender.k8s.objects import Pod
from extender.k8s.quantity import DurationError, seconds
from extender.settings import Queue

CHECKPOINTED_AT = "stowage.dev/checkpointed-at"
"""Annotation: when the pod saved its work last, in RFC 3339."""
CHECKPOINT_INTERVAL = "stowage.dev/checkpoint-interval"
"""Annotation: how often the pod saves its work, as a Go duration or in seconds."""
_Floats: TypeAlias = npt.NDArray[np.float64]
_CLOCK_SKEW = 60.0  # seconds that the clock of a node may be ahead of ours
_LONGEST = 40  # characters: RFC 3339 with nanoseconds and an offset has 35
_SECONDS = re.compile(r"[0-9]{1,15}(\.[0-9]{0,15})?")


class Progress(NamedTuple):
    """When a pod started (Unix seconds, 0 for not yet), the time of its last checkpoint that is not before
    that (else NaN), and the seconds between two of its checkpoints (0 for none)."""

    started: float
    saved: float
    interval: float


def progress_of(pod: Pod, queue: Queue) -> Progress:
    """What the pod and its queue say about its checkpoints."""
    saved_at, every = pod.annotations.get(CHECKPOINTED_AT), pod.annotations.get(CHECKPOINT_INTERVAL)
    saved = _timestamp(saved_at) if saved_at else None
    if saved is None or saved < pod.started:
        saved = math.nan
    interval = (_interval(every) if every else None) or queue.checkpoint_interval
    return Progress(pod.started, saved, interval or 0.0)


def lost_by_each(started: _Floats, saved: _Floats, interval: _Floats, now: float) -> _Floats:
    """``lost_seconds`` of many pods: arrays of the fields of ``Progress``."""
    ran = now - started
    since = np.where(interval > 0, np.mod(ran, np.where(interval > 0, interval, 1.0)), ran)
    known = saved <= now + _CLOCK_SKEW  # not for NaN
    lost = np.where(known, np.maximum(now - np.where(known, saved, now), 0.0), since)
    return np.where((started != 0) & (ran > 0), lost, 0.0)


def lost_seconds(pod: Pod, queue: Queue, now: float) -> float:
    """Seconds of work that the pod loses if it ends at ``now`` (Unix seconds): from 0 to the time since its
    start; 0 for a pod that has not started.

    Its last checkpoint is the time in ``stowage.dev/checkpointed-at``. A time before the pod's start was
    copied from another pod, and one in the future is wrong: they do not count. Otherwise the pod is taken to
    save its work at each multiple of its interval after its start: that of
    ``stowage.dev/checkpoint-interval``, else ``queue.checkpoint_interval``. Without any of them all is lost.
    """
    started, saved, interval = (np.array([field]) for field in progress_of(pod, queue))
    return float(lost_by_each(started, saved, interval, now)[0])


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
