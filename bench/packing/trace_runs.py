"""Replays of trace files in all variants of the published protocol, and their bound, as rows."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from bench.packing.bound import NodeBound
from bench.packing.filling import (
    ARRIVING,
    Filling,
    arrivals,
    arrivals_at,
    build_fleet,
    fill,
    gpus_of,
    unusable_gpu,
)
from bench.packing.fixed_scale import FixedScale
from bench.packing.pick_node import NodePicker
from bench.packing.placer import Placer
from bench.packing.policies import POLICIES, known_mix
from bench.packing.traces import read_nodes, read_pods
from packing.cost.demand import Mix, by_pods
from packing.model.node_spec import NodeSpec
from packing.model.request import Request

Rows = list[dict[str, Any]]
Curve = tuple[list[float], list[float]]
"""Arrived and allocated GPU, in percent of the capacity."""


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Options of a trace replay. ``arrival``: when to measure, as multiples of the capacity. ``sample`` 0
    considers every node. With ``fixed_scale`` the scheduler gets only scores from 0 to 10
    (``FixedScale``)."""

    arrival: tuple[float, ...] = (1.0,)
    random_ties: bool = False
    shuffle_nodes: bool = False
    sample: int = 0
    known_mix: bool = False
    fixed_scale: bool = False


def replay_trace(
    nodes: Path, traces: Sequence[Path], policies: Sequence[str], seeds: Sequence[int], options: TraceOptions
) -> tuple[Rows, dict[str, Curve]]:
    """Rows, one per trace, policy, seed and arrival, and the curve of the first seed per trace and policy."""
    specs = read_nodes(nodes)
    capacity = float(sum(len(spec.gpus) for spec in specs))
    rows: Rows = []
    curves: dict[str, Curve] = {}
    read = ((trace, [pod.request for pod in read_pods(trace)]) for trace in traces)
    for (trace, requests), policy, seed in product(read, policies, seeds):
        end_figures, filling = _fill(specs, requests, policy, seed, options)
        curves.setdefault(f"{trace.stem} {policy}", _curve(filling, capacity))
        for arrival in options.arrival:
            name = {"trace": trace.stem, "policy": policy, "seed": seed, "arrival": arrival}
            rows.append(name | filling.figures(capacity, arrival) | end_figures)
    return rows, curves


def bound_trace(nodes: Path, traces: Sequence[Path], seeds: Sequence[int], options: TraceOptions) -> Rows:
    """Rows of the policy "bound", one per trace, seed and arrival: upper bounds for every scheduler.

    A figure of ``replay_trace`` is a mean over several arrivals. The optimum is concave in the arrived
    demand, so the bound at its mean is a bound on the mean of the figures.
    """
    specs = read_nodes(nodes)
    rows: Rows = []
    for trace in traces:
        requests = [pod.request for pod in read_pods(trace)]
        bound = NodeBound(specs, requests)
        for seed in seeds:
            queue = _queue(requests, bound.capacity, seed, options)
            for arrival in options.arrival:
                started = time.perf_counter()
                gpus = bound.allocation(_arrived(queue, bound.capacity, arrival))
                seconds = round(time.perf_counter() - started, 3)
                name = {"trace": trace.stem, "policy": "bound", "seed": seed, "arrival": arrival}
                no_run = {"knee": None, "failed_pods": None, "fragmentation": None, "seconds": seconds}
                allocation = math.ceil(100 * gpus / bound.capacity * 1e4) / 1e4
                rows.append(name | {"allocation": allocation} | no_run)
    return rows


def _fill(
    specs: Sequence[NodeSpec], requests: Sequence[Request], policy: str, seed: int, options: TraceOptions
) -> tuple[dict[str, float], Filling]:
    """One run: the final fragmentation and the duration in seconds, and the placement of each arrival."""
    fleet, counts = build_fleet(specs), Counter(requests)
    capacity = float(sum(len(spec.gpus) for spec in specs))
    queue = _queue(requests, capacity, seed, options)
    rng = np.random.default_rng([seed, 1])
    order = rng.permutation(len(specs)) if options.shuffle_nodes else np.arange(len(specs))
    picker = NodePicker(order, sample=options.sample, ties=rng if options.random_ties else None)
    make = FixedScale if options.fixed_scale else POLICIES[policy]
    chosen = make(known_mix(policy, counts) if options.known_mix else None)
    started = time.perf_counter()
    filling = fill(Placer(fleet, chosen, picker, learns=not options.known_mix), queue)
    seconds = time.perf_counter() - started
    unusable = 100 * unusable_gpu(fleet, Mix.of(counts, [by_pods])) / capacity
    return {"fragmentation": round(unusable, 4), "seconds": round(seconds, 3)}, filling


def _queue(requests: Sequence[Request], capacity: float, seed: int, options: TraceOptions) -> list[Request]:
    """The requests in order of arrival."""
    ratio = max(ARRIVING, *options.arrival)
    return [requests[i] for i in arrivals(requests, capacity, ratio, seed)]


def _arrived(queue: Sequence[Request], capacity: float, arrival: float) -> Counter[Request]:
    """Number of arrivals of each request: the mean over the arrivals that the figures average."""
    indices = arrivals_at(np.cumsum([gpus_of(request) for request in queue]), capacity, arrival)
    weights = 1 - np.searchsorted(indices, np.arange(len(queue))) / indices.size
    counts: Counter[Request] = Counter()
    for request, weight in zip(queue, weights.tolist(), strict=True):
        counts[request] += weight
    return counts


def _curve(filling: Filling, capacity: float) -> Curve:
    """The curve, sampled at every 20th arrival."""
    arrived = np.cumsum(filling.gpus)
    used = np.cumsum(np.where(filling.rows >= 0, filling.gpus, 0.0))
    return (100 * arrived[::20] / capacity).tolist(), (100 * used[::20] / capacity).tolist()
