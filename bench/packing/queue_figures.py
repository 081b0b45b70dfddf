"""Figures of a timeline with queues: allocated and useful GPUs, waiting times, the cost of evictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.packing.timeline import Ended, Run
from bench.packing.timeline_figures import Figures, mean_gpus, waiting_times, waits
from packing.fleet.arrays import Doubles

_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class NodePrices:
    """Per row (N,): its GPUs, and the price of one GPU-hour (on demand: 1)."""

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
    """The figures of a replay with queues. For each pod its queue, its requested GPUs (P,), and the GPUs that
    are unavailable to others (``held_gpus``); ``window`` in seconds.

    ``allocated``, ``held`` and ``useful``: means over the window, in percent of the GPUs; ``useful`` is the
    allocation without work that is lost later. ``wait_p50_*``, ``wait_p95_*`` and ``wait_mean_*``: seconds in
    the queue per pod and queue, over all its runs. ``lost_gpu_hours``: work that pods had to repeat after
    evictions and interruptions. ``cost``: GPU-hours of the nodes that host a pod, at their prices, from the
    start of the window until the last pod ends. A run without an end counts up to the end of the window.
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
        known = waited[of_pod == queue]
        figures |= waits(queue, known)
        mean = None if np.isnan(known).all() else round(float(np.nanmean(known)), 1)
        figures[f"wait_mean_{queue}"] = mean
    return figures | {
        "evictions": float(sum(run.how is Ended.EVICTED for run in runs)),
        "interruptions": float(sum(run.how is Ended.INTERRUPTED for run in runs)),
        "lost_gpu_hours": round(float(lost), 1),
        "cost": round(_cost(runs, prices, window), 1),
        "never_started": float(np.isnan(waited).sum()),
    }


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
