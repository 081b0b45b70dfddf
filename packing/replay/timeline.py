"""Replay of a trace with its times: pods wait in a queue until they fit, run, and leave again.

First in, first out with skipping: whenever pods end, the waiting pods are tried in order of arrival, and one
that does not fit does not hold up those behind it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from packing.fleet.arrays import Doubles
from packing.fleet.node_usage import Allocation
from packing.model.request import Request
from packing.replay.placer import Placer
from packing.replay.trace import gpus_of


class _Queue:
    """Pods by index: those that run, those that wait, and when each one started (NaN: not yet)."""

    def __init__(self, placer: Placer, requests: Sequence[Request], durations: Doubles) -> None:
        self._placer, self._requests, self._durations = placer, requests, durations
        self._running: list[tuple[float, int, Allocation]] = []
        self._waiting: list[int] = []
        self.started = np.full(len(requests), np.nan)

    def arrive(self, pod: int, now: float) -> None:
        self._placer.arrive(self._requests[pod])
        if not self._start(pod, now):
            self._waiting.append(pod)

    def finish_until(self, now: float) -> None:
        """End the pods whose time is over; after each moment at which pods end, try those that wait."""
        while self._running and self._running[0][0] <= now:
            end, _, allocation = heapq.heappop(self._running)
            self._placer.fleet.give_back(allocation)
            if not (self._running and self._running[0][0] == end):
                self._try_waiting(end)

    def _try_waiting(self, now: float) -> None:
        refused: set[Request] = set()
        still_waiting = []
        for pod in self._waiting:
            request = self._requests[pod]
            if request in refused or not self._start(pod, now):
                refused.add(request)
                still_waiting.append(pod)
        self._waiting = still_waiting

    def _start(self, pod: int, now: float) -> bool:
        allocation = self._placer.place(self._requests[pod])
        if allocation is None:
            return False
        self.started[pod] = now
        heapq.heappush(self._running, (now + self._durations[pod], pod, allocation))
        return True


def replay_times(
    placer: Placer, requests: Sequence[Request], created: Doubles, deleted: Doubles
) -> dict[str, float | None]:
    """Mean GPU utilisation in per cent from the first to the last arrival, waiting times in seconds (p50 and
    p95 per class of request), and the number of pods that never started. A pod runs for as long as it
    existed in the trace; all times in seconds."""
    durations = deleted - created
    queue = _Queue(placer, requests, durations)
    order = np.argsort(created, kind="stable")
    for pod in order.tolist():
        queue.finish_until(float(created[pod]))
        queue.arrive(pod, float(created[pod]))
    queue.finish_until(float("inf"))
    first, last = float(created[order[0]]), float(created[order[-1]])
    gpus = np.array([gpus_of(request) for request in requests])
    served = np.minimum(queue.started + durations, last) - queue.started
    gpu_seconds = np.nansum(np.maximum(served, 0.0) * gpus)
    capacity = float((placer.fleet.arrays.compute_capacity > 0).sum())
    utilisation = 100 * gpu_seconds / capacity / max(last - first, 1.0)
    return {
        "utilisation": round(float(utilisation), 3),
        **_waits(gpus, queue.started - created),
        "never_started": float(np.isnan(queue.started).sum()),
    }


def _waits(gpus: Doubles, waited: Doubles) -> dict[str, float | None]:
    """Percentiles of the waiting times by what pods ask for; None for a class without pods that started."""
    classes = {
        "cpu": gpus == 0,
        "share": (gpus > 0) & (gpus < 1),
        "1_gpu": gpus == 1,
        "2_to_7_gpus": (gpus > 1) & (gpus < 8),
        "8_gpus": gpus >= 8,
    }
    figures: dict[str, float | None] = {}
    for name, members in classes.items():
        known = waited[members & ~np.isnan(waited)]
        for percentile in (50, 95):
            wait = round(float(np.percentile(known, percentile)), 1) if known.size else None
            figures[f"wait_p{percentile}_{name}"] = wait
    return figures
