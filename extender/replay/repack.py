"""``stowage replay --snapshot``: the running GPU pods of a cluster, placed again on the same nodes.

The pods that can move are taken off their nodes and placed one by one, in the order in which they started;
the policy learns and updates its prices as in the service. If pods find no place, they are left where they
run from the beginning, and the others are placed again: every row has a place for every pod that runs today.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from extender.cluster.factory import prior_of
from extender.replay.movable import counted
from extender.replay.running_pods import Flags, MovablePod, RunningPods
from extender.replay.runs import Progress
from extender.settings import Settings
from packing.fleet.arrays import ALMOST_WHOLE, Floats
from packing.fleet.feasibility import fits_when_empty, gpu_sizes, reasons_for
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.stranded import whole_gpus, whole_nodes
from packing.model.reasons import Reason
from packing.model.request import Request
from packing.policies.interface import Policy
from packing.policies.placer import Placer
from packing.policies.registry import POLICIES
from packing.replay.pick_node import NodePicker

TODAY = "today"
_ROUNDING = 1e-3  # sizes are sums of 32-bit floats
_ROUNDS = 8
"""After so many rounds in which pods found no place, all pods stay where they are."""


def replay_snapshot(
    paths: Sequence[Path], policies: Sequence[str], settings: Settings, sample: int, progress: Progress
) -> Iterator[dict[str, Any]]:
    """Rows, one for the cluster as it is and one per policy: whole GPUs and whole nodes free, how many pods
    run on another node then, and which were left where they run because the policy found no place for them.
    ``sample`` is the number of fitting nodes that are looked at, 0 for all.

    Raises ``BadInput``, ``Unavailable`` and ``SettingsError``.
    """
    pods = RunningPods.of_files(paths, settings)
    order = np.argsort(pods.state.fleet.arrays.order, kind="stable")
    bound = most_whole_gpus_free(pods)
    yield _row(pods, TODAY, [], {}, 0.0) | {"most_whole_gpus_free": bound}
    prior, minimum = prior_of(settings.demand), settings.minimum_slice_milli
    for name in policies:

        def new_placer(fleet: Fleet, name: str = name) -> Placer:
            policy: Policy = POLICIES[name](prior=prior, minimum_milli=minimum)
            return Placer(fleet, policy, NodePicker(order, sample=sample))

        row = _repacked(pods, name, new_placer, partial(progress, f"{pods.name} {name}"))
        yield row | {"most_whole_gpus_free": bound}


def most_whole_gpus_free(pods: RunningPods) -> int:
    """A bound: no placement of the movable pods leaves more GPUs whole and free.

    A pod takes at least the least part of a GPU (mean of compute and memory) that its request is on a node
    where it may go, and the parts of one GPU add up to 1 at most. A request for all of a GPU takes one that
    is whole. What the others take beyond the free parts of GPUs that are not whole comes from whole ones.
    """
    with pods.emptied() as fleet:
        arrays = fleet.arrays
        whole = pods.gpus & whole_gpus(arrays)
        requests = {pod.request for pod in pods.movable}
        least = {request: _least_gpus(fleet, request, pods.open) for request in requests}
        sizes = [min(least[pod.request][0], float(least[pod.request][1][pod.home])) for pod in pods.movable]
        needs = list(zip(sizes, [pod.request.gpus for pod in pods.movable], strict=True))
        in_whole = sum(gpus for size, gpus in needs if size > ALMOST_WHOLE * gpus)
        in_parts = sum(size for size, gpus in needs if size <= ALMOST_WHOLE * gpus)
        capacity = np.maximum([arrays.compute_capacity, arrays.memory_capacity], 1)
        parts = (np.stack([arrays.compute, arrays.memory]) / capacity).mean(axis=0)
        beside = float(parts[pods.gpus & ~whole].clip(min=0).sum())
        return int(whole.sum()) - in_whole - max(0, math.ceil(in_parts - beside - _ROUNDING))


def _least_gpus(fleet: Fleet, request: Request, open_rows: Flags) -> tuple[float, Floats]:
    """GPUs that the request takes on the node where it takes least, and on each node (N,)."""
    sizes = gpu_sizes(fleet, request)
    fitting = sizes[open_rows & fits_when_empty(fleet, request)]
    return float(fitting.min()) if fitting.size else 0.0, sizes


def _repacked(
    pods: RunningPods, policy: str, new_placer: Callable[[Fleet], Placer], report: Callable[[float], None]
) -> dict[str, Any]:
    started = time.perf_counter()
    kept: dict[str, str] = {}
    for _ in range(_ROUNDS):
        with pods.emptied(kept) as fleet:
            moving = [pod for pod in pods.movable if pod.key not in kept]
            placed, no_place = _place_all(new_placer(fleet), moving, report)
            row = _row(pods, policy, placed, kept, time.perf_counter() - started)
            for _, allocation in placed:
                fleet.give_back(allocation, leaves=False)
        if not no_place:
            return row
        kept |= no_place
    kept = {pod.key: kept.get(pod.key, "others found no place") for pod in pods.movable}
    return _row(pods, policy, [], kept, time.perf_counter() - started)


def _place_all(
    placer: Placer, pods: Sequence[MovablePod], report: Callable[[float], None]
) -> tuple[list[tuple[MovablePod, Allocation]], dict[str, str]]:
    """Place each pod in turn: what the pods hold now, and by key why the others fit nowhere."""
    placed: list[tuple[MovablePod, Allocation]] = []
    no_place: dict[str, str] = {}
    for i, pod in enumerate(pods):
        placer.arrive(pod.demand)
        if allocation := placer.place(pod.request, pod.allowed()):
            placed.append((pod, allocation))
        else:
            no_place[pod.key] = _most_frequent_reason(placer.fleet, pod)
        report(i / len(pods))
    report(1.0)
    return placed, no_place


def _most_frequent_reason(fleet: Fleet, pod: MovablePod) -> str:
    reasons = Counter(reasons_for(fleet, pod.request)[pod.allowed()].tolist())
    return Reason(reasons.most_common(1)[0][0]).text


def _row(
    pods: RunningPods,
    policy: str,
    placed: Sequence[tuple[MovablePod, Allocation]],
    kept: dict[str, str],
    seconds: float,
) -> dict[str, Any]:
    """The figures of the fleet as it is now."""
    arrays, counted_gpus = pods.state.fleet.arrays, pods.gpus
    whole = whole_gpus(arrays) & counted_gpus
    return {
        "trace": pods.name,
        "policy": policy,
        "nodes": int(counted_gpus.any(axis=0).sum()),
        "gpus": int(counted_gpus.sum()),
        "whole_gpus_free": int(whole.sum()),
        "whole_nodes_free": int(whole_nodes(arrays, whole).sum()),
        "pods": len(pods.movable),
        "moved_pods": sum(pod.home != allocation.row for pod, allocation in placed),
        "kept_pods": len(kept),
        "kept": dict(kept),
        "pinned_pods": len(pods.staying),
        "pinned": counted(pods.staying.values()),
        "seconds": round(seconds, 3),
    }
