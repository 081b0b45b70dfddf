"""``stowage replay --nodes --pods``: trace files under several policies, as rows of figures."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from extender.replay.traces import read_nodes, read_pods
from packing.cost.demand import Mix, by_pods
from packing.model.gpu_catalogue import GpuValues
from packing.policies.placer import Placer
from packing.policies.registry import POLICIES
from packing.replay.pick_node import NodePicker
from packing.replay.timeline import TimedPod, Timeline
from packing.replay.timeline_figures import timeline_figures
from packing.replay.trace import ARRIVING, arrivals, build_fleet, fill, unusable_gpu

Progress = Callable[[str, float], None]
Row = dict[str, Any]


def replay_trace(
    nodes: Path, traces: Sequence[Path], policies: Sequence[str], seeds: Sequence[int], *,
    sample: int, minimum_milli: int, progress: Progress, values: GpuValues | None = None,
) -> Iterator[Row]:  # fmt: skip
    """Rows, one per trace, policy and seed, when as much GPU has arrived as the nodes have.

    ``sample`` is the number of fitting nodes that are looked at, 0 for all; shares below ``minimum_milli``
    are refused; ``values`` say what GPUs are worth. Raises ``BadInput``.
    """
    specs = read_nodes(nodes)
    capacity = float(sum(len(spec.gpus) for spec in specs))
    read = [(trace, [pod.request for pod in read_pods(trace, specs)]) for trace in traces]
    for (trace, requests), policy, seed in product(read, policies, seeds):
        queue = [requests[i] for i in arrivals(requests, capacity, ARRIVING, seed)]
        fleet = build_fleet(specs, values)
        picker = NodePicker(np.arange(len(specs)), sample=sample)
        started = time.perf_counter()
        filling = fill(
            Placer(fleet, POLICIES[policy](minimum_milli=minimum_milli), picker),
            queue,
            minimum_milli=minimum_milli,
            progress=partial(progress, f"{trace.stem} {policy} {seed}"),
        )
        seconds = time.perf_counter() - started
        unusable = 100 * unusable_gpu(fleet, Mix.of(Counter(requests), [by_pods])) / capacity
        yield (
            {"trace": trace.stem, "policy": policy, "seed": seed}
            | filling.figures(capacity, 1.0)
            | {"fragmentation": round(unusable, 4), "seconds": round(seconds, 3)}
        )


def replay_timeline(
    nodes: Path, traces: Sequence[Path], policies: Sequence[str], *, sample: int, progress: Progress
) -> Iterator[Row]:
    """Rows, one per trace and policy: utilisation and waiting times with the trace's times. Raises
    ``BadInput``."""
    specs = read_nodes(nodes)
    capacity = float(sum(len(spec.gpus) for spec in specs))
    read = [
        (
            trace,
            [TimedPod(p.request, p.created or 0.0, p.duration) for p in read_pods(trace, specs, timed=True)],
        )
        for trace in traces
    ]
    for (trace, pods), policy in product(read, policies):
        placer = Placer(
            build_fleet(specs), POLICIES[policy](), NodePicker(np.arange(len(specs)), sample=sample)
        )
        runs = Timeline(placer, pods).replay(partial(progress, f"{trace.stem} {policy}"))
        yield {"trace": trace.stem, "policy": policy, **timeline_figures(runs, pods, capacity)}
