"""Replay of a trace without times: an empty fleet fills up, and no pod ends.

This is the protocol of Weng et al., USENIX ATC 2023 (hkust-adsl/kubernetes-scheduler-simulator): the pods of
a trace arrive once each, in an order shuffled by the seed. If they request less than 1.3 x the GPU capacity,
more pods are drawn from the trace with replacement; if they request more, random pods are left out. A pod
that fits nowhere is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bench.packing.placer import Placer
from packing.cost.demand import Mix
from packing.fleet.arrays import Doubles, Longs
from packing.fleet.feasibility import reasons_for
from packing.fleet.fleet import Fleet
from packing.model.gpu_catalog import GpuValues
from packing.model.node_spec import NodeSpec
from packing.model.request import WHOLE, Request

ARRIVING = 1.3
"""GPU demand that arrives, as a multiple of the capacity."""
KNEE = 0.01
"""Fraction of the capacity that has been dropped at the knee of a filling."""


class FillPoint(NamedTuple):
    """Allocated GPU in percent of the capacity, and pods dropped so far."""

    allocation: float
    failed_pods: int


@dataclass(frozen=True, slots=True)
class Filling:
    """For each arrival, in order: the row on which it was placed (-1: dropped), and its requested GPUs."""

    rows: Longs
    gpus: Doubles

    def at(self, capacity: float, arrival: float) -> FillPoint:
        """The figures when ``arrival`` x ``capacity`` (GPUs) has arrived: as published, the mean over the
        arrivals at which the arrived GPU demand, in whole percent of the capacity, is this."""
        arrived = np.cumsum(self.gpus)
        used = np.cumsum(np.where(self.rows >= 0, self.gpus, 0.0))
        indices = arrivals_at(arrived, capacity, arrival)
        failed = int((self.rows[: indices[-1] + 1] < 0).sum())
        return FillPoint(float(100 * used[indices].mean() / capacity), failed)

    def knee(self, capacity: float) -> float | None:
        """GPU demand that had arrived, in percent of the capacity, when ``KNEE`` of the capacity had been
        dropped; None if less was dropped. Up to the knee allocation follows arrivals."""
        dropped = np.cumsum(np.where(self.rows < 0, self.gpus, 0.0))
        beyond = np.flatnonzero(dropped >= KNEE * capacity)
        return float(100 * self.gpus[: beyond[0] + 1].sum() / capacity) if beyond.size else None

    def figures(self, capacity: float, arrival: float) -> dict[str, float | None]:
        """``at`` and ``knee`` as the columns of a row."""
        point, knee = self.at(capacity, arrival), self.knee(capacity)
        return {
            "allocation": round(point.allocation, 4),
            "knee": knee and round(knee, 4),
            "failed_pods": point.failed_pods,
        }


def arrivals_at(arrived: Doubles, capacity: float, arrival: float) -> npt.NDArray[np.intp]:
    """Indices of the arrivals over which the figures at ``arrival`` x ``capacity`` are averaged; ``arrived``
    (P,) is the GPU demand that has arrived so far. If no arrival rounds to it, the first one after it, or the
    last."""
    indices = np.flatnonzero(np.round(100 * arrived / capacity) == round(100 * arrival))
    if indices.size:
        return indices
    return np.searchsorted(arrived, [arrival * capacity]).clip(max=arrived.size - 1)


def arrivals(requests: Sequence[Request], capacity: float, ratio: float, seed: int) -> list[int]:
    """Indices of the requests in order of arrival, which request about ``ratio`` x ``capacity`` GPUs."""
    rng = np.random.default_rng(seed)
    gpus = np.array([gpus_of(request) for request in requests])
    per_share = np.array([gpus_of(r) / (r.shares.count if r.shares else 1) for r in requests])
    order: list[int] = rng.permutation(len(requests)).tolist()
    total, limit = float(gpus.sum()), ratio * capacity
    if total >= limit:
        return _thinned(order, gpus, total - limit, rng)
    while total + per_share[drawn := int(rng.integers(len(requests)))] <= limit:
        order.append(drawn)
        total += float(gpus[drawn])
    return order


def fill(
    placer: Placer,
    requests: Sequence[Request],
    *,
    minimum_milli: int = 0,
    progress: Callable[[float], None] = lambda part: None,
) -> Filling:
    """Place each request or drop it; shares of a GPU below ``minimum_milli`` are rejected."""
    rows = np.full(len(requests), -1)
    for i, request in enumerate(requests):
        if i % 1000 == 0:
            progress(i / len(requests))
        if request.shares and request.shares.compute_milli < minimum_milli:
            continue
        placer.arrive(request)
        if allocation := placer.place(request):
            rows[i] = allocation.row
    progress(1.0)
    return Filling(rows, np.array([gpus_of(request) for request in requests]))


def unusable_gpu(fleet: Fleet, mix: Mix) -> float:
    """Expected free GPU, in GPUs, that the next request of the mix cannot use: F as defined in
    ``bench.packing.published.fgd``, summed over the nodes, which is the measure of fragmentation in the same
    paper."""
    parts = fleet.arrays.free_parts()
    free = parts.sum(axis=0)
    expected = 0.0
    for request, frequency in zip(mix.requests, mix.frequency, strict=True):
        shares = request.shares
        fits = reasons_for(fleet, replace(request, memory_bytes=0)) == 0
        too_small = free
        if shares:
            too_small = np.where(parts + 1e-6 >= shares.compute_milli / WHOLE, 0, parts).sum(axis=0)
        expected += frequency * float(np.where(fits, too_small, free).sum())
    return expected


def build_fleet(nodes: Sequence[NodeSpec], values: GpuValues | None = None) -> Fleet:
    """A fleet of these nodes; ``values`` are the values of their GPUs."""
    fleet = Fleet(nodes=len(nodes), gpus=max(len(node.gpus) for node in nodes))
    fleet.values = values or fleet.values
    for node in nodes:
        fleet.put(node)
    return fleet


def gpus_of(request: Request) -> float:
    """GPUs that a request of a trace requests, counting fractions."""
    return request.shares.count * request.shares.compute_milli / 1000 if request.shares else 0.0


def _thinned(order: list[int], gpus: Doubles, excess: float, rng: np.random.Generator) -> list[int]:
    """The order without random pods that request ``excess`` GPUs or slightly more."""
    dropped = set()
    for place in rng.permutation(len(order)).tolist():
        if excess <= 0:
            break
        dropped.add(place)
        excess -= gpus[order[place]]
    return [pod for place, pod in enumerate(order) if place not in dropped]
