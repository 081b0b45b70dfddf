"""Replay: the same work against the same fleet under one policy or another. Pure and seeded.

The protocol of the published experiments (Weng et al., USENIX ATC 2023, code and result files of
hkust-adsl/kubernetes-scheduler-simulator): the cluster starts empty; the pods of a trace arrive once each in
an order shuffled by the seed; below 1.3 x the capacity, draws with replacement from the trace are appended,
above it random pods are left out; a pod is placed or dropped for good, and nothing departs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from packing.fleet.fleet import Fleet
from packing.fleet.placement import allocation_of
from packing.model.node_spec import NodeSpec
from packing.model.request import Request
from packing.policies.registry import Policy
from packing.replay.pick_node import Pick

REPRICE = 500
"""Placements between two pricings, and arrivals between two rebuilds of a learnt mix."""

KNEE = 0.01
"""Part of the capacity that has been dropped at the knee of a filling."""

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Filling:
    """What happened to each arrival, in order: the ``row`` it got (-1: none), and the GPUs it asked for."""

    rows: npt.NDArray[np.int64]
    gpus: Doubles

    def at(self, capacity: float, arrival: float) -> FillPoint:
        """The figures when the GPU that arrived is ``arrival`` x ``capacity`` (GPUs).

        As published: the mean over the arrivals at which arrived / capacity, in per cent, rounds to it.
        """
        arrived = np.cumsum(self.gpus)
        used = np.cumsum(np.where(self.rows >= 0, self.gpus, 0.0))
        there = reached(arrived, capacity, arrival)
        failed = int((self.rows[: there[-1] + 1] < 0).sum())
        return FillPoint(float(100 * used[there].mean() / capacity), failed)

    def knee(self, capacity: float) -> float | None:
        """GPU that had arrived, in per cent of the capacity, when ``KNEE`` of the capacity had been dropped:
        so far allocation follows arrivals. None if it never came to that."""
        dropped = np.cumsum(np.where(self.rows < 0, self.gpus, 0.0))
        beyond = np.flatnonzero(dropped >= KNEE * capacity)
        return float(100 * self.gpus[: beyond[0] + 1].sum() / capacity) if beyond.size else None


@dataclass(frozen=True, slots=True)
class FillPoint:
    """Allocated GPU in per cent of capacity, and pods dropped so far."""

    allocation: float
    failed_pods: int


def reached(arrived: Doubles, capacity: float, arrival: float) -> npt.NDArray[np.intp]:
    """Indices of the arrivals over which figures at ``arrival`` x ``capacity`` are a mean, the one there or
    the last if there is none; ``arrived`` (P,) is the GPU that has arrived by then."""
    there = np.flatnonzero(np.round(100 * arrived / capacity) == round(100 * arrival))
    return there if there.size else np.searchsorted(arrived, [arrival * capacity]).clip(max=arrived.size - 1)


def arrivals(requests: Sequence[Request], capacity: float, ratio: float, seed: int) -> list[int]:
    """Indices of the requests in order of arrival, about ``ratio`` x ``capacity`` GPUs of them."""
    rng = np.random.default_rng(seed)
    gpus = np.array([gpus_of(request) for request in requests])
    one = np.array([gpus_of(request) / max(1, _count(request)) for request in requests])
    order: list[int] = rng.permutation(len(requests)).tolist()
    total, limit = float(gpus.sum()), ratio * capacity
    if total >= limit:
        return _thinned(order, gpus, total - limit, rng)
    while total + one[drawn := int(rng.integers(len(requests)))] <= limit:
        order.append(drawn)
        total += float(gpus[drawn])
    return order


def fill(
    fleet: Fleet, policy: Policy, requests: Sequence[Request], pick: Pick, *, learn: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> Filling:  # fmt: skip
    """Place each request in turn or drop it. With ``learn`` the policy sees arrivals, and its tables follow
    them."""
    rows = np.full(len(requests), -1)
    placed, next_learning, last_pricing = 0, 1, 0
    policy.adopt(fleet, policy.plan(fleet)())
    for i, request in enumerate(requests):
        if learn:
            policy.observe(request)
            if i + 1 >= next_learning:
                policy.adopt(fleet, policy.plan(fleet)())
                next_learning = min(2 * (i + 1), i + 1 + REPRICE)
        elif placed >= last_pricing + REPRICE:
            policy.refresh(fleet)
            last_pricing = placed
        row = pick(policy.cost(fleet, request))
        if row >= 0:
            fleet.take(allocation_of(fleet, row, request, policy.choose(fleet, request, row)))
            rows[i], placed = row, placed + 1
        if i % 1000 == 0:
            progress(i + 1)
    progress(len(requests))
    return Filling(rows, np.array([gpus_of(request) for request in requests]))


def build_fleet(nodes: Sequence[NodeSpec]) -> Fleet:
    """A fleet of these nodes, all empty."""
    fleet = Fleet(nodes=len(nodes), gpus=max(len(node.gpus) for node in nodes))
    for node in nodes:
        fleet.put(node)
    return fleet


def gpus_of(request: Request) -> float:
    """GPUs that a request of a trace asks for."""
    return request.shares.count * request.shares.compute_milli / 1000 if request.shares else 0.0


def _count(request: Request) -> int:
    return request.shares.count if request.shares else 0


def _thinned(order: list[int], gpus: Doubles, excess: float, rng: np.random.Generator) -> list[int]:
    """Leave out random pods until the excess is gone."""
    dropped = set()
    for place in rng.permutation(len(order)).tolist():
        if excess <= 0:
            break
        dropped.add(place)
        excess -= gpus[order[place]]
    return [pod for place, pod in enumerate(order) if place not in dropped]
