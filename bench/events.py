"""CPU time to parse and to apply the objects of the first lists and the events of a pod.

In one process, without network and threads, so the cost of waking a thread for each event is not included.
With ``--before``, a directory with the sources of an earlier version, that version is measured alternately
with this one. Run alone:

    python -m bench.events --nodes 5000 --rounds 3 --before DIR
"""

from __future__ import annotations

import gc
import itertools
import json
import logging
import os
import subprocess
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from time import thread_time
from typing import Any, TypeAlias

Costs: TypeAlias = dict[str, tuple[float, float]]
"""Microseconds to parse one object and to apply it, by kind of object."""

_PODS = 1000
"""Number of pods whose events are measured."""
_EVENTS = {"ADDED": "a pod arrives", "BOUND": "it is bound", "RUNNING": "it runs", "DELETED": "it is deleted"}


class _NoSource:
    """The methods of a source that the engine calls at its start and when it applies events."""

    def watches(self) -> Mapping[str, object]:
        """There are no watches."""
        return {}

    def describe(self) -> str:
        return "bench"

    def interruption(self) -> None:
        """Nothing was interrupted."""


def measure(nodes: int) -> Costs:
    """The costs of this version: lists of ``nodes`` nodes with six pods each, then four events of each
    pod."""
    from bench import cluster
    from extender.k8s.objects import REQUIRED_KINDS, Listed
    from extender.server.engine import Engine
    from extender.server.metrics import Metrics
    from extender.settings import Settings
    from extender.source.watched_kinds import WATCHED_KINDS

    logging.disable()
    gc.disable()  # as the service does until it is ready
    engine = Engine(_NoSource(), Settings(), Metrics(list))  # type: ignore[arg-type]
    engine.apply([Listed(kind, frozenset()) for kind in WATCHED_KINDS.keys() - REQUIRED_KINDS])
    costs = {"a node of the list": _list(engine, "Node", cluster.nodes(nodes))}
    costs["a pod of the list"] = _list(engine, "Pod", cluster.bound_pods(nodes))
    return costs | _events(engine, nodes)


def _list(engine: Any, kind: str, objects: Iterable[object]) -> tuple[float, float]:  # noqa: ANN401
    from extender.source.list_watch import PAGE, ListWatch
    from extender.source.watched_kinds import WATCHED_KINDS

    protocol, parse, apply, count = ListWatch(WATCHED_KINDS[kind]), 0.0, 0.0, 0  # type: ignore[index]
    rest = iter(objects)
    while items := list(itertools.islice(rest, PAGE)):
        count += len(items)
        body = _page(items, "more")
        started = thread_time()
        protocol.next_request()
        events = protocol.page(body)
        parsed = thread_time()
        engine.apply(events)
        parse, apply = parse + parsed - started, apply + thread_time() - parsed
    engine.apply(protocol.page(_page([], "")))
    return parse / count * 1e6, apply / count * 1e6


def _page(items: Sequence[object], more: str) -> bytes:
    metadata = {"resourceVersion": "1", "continue": more}
    return json.dumps({"metadata": metadata, "items": items}, separators=(",", ":")).encode()


def _events(engine: Any, nodes: int) -> Costs:  # noqa: ANN401
    from extender.source.list_watch import ListWatch
    from extender.source.watched_kinds import WATCHED_KINDS

    protocol = ListWatch(WATCHED_KINDS["Pod"])
    protocol.next_request()
    protocol.page(_page([], ""))
    protocol.next_request()
    costs = {}
    for label, lines in _lines(nodes).items():
        started = thread_time()
        events = [protocol.chunk(line) for line in lines]
        parsed = thread_time()
        for one in events:
            engine.apply(one)
        applied = thread_time()
        costs[label] = (parsed - started) / _PODS * 1e6, (applied - parsed) / _PODS * 1e6
    return costs


def _lines(nodes: int) -> Mapping[str, list[bytes]]:
    from bench import cluster

    room = itertools.cycle(list(cluster.nodes_with_room(nodes)))
    lines: dict[str, list[bytes]] = {label: [] for label in _EVENTS.values()}
    for number, node in zip(range(5_000_000, 5_000_000 + _PODS), room, strict=False):
        waiting, running = cluster.pod(number, 1), cluster.pod(number, 1, node=node)
        pods = waiting, cluster.pod(number, 1, node=node, phase="Pending"), running, running
        for (kind, label), pod in zip(_EVENTS.items(), pods, strict=True):
            change = {"type": kind if kind in ("ADDED", "DELETED") else "MODIFIED", "object": pod}
            lines[label].append(json.dumps(change, separators=(",", ":")).encode() + b"\n")
    return lines


def run(nodes: int = 5000, rounds: int = 3, before: Path | None = None) -> Iterator[tuple[str, Costs]]:
    """The version and its costs, each in a separate process, alternating."""
    here = Path(__file__).resolve()
    sources = {"before": before, "now": here.parents[1]} if before else {"now": here.parents[1]}
    for _, (version, path) in itertools.product(range(rounds), sources.items()):
        command = [sys.executable, "-P", str(here), "--nodes", str(nodes), "--measure"]
        answer = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": str(path)}, check=True, stdout=subprocess.PIPE
        )
        yield version, json.loads(answer.stdout)


def table(found: Sequence[tuple[str, Costs]]) -> str:
    """Medians (lowest to highest), in Markdown."""
    # Not at the top: earlier versions, which are also measured, have no such module.
    from bench.cells import median_and_range

    lines = ["| CPU, us | version | parse | apply |", "|---|---|--:|--:|"]
    versions = list(dict.fromkeys(version for version, _ in found))
    for what, version in itertools.product(found[0][1], versions):
        pairs = [costs[what] for one, costs in found if one == version]
        cells = (median_and_range(column, ".0f") for column in zip(*pairs, strict=True))
        lines.append(f"| {what} | {version} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", type=Path, help="sources of an earlier version (none)")
    parser.add_argument("--measure", action="store_true", help="print the costs of this process as JSON")
    args = parser.parse_args()
    print(
        json.dumps(measure(args.nodes))
        if args.measure
        else table(list(run(args.nodes, args.rounds, args.before)))
    )


if __name__ == "__main__":
    main()
