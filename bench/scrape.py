"""The time for which a scrape of /metrics blocks the event loop. Run alone:

    python -m bench.scrape --nodes 2000 5000 --rounds 50

CPU time of the event loop, on a cluster with six pods per node, 500 pending pods, and a quarter of the nodes
in MIG mode. Before each scrape 200 nodes change. A scrape takes many turns of the loop; the longest of them
is the time that another request may have to wait.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Coroutine
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
    """Medians of CPU milliseconds: a scrape, and its longest turn; the maximum turn of all; the number of
    series."""

    nodes: int
    scrape_ms: float
    turn_ms: float
    largest_ms: float
    series: int


async def measure(count: int, rounds: int) -> Row:
    """Scrape ``rounds`` times, after one scrape that does not count."""
    service = Service(Settings(), SnapshotSource(_snapshot(count), "bench"), "0")
    engine = await service.start()
    for verb, result in itertools.product(VERBS, ("fits", "scored", "bound")):
        service.metrics.answered(verb, result, 0.001)
    scrapes, text = [], b""
    for _ in range(rounds + 1):
        engine.state.fleet.arrays.generation[:_CHANGED] += 1
        text, turns = _turns(service.render_metrics())
        scrapes.append(turns)
    longest = [max(turns) for turns in scrapes[1:]]
    return Row(
        count,
        statistics.median(sum(turns) for turns in scrapes[1:]),
        statistics.median(longest),
        max(longest),
        sum(not line.startswith(b"#") for line in text.splitlines()),
    )


def _turns(scrape: Coroutine[None, None, bytes]) -> tuple[bytes, list[float]]:
    """The answer, and the CPU milliseconds of each turn."""
    turns: list[float] = []
    while True:
        started = time.thread_time()
        try:
            scrape.send(None)
        except StopIteration as end:
            return bytes(end.value), turns
        finally:
            turns.append((time.thread_time() - started) * 1e3)


def _snapshot(count: int) -> Snapshot:
    nodes = (
        _with_mig(manifest) if i % 4 == 0 else manifest for i, manifest in enumerate(cluster.nodes(count))
    )
    waiting = itertools.islice(cluster.arrivals(), _WAITING)
    pods = (
        PodManifest.from_value(pod).record() for pod in itertools.chain(cluster.bound_pods(count), waiting)
    )
    records = (NodeManifest.from_value(node).record() for node in nodes)
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
    print("| nodes | series | a scrape, ms of CPU | its longest turn, ms: median / largest |")
    print("|--:|--:|--:|--:|")
    for nodes in args.nodes:
        row = asyncio.run(measure(nodes, args.rounds))
        turn = f"{row.turn_ms:.2f} / {row.largest_ms:.2f}"
        print(f"| {row.nodes:,} | {row.series} | {row.scrape_ms:.2f} | {turn} |", flush=True)


if __name__ == "__main__":
    main()
