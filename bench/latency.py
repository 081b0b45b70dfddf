"""How long filter and prioritize take over HTTP, by cluster size, with all names and with the shortlist.

Each pair is one pod: filter with the names of all nodes, then prioritize with all of them (``shortlist: 0``)
or with those that filter returned. Run alone:

    python -m bench.latency --nodes 100 1000 5000 --pods 300
"""

from __future__ import annotations

import itertools
import json
import statistics
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench import cluster
from bench.client import Client, extender_args
from bench.service import Running, api_server, stowage

SIZES = (100, 1000, 5000)
_WARM_UP = 20


@dataclass(frozen=True, slots=True)
class Row:
    """Milliseconds of each pod, in order. ``cpu_ms`` is CPU of the event loop for both calls."""

    nodes: int
    shortlist: int
    filter_ms: list[float] = field(default_factory=list)
    prioritize_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    @property
    def both_ms(self) -> list[float]:
        return [f + p for f, p in zip(self.filter_ms, self.prioritize_ms, strict=True)]


def measure(running: Running, nodes: int, shortlist: int, pods: int) -> Row:
    """Measure ``pods`` pairs on one connection."""
    names = [cluster.node_name(index) for index in range(nodes)]
    row = Row(nodes, shortlist)
    with Client(running.port, running.pid) as client:
        for number, pod in enumerate(itertools.islice(cluster.arrivals(), pods + _WARM_UP)):
            body = extender_args(pod, names)
            reply = client.post("/scheduler/filter", body)
            filter_ms, filter_cpu = client.seconds * 1e3, client.cpu
            if shortlist:
                body = extender_args(pod, json.loads(reply)["NodeNames"] or names[:1])
            client.post("/scheduler/prioritize", body)
            if number >= _WARM_UP:
                row.filter_ms.append(filter_ms)
                row.prioritize_ms.append(client.seconds * 1e3)
                row.cpu_ms.append((filter_cpu + client.cpu) * 1e3)
    return row


def run(sizes: Sequence[int] = SIZES, pods: int = 300) -> list[Row]:
    """Measure every size with ``shortlist: 0`` and with the default."""
    rows = []
    for nodes in sizes:
        with api_server(nodes) as kubeconfig:
            for shortlist in (0, 64):
                with stowage(kubeconfig, {"STOWAGE_SHORTLIST": str(shortlist)}) as running:
                    rows.append(measure(running, nodes, shortlist, pods))
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table: median / 99th percentile."""
    lines = [
        "| nodes | pods bound | shortlist | filter, ms | prioritize, ms | both, ms | CPU of both, ms |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        cells = (_cell(row.filter_ms), _cell(row.prioritize_ms), _cell(row.both_ms), _cell(row.cpu_ms))
        bound = row.nodes * cluster.PODS_PER_NODE
        lines.append(f"| {row.nodes:,} | {bound:,} | {row.shortlist or 'off'} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(values: Sequence[float]) -> str:
    cuts = statistics.quantiles(values, n=100)
    return f"{statistics.median(values):.2f} / {cuts[98]:.2f}"


def main() -> None:
    """Print the table."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--pods", type=int, default=300)
    args = parser.parse_args()
    print(table(run(args.nodes, args.pods)))


if __name__ == "__main__":
    main()
