"""From files and options to the rows of a replay: what ``stowage replay`` and the benchmarks run."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.packing import mig
from bench.packing.bound import NodeBound
from bench.packing.mig import ProfileMix
from bench.packing.mixes import replay_mix
from extender.replay.traces import BadTrace, read_mixes, read_nodes, read_pods
from packing.cost.demand import Mix, by_pods
from packing.model.node_spec import NodeSpec
from packing.model.request import Request
from packing.policies.baselines.scored import Scored
from packing.policies.fgd import unusable_gpu
from packing.policies.registry import POLICIES, known_mix
from packing.replay.pick_node import Pick
from packing.replay.timeline import replay_times
from packing.replay.trace import Filling, arrivals, build_fleet, fill, gpus_of, reached

Progress = Callable[[str, float], None]
_RATIO = 1.3
"""Arrivals of the published protocol, as a multiple of the capacity."""
_OF_NO_RUN = {"knee": None, "failed_pods": None, "fragmentation": None}
"""What rows of the bound leave open."""


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """How a trace is replayed; ``sample`` 0 looks at every node, shares below ``minimum_milli`` are refused,
    ``scored`` lets the scheduler see scores on a fixed scale only (``packing.policies.baselines.scored``)."""

    arrival: tuple[float, ...] = (1.0,)
    random_ties: bool = False
    shuffle_nodes: bool = False
    sample: int = 0
    known_mix: bool = False
    minimum_milli: int = 0
    scored: bool = False


def replay_trace(
    nodes: Path, traces: Sequence[Path], policies: Sequence[str], seeds: Sequence[int], options: TraceOptions,
    progress: Progress,
) -> tuple[list[dict[str, Any]], dict[str, tuple[list[float], list[float]]]]:  # fmt: skip
    """Rows, one per trace, policy, seed and arrival, and a curve of the first seed per trace and policy."""
    shapes = read_nodes(nodes)
    capacity = float(sum(len(shape.gpus) for shape in shapes))
    rows: list[dict[str, Any]] = []
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for trace in traces:
        requests = [pod.request for pod in read_pods(trace)]
        for policy in policies:
            for seed in seeds:
                label = f"{trace.stem} {policy} {seed}"
                report = lambda part, label=label: progress(label, part)  # noqa: E731
                row, filling = _fill_once(shapes, requests, policy, seed, options, report)
                curves.setdefault(f"{trace.stem} {policy}", _curve(filling, capacity))
                knee = filling.knee(capacity)
                for arrival in options.arrival:
                    mark = filling.at(capacity, arrival)
                    figures = {
                        "allocation": round(mark.allocation, 4),
                        "knee": knee and round(knee, 4),
                        "failed_pods": mark.failed_pods,
                    }
                    name = {"trace": trace.stem, "policy": policy, "seed": seed, "arrival": arrival}
                    rows.append(name | figures | row)
    return rows, curves


def bound_trace(
    nodes: Path, traces: Sequence[Path], seeds: Sequence[int], options: TraceOptions, progress: Progress
) -> list[dict[str, Any]]:
    """Rows of the policy "bound", one per trace, seed and arrival: what no scheduler can exceed.

    A figure of ``replay_trace`` is a mean over some arrivals. The optimum is concave in what has arrived, so
    the bound for the mean of what has arrived by then is one for the mean of the figures.
    """
    shapes = read_nodes(nodes)
    rows: list[dict[str, Any]] = []
    for trace in traces:
        requests = [pod.request for pod in read_pods(trace)]
        bound = NodeBound(shapes, requests)
        for i, seed in enumerate(seeds):
            progress(f"{trace.stem} bound {seed}", i / len(seeds))
            queue = _queue(requests, bound.capacity, seed, options)
            for arrival in options.arrival:
                started = time.perf_counter()
                gpus = bound.allocation(_arrived(queue, bound.capacity, arrival))
                seconds = round(time.perf_counter() - started, 3)
                figures = {"allocation": _rounded_up(100 * gpus / bound.capacity)}
                name = {"trace": trace.stem, "policy": "bound", "seed": seed, "arrival": arrival}
                rows.append(name | figures | _OF_NO_RUN | {"seconds": seconds})
        progress(f"{trace.stem} bound", 1.0)
    return rows


def _queue(requests: Sequence[Request], capacity: float, seed: int, options: TraceOptions) -> list[Request]:
    """The requests in order of arrival."""
    ratio = max(_RATIO, *options.arrival)
    return [requests[i] for i in arrivals(requests, capacity, ratio, seed)]


def _arrived(queue: Sequence[Request], capacity: float, arrival: float) -> Counter[Request]:
    """How many of each request have come at this arrival, as a mean over those that the figures average."""
    there = reached(np.cumsum([gpus_of(request) for request in queue]), capacity, arrival)
    weights = 1 - np.searchsorted(there, np.arange(len(queue))) / there.size
    counts: Counter[Request] = Counter()
    for request, weight in zip(queue, weights.tolist(), strict=True):
        counts[request] += weight
    return counts


def _rounded_up(figure: float) -> float:
    return math.ceil(figure * 1e4) / 1e4


def _fill_once(
    shapes: Sequence[NodeSpec], requests: Sequence[Request], policy: str, seed: int, options: TraceOptions,
    report: Callable[[float], None],
) -> tuple[dict[str, float], Filling]:  # fmt: skip
    fleet, counts = build_fleet(shapes), Counter(requests)
    queue = _queue(requests, float(sum(len(s.gpus) for s in shapes)), seed, options)
    rng = np.random.default_rng([seed, 1])
    order = rng.permutation(len(shapes)) if options.shuffle_nodes else np.arange(len(shapes))
    pick = Pick(order, sample=options.sample, ties=rng if options.random_ties else None)
    known = known_mix(policy, counts) if options.known_mix else None
    make = Scored if options.scored else POLICIES[policy]
    chosen = make(known, minimum_milli=options.minimum_milli)
    started = time.perf_counter()
    taken = np.array([not _too_small(request, options.minimum_milli) for request in queue], bool)
    filling = fill(
        fleet,
        chosen,
        [request for request, able in zip(queue, taken, strict=True) if able],
        pick,
        learn=not options.known_mix,
        progress=lambda done: report(done / len(queue)),
    )
    filling = _with_refused(filling, queue, taken)
    seconds = time.perf_counter() - started
    unusable = 100 * unusable_gpu(fleet, Mix.of(counts, [by_pods])) / sum(len(s.gpus) for s in shapes)
    return {"fragmentation": round(unusable, 4), "seconds": round(seconds, 3)}, filling


def _too_small(request: Request, minimum_milli: int) -> bool:
    """Whether a request of a trace is refused; a trace shares memory as it shares compute."""
    return request.shares is not None and request.shares.compute_milli < minimum_milli


def _with_refused(filling: Filling, queue: Sequence[Request], taken: npt.NDArray[np.bool_]) -> Filling:
    """The filling with the requests that were not ``taken`` up in their places: arrived, but not placed."""
    rows = np.full(len(queue), -1)
    rows[taken] = filling.rows
    return Filling(rows, np.array([gpus_of(request) for request in queue]))


def _curve(filling: Filling, capacity: float) -> tuple[list[float], list[float]]:
    """Arrived and allocated per cent at every 20th arrival."""
    arrived = np.cumsum(filling.gpus)
    used = np.cumsum(np.where(filling.rows >= 0, filling.gpus, 0.0))
    return (100 * arrived[::20] / capacity).tolist(), (100 * used[::20] / capacity).tolist()


def replay_timeline(
    nodes: Path, traces: Sequence[Path], policies: Sequence[str], options: TraceOptions, progress: Progress
) -> list[dict[str, Any]]:
    """Rows, one per trace and policy: utilisation and waiting times with real arrivals and durations."""
    shapes = read_nodes(nodes)
    rows = []
    for trace in traces:
        pods = [pod for pod in read_pods(trace) if pod.created is not None]
        if not pods:
            raise BadTrace(f"{trace}: no pod has a creation_time")
        for policy in policies:
            progress(f"{trace.stem} {policy}", 0.0)
            figures = replay_times(
                build_fleet(shapes),
                POLICIES[policy](),
                [pod.request for pod in pods],
                np.array([pod.created for pod in pods], float),
                np.array([pod.deleted or np.inf for pod in pods], float),
                Pick(np.arange(len(shapes)), sample=options.sample),
            )
            rows.append({"trace": trace.stem, "policy": policy, **figures})
            progress(f"{trace.stem} {policy}", 1.0)
    return rows


def replay_mixes(
    path: Path, policies: Sequence[str], seeds: Sequence[int], *, departures: bool, progress: Progress
) -> list[dict[str, Any]]:
    """Rows, one per mix, load, policy and seed."""
    rows = []
    for mix in read_mixes(path):
        known = mig.POLICIES if isinstance(mix.work, ProfileMix) else tuple(POLICIES)
        if unknown := [name for name in policies if name not in known]:
            names = ", ".join(known)
            raise BadTrace(f"{path}: {mix.work.name} can be packed by {names}; not by {', '.join(unknown)}")
        for load in mix.dynamic_loads if departures else mix.fill_loads:
            for policy in policies:
                for i, seed in enumerate(seeds):
                    progress(f"{mix.work.name} {load} {policy}", i / len(seeds))
                    figures = replay_mix(mix.work, policy, load=load, seed=seed, departures=departures)
                    rows.append(
                        {"mix": mix.work.name, "load": load, "policy": policy, "seed": seed, **figures}
                    )
                progress(f"{mix.work.name} {load} {policy}", 1.0)
    return rows
