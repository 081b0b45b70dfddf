"""Speed of the default policy, per decision and per replay of a trace, compared with our FGD in the same run:

    python -m bench.packing.speed --data DIR [--traces default,gpuspec33] [--rounds 3]

DIR is that of ``bench.packing``. A decision is the cost of all 1,213 nodes and the choice of one of them. The
replays are those of ``stowage replay`` (1.3 x the capacity arrives); the fastest of several rounds counts.
Kernels are compiled before the measurement.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np

from extender.cli.precompile import choose_cache

if __name__ == "__main__":
    choose_cache()  # before the imports that load kernels

from bench.packing.filling import ARRIVING, arrivals, build_fleet, fill
from bench.packing.pick_node import NodePicker
from bench.packing.placer import Placer
from bench.packing.policies import POLICIES, known_mix
from bench.packing.traces import read_nodes, read_pods
from packing.cost.demand import Mix
from packing.fleet.arrays import Floats
from packing.fleet.fleet import Fleet
from packing.model.node_spec import NodeSpec
from packing.model.request import Request
from packing.policies.interface import Policy

SEED = 42
WAYS = (("inventory", True), ("inventory", False), ("fgd", True))
"""Policies, and whether the mix is known."""


class Timed:
    """A policy and a node picker that record their combined time for every request."""

    def __init__(self, policy: Policy, picker: NodePicker) -> None:
        self._policy, self._picker = policy, picker
        self._cost, self._began = policy.cost, 0
        self.nanoseconds: list[int] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._policy, name)

    def cost(self, fleet: Fleet, request: Request) -> Floats:
        self._began = time.perf_counter_ns()
        return self._cost(fleet, request)

    def pick_node(self, cost: Floats) -> int:
        row = self._picker(cost)
        self.nanoseconds.append(time.perf_counter_ns() - self._began)
        return row


def replay(
    specs: Sequence[NodeSpec], queue: Sequence[Request], policy: str, mix: Mix | None
) -> tuple[float, list[int]]:
    """Seconds of the whole replay, and nanoseconds of each decision."""
    timed = Timed(POLICIES[policy](mix), NodePicker(np.arange(len(specs))))
    placer = Placer(build_fleet(specs), cast(Policy, timed), timed.pick_node, learns=mix is None)
    began = time.perf_counter()
    fill(placer, queue)
    return time.perf_counter() - began, timed.nanoseconds


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="bench.packing.speed", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="directory of the openb CSV files")
    parser.add_argument("--traces", default="default,gpuspec33")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    specs = read_nodes(args.data / "openb_node_list_gpu_node.csv")
    print("| trace | policy | mix | arrivals | decision, us: median / p99 | replay, s |")
    print("|---|---|---|--:|--:|--:|")
    for trace in args.traces.split(","):
        requests = [pod.request for pod in read_pods(args.data / f"openb_pod_list_{trace}.csv")]
        gpus = float(sum(len(spec.gpus) for spec in specs))
        queue = [requests[i] for i in arrivals(requests, gpus, ARRIVING, SEED)]
        counts = Counter(requests)
        for policy, known in WAYS:
            mix = known_mix(policy, counts) if known else None
            seconds, nanoseconds = min(replay(specs, queue, policy, mix) for _ in range(args.rounds))
            middle, late = np.percentile(nanoseconds, [50, 99]) / 1e3
            cells = [trace, policy, "known" if known else "learned", f"{len(queue):,}"]
            print("|", " | ".join([*cells, f"{middle:.0f} / {late:.0f}", f"{seconds:.2f}"]), "|", flush=True)


if __name__ == "__main__":
    main()
