"""The cost of shards: one trace on one fleet, and on the same fleet split into independent parts.

Nodes are assigned to shards at random. A pod's shard is chosen before the search for a node: at random
(``hash``), or the one with the largest free fraction (``free``). A pod that does not fit in its shard is
dropped. Run alone:

    python -m bench.packing.shards --nodes CSV --pods CSV --shards 1 2 4 8 --seeds 42-44
"""

from __future__ import annotations

import statistics
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from pathlib import Path

from extender.cli.precompile import choose_cache

if __name__ == "__main__":
    choose_cache()  # before the imports that load kernels

import numpy as np

from bench.packing.filling import ARRIVING, Filling, arrivals, build_fleet, gpus_of
from bench.packing.pick_node import NodePicker
from bench.packing.placer import Placer
from bench.packing.policies import POLICIES
from bench.packing.seeds import seed_range
from bench.packing.traces import read_nodes, read_pods
from packing.fleet.arrays import Doubles
from packing.model.node_spec import NodeSpec
from packing.model.request import Request

Choose = Callable[[Doubles], int]
"""The shard for the next pod, given the free GPUs of each."""


def allocation(
    nodes: Sequence[NodeSpec], queue: Sequence[Request], shards: int, seed: int, *, hashed: bool
) -> float:
    """Allocated GPU in percent when the arrived GPU demand of ``queue`` equals the capacity."""
    rng = np.random.default_rng([seed, shards])
    dealt = rng.permutation(len(nodes))
    parts = [[nodes[i] for i in dealt[part::shards]] for part in range(shards)]
    placers = [_placer(part) for part in parts]
    capacity = np.array([float(sum(len(node.gpus) for node in part)) for part in parts])
    free = capacity.copy()
    rows, gpus = np.full(len(queue), -1), np.array([gpus_of(request) for request in queue])
    for number, request in enumerate(queue):
        shard = int(rng.integers(shards)) if hashed else int((free / capacity).argmax())
        placers[shard].arrive(request)
        if placed := placers[shard].place(request):
            rows[number] = placed.row
            free[shard] -= gpus[number]
    return Filling(rows, gpus).at(float(capacity.sum()), 1.0).allocation


def _placer(nodes: Sequence[NodeSpec]) -> Placer:
    picker = NodePicker(np.arange(len(nodes)))
    return Placer(build_fleet(nodes), POLICIES["inventory"](None), picker, learns=True)


def queue_of(nodes: Sequence[NodeSpec], requests: Sequence[Request], seed: int) -> list[Request]:
    """The requests in order of arrival, up to slightly more than the capacity."""
    capacity = float(sum(len(node.gpus) for node in nodes))
    queue = [requests[i] for i in arrivals(requests, capacity, ARRIVING, seed)]
    arrived = np.cumsum([gpus_of(request) for request in queue])
    return queue[: int(np.searchsorted(arrived, 1.02 * capacity)) + 1]


def main() -> None:
    """Print a row for each number of shards: the mean over the seeds."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=Path, required=True)
    parser.add_argument("--pods", type=Path, required=True)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--seeds", type=seed_range, default=seed_range("42-44"))
    args = parser.parse_args()
    nodes, requests = read_nodes(args.nodes), [pod.request for pod in read_pods(args.pods)]
    queues = {seed: queue_of(nodes, requests, seed) for seed in args.seeds}
    print("| shards | nodes per shard | random shard | freest shard |\n|--:|--:|--:|--:|", flush=True)
    for shards in args.shards:
        means = [
            statistics.mean(
                allocation(nodes, queue, shards, seed, hashed=hashed) for seed, queue in queues.items()
            )
            for hashed in (True, False)
        ]
        columns = f"{shards} | {len(nodes) // shards:,} | {means[0]:.2f} | {means[1]:.2f}"
        print(f"| {columns} |", flush=True)


if __name__ == "__main__":
    main()
