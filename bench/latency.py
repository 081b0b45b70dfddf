"""How long filter and prioritize take over HTTP, by cluster size, with all names and with the shortlist.

Each pair is one pod: filter with the names of all nodes, then prioritize with all of them (``shortlist: 0``)
or with those that filter returned. Each request of a pair is also sent to an echo (``bench.echo``), which
reads and writes as many bytes: machines differ, and the ratio of both says what Stowage adds. Run alone:

    python -m bench.latency --nodes 100 1000 5000 20000 --pods 300
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
from bench.echo import running_echo
from bench.service import Running, api_server, stowage

SIZES = (100, 1000, 5000, 20000)
_WARM_UP = 20


@dataclass(frozen=True, slots=True)
class Row:
    """Milliseconds of each pod, in order. ``cpu_ms`` is CPU of the event loop for both calls, ``echo_ms`` the
    time of an echo of both."""

    nodes: int
    shortlist: int
    filter_ms: list[float] = field(default_factory=list)
    prioritize_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    echo_ms: list[float] = field(default_factory=list)
    echo_cpu_ms: list[float] = field(default_factory=list)

    @property
    def both_ms(self) -> list[float]:
        return [f + p for f, p in zip(self.filter_ms, self.prioritize_ms, strict=True)]

    @property
    def times_echo(self) -> float:
        """The median of both calls as a multiple of that of their echo."""
        return statistics.median(self.both_ms) / statistics.median(self.echo_ms)

    @property
    def cpu_times_echo(self) -> float:
        """The same of the CPU of the event loops."""
        return statistics.median(self.cpu_ms) / statistics.median(self.echo_cpu_ms)


def measure(running: Running, echo: tuple[int, int], nodes: int, shortlist: int, pods: int) -> Row:
    """Measure ``pods`` pairs on one connection, in turns with the echo on another one."""
    names = [cluster.node_name(index) for index in range(nodes)]
    row = Row(nodes, shortlist)
    with Client(running.port, running.pid) as client, Client(*echo) as bare:
        for number, pod in enumerate(itertools.islice(cluster.arrivals(), pods + _WARM_UP)):
            body = extender_args(pod, names)
            reply = client.post("/scheduler/filter", body)
            filter_ms, filter_cpu = client.seconds * 1e3, client.cpu
            bare.post(f"/{len(reply)}", body)
            echo_ms, echo_cpu = bare.seconds * 1e3, bare.cpu
            if shortlist:
                body = extender_args(pod, json.loads(reply)["NodeNames"] or names[:1])
            reply = client.post("/scheduler/prioritize", body)
            bare.post(f"/{len(reply)}", body)
            if number >= _WARM_UP:
                row.filter_ms.append(filter_ms)
                row.prioritize_ms.append(client.seconds * 1e3)
                row.cpu_ms.append((filter_cpu + client.cpu) * 1e3)
                row.echo_ms.append(echo_ms + bare.seconds * 1e3)
                row.echo_cpu_ms.append((echo_cpu + bare.cpu) * 1e3)
    return row


def run(sizes: Sequence[int] = SIZES, pods: int = 300) -> list[Row]:
    """Measure every size with ``shortlist: 0`` and with the default."""
    rows = []
    for nodes in sizes:
        with api_server(nodes) as kubeconfig, running_echo() as echo:
            for shortlist in (0, 64):
                with stowage(kubeconfig, {"STOWAGE_SHORTLIST": str(shortlist)}) as running:
                    rows.append(measure(running, echo, nodes, shortlist, pods))
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table: median / 99th percentile."""
    lines = [
        "| nodes | pods bound | shortlist | filter, ms | prioritize, ms | both, ms | CPU of both, ms "
        "| x echo | CPU x echo |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        cells = (_cell(row.filter_ms), _cell(row.prioritize_ms), _cell(row.both_ms), _cell(row.cpu_ms))
        bound = row.nodes * cluster.PODS_PER_NODE
        columns = [f"{row.nodes:,}", f"{bound:,}", str(row.shortlist or "off"), *cells]
        columns += [f"{row.times_echo:.1f}", f"{row.cpu_times_echo:.1f}"]
        lines.append(f"| {' | '.join(columns)} |")
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
