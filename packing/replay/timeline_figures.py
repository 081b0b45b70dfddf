"""Figures of a timeline: utilisation, waiting times, what evictions and nodes cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from packing.fleet.arrays import Doubles
from packing.replay.timed_pods import Ended, Run, TimedPod
from packing.replay.trace import gpus_of

Figures = dict[str, float | None]
_HOUR = 3600.0
_WAITS: Mapping[str, Callable[[Doubles], Any]] = {
    "p50": partial(np.percentile, q=50),
    "p95": partial(np.percentile, q=95),
    "mean": np.mean,
}


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
        figures |= _waits(name, waited[members], ("p50", "p95"))
    return figures | {"never_started": float(np.isnan(waited).sum())}


@dataclass(frozen=True, slots=True)
class NodePrices:
    """Per row (N,): its GPUs, and what one GPU-hour of it costs (an on-demand one: 1)."""

    gpus: Doubles
    per_gpu_hour: Doubles


def queue_figures(
    runs: Sequence[Run],
    queues: Sequence[str],
    gpus: Doubles,
    held_gpus: Doubles,
    window: tuple[float, float],
    prices: NodePrices,
) -> Figures:
    """The figures of a replay with queues. For each pod its queue, and the GPUs (P,) that it asks for and
    that it keeps from others (``held_gpus``); ``window`` in seconds.

    ``allocated``, ``held`` and ``useful``: means over the window, in per cent of the GPUs; ``useful`` is what
    is allocated without the work that is lost later. ``wait_p50_*``, ``wait_p95_*``
    and ``wait_mean_*``: seconds in the queue per pod and queue, over all its runs. ``lost_gpu_hours``: work
    that evictions and interruptions made the pods do again. ``cost``: GPU-hours of the nodes that host a pod,
    at their prices, from the start of the window until the last pod ends. A run without an end counts up to
    the end of the window.
    """
    waited, capacity = waiting_times(runs, len(gpus)), float(prices.gpus.sum())
    lost = sum(run.lost * gpus[run.pod] for run in runs) / _HOUR
    kept = [replace(run, ended=run.ended - run.lost) for run in runs]
    figures: Figures = {
        "allocated": round(100 * mean_gpus(runs, gpus, window) / capacity, 2),
        "held": round(100 * mean_gpus(runs, held_gpus, window) / capacity, 2),
        "useful": round(100 * mean_gpus(kept, gpus, window) / capacity, 2),
    }
    of_pod = np.array(queues)
    for queue in dict.fromkeys(sorted(queues)):
        figures |= _waits(queue, waited[of_pod == queue])
    return figures | {
        "evictions": float(sum(run.how is Ended.EVICTED for run in runs)),
        "interruptions": float(sum(run.how is Ended.INTERRUPTED for run in runs)),
        "lost_gpu_hours": round(float(lost), 1),
        "cost": round(_cost(runs, prices, window), 1),
        "never_started": float(np.isnan(waited).sum()),
    }


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


def _cost(runs: Sequence[Run], prices: NodePrices, window: tuple[float, float]) -> float:
    """GPU-hours of nodes with at least one pod, times their prices."""
    first, last = window
    by_row: dict[int, list[tuple[float, float]]] = {}
    for run in runs:
        end = run.ended if np.isfinite(run.ended) else max(last, run.started)
        by_row.setdefault(run.row, []).append((max(first, run.started), max(first, end)))
    return sum(
        _covered(spans) / _HOUR * float(prices.gpus[row] * prices.per_gpu_hour[row])
        for row, spans in by_row.items()
    )


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """Seconds in at least one of the spans."""
    total, until = 0.0, -np.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def _waits(name: str, waited: Doubles, figures: Sequence[str] = tuple(_WAITS)) -> Figures:
    known = waited[~np.isnan(waited)]
    return {
        f"wait_{figure}_{name}": round(float(_WAITS[figure](known)), 1) if known.size else None
        for figure in figures
    }
