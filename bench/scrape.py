"""How long does a scrape of /metrics keep the event loop busy? Run alone:

    python -m bench.scrape --nodes 2000 5000 --rounds 50

CPU time of the loop for the text of all metrics, on a cluster with six pods a node, 500 that wait, and a
quarter of the nodes in MIG mode. Before each scrape 200 nodes change; bringing their MIG slices up to date is
spread over many turns of the loop and is a column of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from dataclasses import dataclass

from bench import cluster
from bench.node_manifest import Manifest
from extender.k8s.node_manifest import NodeManifest
from extender.k8s.pod_manifest import PodManifest
from extender.protocol.messages import VERBS
from extender.server.service import Service
from extender.settings import Settings
from extender.source.snapshot import Snapshot, SnapshotSource

_CHANGED, _WAITING = 200, 500
_INSTANCES = {"nvidia.com/mig-1g.10gb": "28", "nvidia.com/mig-2g.20gb": "8", "nvidia.com/mig-3g.40gb": "4"}


@dataclass(frozen=True, slots=True)
class Row:
    """Median and largest CPU milliseconds of the text, median of the update, and series."""

    nodes: int
    render_ms: float
    largest_ms: float
    update_ms: float
    series: int


async def measure(count: int, rounds: int) -> Row:
    """Scrape so often, after one scrape that does not count."""
    service = Service(Settings(), SnapshotSource(_snapshot(count), "bench"), "0")
    engine = await service.start()
    for verb, result in itertools.product(VERBS, ("fits", "scored", "bound")):
        service.metrics.answered(verb, result, 0.001)
    render, update, text = [], [], b""
    for _ in range(rounds + 1):
        engine.state.fleet.arrays.generation[:_CHANGED] += 1
        started = time.thread_time()
        await engine.gauges.update()
        updated = time.thread_time()
        text = service.metrics.render()
        update.append((updated - started) * 1e3)
        render.append((time.thread_time() - updated) * 1e3)
    series = sum(not line.startswith(b"#") for line in text.splitlines())
    return Row(count, statistics.median(render[1:]), max(render[1:]), statistics.median(update[1:]), series)


def _snapshot(count: int) -> Snapshot:
    nodes = (
        _with_mig(manifest) if i % 4 == 0 else manifest for i, manifest in enumerate(cluster.nodes(count))
    )
    waiting = itertools.islice(cluster.arrivals(), _WAITING)
    pods = (
        PodManifest.model_validate(pod).record()
        for pod in itertools.chain(cluster.bound_pods(count), waiting)
    )
    records = (NodeManifest.model_validate(node).record() for node in nodes)
    return Snapshot({node.key: node for node in records}, {pod.key: pod for pod in pods})


def _with_mig(node: Manifest) -> Manifest:
    """H100s that are divided into instances."""
    amounts = node["status"]["allocatable"]
    amounts.pop("nvidia.com/gpu")
    amounts |= _INSTANCES
    node["metadata"]["labels"] |= {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559",
    }  # fmt: skip
    return node


def main() -> None:
    """Print the table."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2000, 5000])
    parser.add_argument("--rounds", type=int, default=50)
    args = parser.parse_args()
    print(
        "| nodes | series | text, ms of CPU: median / largest | update of 200 nodes, ms |\n|--:|--:|--:|--:|"
    )
    for nodes in args.nodes:
        row = asyncio.run(measure(nodes, args.rounds))
        times = f"{row.render_ms:.2f} / {row.largest_ms:.2f}"
        print(f"| {row.nodes:,} | {row.series} | {times} | {row.update_ms:.2f} |", flush=True)


if __name__ == "__main__":
    main()
