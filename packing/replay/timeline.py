"""Replay with real arrivals and durations: pods wait in a queue until they fit, and leave again.

First in, first out with skipping: whenever GPUs come free, the waiting pods are tried in order of arrival,
and one that does not fit does not hold up those behind it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import allocation_of
from packing.model.request import Request
from packing.policies.registry import Policy
from packing.replay.pick_node import Pick
from packing.replay.trace import REPRICE, gpus_of

Doubles = npt.NDArray[np.float64]


class _Run:
    """State of one replay: what runs, what waits, and GPU-seconds served so far."""

    def __init__(
        self, fleet: Fleet, policy: Policy, requests: Sequence[Request], lasts: Doubles, pick: Pick
    ) -> None:
        self.fleet, self.policy, self.requests, self.lasts, self.pick = fleet, policy, requests, lasts, pick
        self.running: list[tuple[float, int, Allocation]] = []
        self.waiting: list[int] = []
        self.started = np.full(len(requests), np.nan)
        self.changes = 0

    def arrive(self, pod: int, now: float) -> None:
        """A pod comes: the policy learns, and the pod starts or waits."""
        self.policy.observe(self.requests[pod])
        self.changes += 1
        if self.changes & (self.changes - 1) == 0 or self.changes % REPRICE == 0:
            self.policy.adopt(self.fleet, self.policy.plan(self.fleet)())
        if not self._start(pod, now):
            self.waiting.append(pod)

    def leave_until(self, now: float) -> None:
        """Let pods finish up to ``now``, each time trying those that wait."""
        while self.running and self.running[0][0] <= now:
            end, _, held = heapq.heappop(self.running)
            self.fleet.give_back(held)
            if not (self.running and self.running[0][0] == end):
                self._try_waiting(end)

    def _try_waiting(self, now: float) -> None:
        refused: set[Request] = set()
        still = []
        for pod in self.waiting:
            request = self.requests[pod]
            if request in refused or not self._start(pod, now):
                refused.add(request)
                still.append(pod)
        self.waiting = still

    def _start(self, pod: int, now: float) -> bool:
        request = self.requests[pod]
        row = self.pick(self.policy.cost(self.fleet, request))
        if row < 0:
            return False
        held = allocation_of(self.fleet, row, request, self.policy.choose(self.fleet, request, row))
        self.fleet.take(held)
        self.started[pod] = now
        heapq.heappush(self.running, (now + self.lasts[pod], pod, held))
        return True


def replay_times(
    fleet: Fleet, policy: Policy, requests: Sequence[Request], created: Doubles, deleted: Doubles, pick: Pick
) -> dict[str, float | None]:
    """Mean GPU utilisation in per cent from the first to the last arrival, waiting times in seconds (p50 and
    p95 per class of request), and pods that never started. A pod runs for as long as it lived in the
    trace."""
    run = _Run(fleet, policy, requests, deleted - created, pick)
    order = np.argsort(created, kind="stable")
    for pod in order.tolist():
        run.leave_until(float(created[pod]))
        run.arrive(pod, float(created[pod]))
    first, last = float(created[order[0]]), float(created[order[-1]])
    run.leave_until(float("inf"))
    gpus = np.array([gpus_of(request) for request in requests])
    served = np.minimum(run.started + run.lasts, last) - run.started
    busy = np.nansum(np.maximum(served, 0.0) * gpus)
    capacity = float((fleet.arrays.compute_capacity > 0).sum())
    waited = run.started - created
    utilisation = 100 * busy / capacity / max(last - first, 1.0)
    figures: dict[str, float | None] = {"utilisation": round(float(utilisation), 3)}
    for name, members in _classes(gpus).items():
        known = waited[members & ~np.isnan(waited)]
        for part in (50, 95):
            wait = round(float(np.percentile(known, part)), 1) if known.size else None
            figures[f"wait_p{part}_{name}"] = wait
    figures["never_started"] = float(np.isnan(run.started).sum())
    return figures


def _classes(gpus: Doubles) -> dict[str, npt.NDArray[np.bool_]]:
    """Pods by what they ask for: no GPU, a share, one GPU, several, eight."""
    return {
        "cpu": gpus == 0,
        "share": (gpus > 0) & (gpus < 1),
        "1_gpu": gpus == 1,
        "2_to_7_gpus": (gpus > 1) & (gpus < 8),
        "8_gpus": gpus >= 8,
    }
