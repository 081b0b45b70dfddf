"""Figures of a timeline: utilisation and waiting times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packing.fleet.arrays import Doubles
from packing.replay.timeline import Run, TimedPod
from packing.replay.trace import gpus_of

Figures = dict[str, float | None]


def timeline_figures(runs: Sequence[Run], pods: Sequence[TimedPod], capacity: float) -> Figures:
    """Mean GPU utilisation in per cent of the capacity (GPUs) from the first to the last arrival, the same if
    no pod had to wait (``asked``, which nothing exceeds), waiting times in seconds (p50 and p95 per class of
    request; None without pods that started), and the number of pods that never started."""
    gpus = np.array([gpus_of(pod.request) for pod in pods])
    created = [pod.created for pod in pods]
    window = min(created), max(created)
    at_once = [Run(i, -1, pod.created, pod.created, pod.created + pod.duration) for i, pod in enumerate(pods)]
    waited = waiting_times(runs, len(pods))
    classes = {
        "cpu": gpus == 0,
        "share": (gpus > 0) & (gpus < 1),
        "1_gpu": gpus == 1,
        "2_to_7_gpus": (gpus > 1) & (gpus < 8),
        "8_gpus": gpus >= 8,
    }
    figures: Figures = {
        "utilisation": round(100 * mean_gpus(runs, gpus, window) / capacity, 3),
        "asked": round(100 * mean_gpus(at_once, gpus, window) / capacity, 3),
    }
    for name, members in classes.items():
        figures |= waits(name, waited[members])
    return figures | {"never_started": float(np.isnan(waited).sum())}


def waiting_times(runs: Sequence[Run], pods: int) -> Doubles:
    """Seconds that each pod waited before its runs, all together (P,); NaN for a pod without a run."""
    waited = np.full(pods, np.nan)
    for run in runs:
        before = 0.0 if np.isnan(waited[run.pod]) else waited[run.pod]
        waited[run.pod] = before + run.started - run.queued
    return waited


def mean_gpus(runs: Sequence[Run], gpus: Doubles, window: tuple[float, float]) -> float:
    """GPUs of the pods (P,) that run, mean over the window."""
    first, last = window
    seconds = (max(0.0, min(run.ended, last) - max(run.started, first)) * gpus[run.pod] for run in runs)
    return float(sum(seconds)) / max(last - first, 1.0)


def waits(name: str, waited: Doubles) -> Figures:
    """Median and 95th percentile of the pods that started; None if none has."""
    known = waited[~np.isnan(waited)]
    return {
        f"wait_p{part}_{name}": round(float(np.percentile(known, part)), 1) if known.size else None
        for part in (50, 95)
    }
