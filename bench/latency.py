"""Latency of filter and prioritize over HTTP by cluster size, with all names and with the shortlist.

Each pair is one pod: filter with the names of all nodes, then prioritize with all of them (``shortlist: 0``)
or with those that filter returned. Each request of a pair is also sent to an echo (``bench.echo``), which
reads and writes the same number of bytes: machines differ, and the ratio shows Stowage's share. Run alone:

    python -m bench.latency --nodes 100 1000 5000 20000 --pods 300

With ``--against URL`` each pod is also sent to another running extender with the same cluster (served by
``python -m bench.apiserver``); ``--dialect``: the format of pods and nodes.
"""

from __future__ import annotations

import itertools
import json
import statistics
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import cluster
from bench.against import Answer, Other
from bench.client import Client, extender_args
from bench.dialects import DIALECTS
from bench.echo import echoed, running_echo
from bench.service import Running, api_server, stowage

SIZES = (100, 1000, 5000, 20000)
_WARM_UP = 20


@dataclass(frozen=True, slots=True)
class Pair:
    """filter and prioritize for one pod: milliseconds of both, CPU milliseconds of the event loop, including
    the work after its answers, and the number of nodes that filter returned."""

    filter_ms: float
    prioritize_ms: float
    cpu_ms: float
    nodes: int = 0

    @property
    def ms(self) -> float:
        return self.filter_ms + self.prioritize_ms


@dataclass(frozen=True, slots=True)
class Row:
    """The pairs of each pod, in order: of Stowage, of the echo, and if present of an earlier version and of
    another extender."""

    nodes: int
    shortlist: int
    pairs: list[Pair] = field(default_factory=list)
    echoes: list[Pair] = field(default_factory=list)
    before: list[Pair] = field(default_factory=list)
    others: list[Answer] = field(default_factory=list)

    @property
    def times_echo(self) -> float:
        """The median of both calls as a multiple of that of their echo."""
        return _ratio([one.ms for one in self.pairs], [one.ms for one in self.echoes])

    @property
    def cpu_times_echo(self) -> float:
        """The same ratio for the CPU of the event loops, which other work on the machine hardly affects."""
        return _ratio([one.cpu_ms for one in self.pairs], [one.cpu_ms for one in self.echoes])

    @property
    def cpu_times_before(self) -> float:
        """The CPU of both calls as a multiple of that of the earlier version."""
        return _ratio([one.cpu_ms for one in self.pairs], [one.cpu_ms for one in self.before])


class Asker:
    """Calls one Stowage like kube-scheduler, and the echo of both calls."""

    def __init__(self, client: Client, shortlist: int) -> None:
        self._client, self._shortlist = client, shortlist

    def ask(self, pod: dict[str, Any], names: list[str], echo: Client | None = None) -> tuple[Pair, Pair]:
        """The pair of this pod, and its echo (zeros without an echo)."""
        client, body = self._client, extender_args(pod, names)
        cpu, echo_cpu = client.settled(), echo.settled() if echo else 0.0
        reply = client.post("/scheduler/filter", body)
        filtered, first = client.seconds, echoed(echo, body, reply) if echo else 0.0
        fitting = json.loads(reply)["NodeNames"] or []
        if self._shortlist:
            body = extender_args(pod, fitting or names[:1])
        reply = client.post("/scheduler/prioritize", body)
        prioritized, second = client.seconds, echoed(echo, body, reply) if echo else 0.0
        cpu, echo_cpu = client.settled() - cpu, echo.settled() - echo_cpu if echo else 0.0
        pair = Pair(filtered * 1e3, prioritized * 1e3, cpu * 1e3, len(fitting))
        return pair, Pair(first * 1e3, second * 1e3, echo_cpu * 1e3)


def measure(
    running: Running,
    echo: tuple[int, int],
    nodes: int,
    shortlist: int,
    pods: int,
    before: Running | None = None,
    other: Other | None = None,
    dialect: str = "nvidia",
) -> Row:
    """Measure ``pods`` pairs on one connection, alternating with the echo and the others on separate
    connections.

    The names start at a different node for each pod: kube-scheduler does not send the same list twice.
    """
    names = [cluster.node_name(index) for index in range(nodes)]
    row = Row(nodes, shortlist)
    with ExitStack() as clients:
        stowage_now = Asker(clients.enter_context(Client(running.port, running.pid)), shortlist)
        bare = clients.enter_context(Client(*echo))
        earlier = clients.enter_context(Client(before.port, before.pid)) if before else None
        for number, pod in enumerate(itertools.islice(cluster.arrivals(dialect=dialect), pods + _WARM_UP)):
            start = number * 37 % nodes
            rotated = names[start:] + names[:start]
            pair, of_echo = stowage_now.ask(pod, rotated, bare)
            # Also with the echo: without it this version would find its data still in the CPU's caches.
            was = Asker(earlier, shortlist).ask(pod, rotated, bare)[0] if earlier else None
            answer = other.ask(pod, rotated) if other else None
            if number >= _WARM_UP:
                row.pairs.append(pair)
                row.echoes.append(of_echo)
                row.before.extend([was] if was else [])
                row.others.extend([answer] if answer else [])
    return row


