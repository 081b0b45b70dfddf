"""Figures of a timeline: utilization and waiting times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.packing.timeline import Run
from packing.fleet.arrays import Doubles

Figures = dict[str, float | None]


def waiting_times(runs: Sequence[Run], pods: int) -> Doubles:
    """Total seconds that each pod waited before its runs (P,); NaN for a pod without a run."""
    waited = np.full(pods, np.nan)
    for run in runs:
        before = 0.0 if np.isnan(waited[run.pod]) else waited[run.pod]
        waited[run.pod] = before + run.started - run.queued
    return waited


def mean_gpus(runs: Sequence[Run], gpus: Doubles, window: tuple[float, float]) -> float:
    """GPUs of the running pods, mean over the window; ``gpus`` (P,) is that of each pod."""
    first, last = window
    seconds = (max(0.0, min(run.ended, last) - max(run.started, first)) * gpus[run.pod] for run in runs)
    return float(sum(seconds)) / max(last - first, 1.0)


def waits(name: str, waited: Doubles) -> Figures:
    """Median and 95th percentile over the pods that started; None if none has."""
    known = waited[~np.isnan(waited)]
    return {
        f"wait_p{part}_{name}": round(float(np.percentile(known, part)), 1) if known.size else None
        for part in (50, 95)
    }