def run(
    sizes: Sequence[int] = SIZES,
    pods: int = 300,
    before: Path | None = None,
    shortlists: Sequence[int] = (0, 64),
    other: Other | None = None,
    dialect: str = "nvidia",
) -> list[Row]:
    """Measure every size with ``shortlist: 0`` and with the default. ``before``: a directory with the sources
    of an earlier version, which runs with the packages of this version."""
    rows = []
    for nodes in sizes:
        # kube-scheduler sends pods that the watch has observed.
        waiting = pods + _WARM_UP
        with api_server(nodes, waiting=waiting, dialect=dialect) as kubeconfig, running_echo() as echo:
            for shortlist in shortlists:
                settings = {"STOWAGE_SHORTLIST": str(shortlist)}
                with ExitStack() as stack:
                    running = stack.enter_context(stowage(kubeconfig, settings))
                    was = None
                    if before is not None:
                        was = stack.enter_context(stowage(kubeconfig, settings | {"PYTHONPATH": str(before)}))
                    rows.append(measure(running, echo, nodes, shortlist, pods, was, other, dialect))
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table: median / 99th percentile."""
    lines = [
        "| nodes | pods bound | shortlist | filter, ms | prioritize, ms | both, ms | CPU of both, ms "
        "| x echo | CPU x echo | CPU x before |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        bound, pairs = row.nodes * cluster.PODS_PER_NODE, row.pairs
        columns = [f"{row.nodes:,}", f"{bound:,}", str(row.shortlist or "off")]
        columns += [_cell([one.filter_ms for one in pairs]), _cell([one.prioritize_ms for one in pairs])]
        columns += [_cell([one.ms for one in pairs]), _cell([one.cpu_ms for one in pairs])]
        columns += [f"{row.times_echo:.1f}", f"{row.cpu_times_echo:.1f}"]
        columns.append(f"{row.cpu_times_before:.2f}" if row.before else "-")
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines)


def comparison(rows: Sequence[Row]) -> str:
    """Stowage compared with the other extender, as a Markdown table: medians, and the number of pods for
    which a node fits."""
    lines = [
        "| nodes | shortlist | Stowage, ms | other, ms | other: filter | other: CPU | x other "
        "| pods that fit: Stowage | other |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        ours = [one.ms for one in row.pairs]
        theirs = [one.filter_ms + one.prioritize_ms for one in row.others]
        columns = [f"{row.nodes:,}", str(row.shortlist or "off"), f"{statistics.median(ours):.2f}"]
        columns += [f"{statistics.median(theirs):.2f}"]
        columns += [f"{statistics.median([one.filter_ms for one in row.others]):.2f}"]
        columns += [f"{statistics.median([one.cpu_ms for one in row.others]):.2f}"]
        columns += [f"{_ratio(ours, theirs):.2f}"]
        columns += [str(sum(one.nodes > 0 for one in answers)) for answers in (row.pairs, row.others)]
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines)


def _ratio(values: Sequence[float], base: Sequence[float]) -> float:
    return statistics.median(values) / statistics.median(base)


def _cell(values: Sequence[float]) -> str:
    cuts = statistics.quantiles(values, n=100)
    return f"{statistics.median(values):.2f} / {cuts[98]:.2f}"


def main() -> None:
    """Print the table."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--pods", type=int, default=300)
    parser.add_argument("--before", type=Path, help="directory with the sources of an earlier version")
    parser.add_argument("--against", metavar="URL", help="urlPrefix of another running extender")
    parser.add_argument("--against-pid", type=int, default=0, help="its process, to measure its CPU")
    parser.add_argument(
        "--dialect", choices=list(DIALECTS), default="nvidia", help="format of nodes and pods"
    )
    args = parser.parse_args()
    with ExitStack() as stack:
        other = stack.enter_context(Other(args.against, args.against_pid)) if args.against else None
        rows = run(args.nodes, args.pods, args.before, other=other, dialect=args.dialect)
    print(table(rows))
    if args.against:
        print(f"\n{comparison(rows)}")


if __name__ == "__main__":
    main()
