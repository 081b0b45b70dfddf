"""A flood of pod events: memory, how old the state is, and how long answers take.

After the start, pods of a scripted API server (``bench.apiserver``) change at ``--rate`` per second. Every
second one more pod is created, and the time is taken until ``/debug/pods`` knows it: that is the age of the
state, with all buffers in between. One client calls filter and prioritize all the time. With ``--before DIR``
the version whose sources are there is measured first. Run alone:

    python -m bench.flood --nodes 3000 --rate 2000 --minutes 3
"""

from __future__ import annotations

import itertools
import json
import threading
import time
import urllib.error
import urllib.request
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import cluster
from bench.client import Client
from bench.latency import Asker
from bench.service import Running, api_server, cpu_seconds, free_port, stowage

_POLL, _LONGEST, _SHORTLIST = 0.02, 60.0, 64  # seconds, and the default of the setting


@dataclass(slots=True)
class Seen:
    """Resident MiB, ages of the state in seconds, milliseconds of filter and prioritize, sent events."""

    memory: list[float] = field(default_factory=list)
    ages: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)
    refused: int = 0
    sent: int = 0
    cpu: float = 0.0  # seconds
    seconds: float = 0.0

    def row(self) -> str:
        """A row of the table."""
        ages, answers, late = sorted(self.ages), sorted(self.answers), self.memory[len(self.memory) // 6 :]
        figures = [self.sent / self.seconds, self.cpu / max(self.sent, 1) * 1e6, late[0], late[-1], max(late)]
        cells = [f"{figure:,.0f}" for figure in figures]
        cells += [f"{ages[len(ages) // 2]:.2f}", f"{ages[-1]:.2f}"]
        cells += [f"{answers[len(answers) * part // 1000]:.1f}" for part in (500, 990, 999)]
        return " | ".join([*cells, f"{len(answers):,}", str(self.refused)])


def measure(running: Running, port: int, nodes: int, rate: float, seconds: float) -> Seen:
    """Flood this Stowage, whose API server listens on ``port``."""
    seen, stop = Seen(), threading.Event()
    asking = threading.Thread(target=_ask, args=(running, nodes, seen, stop))
    before, cpu, began = _get(port, f"/rate?pods={rate}")["sent"], cpu_seconds(running.pid), time.monotonic()
    asking.start()
    for number in itertools.count(9_000_000):
        if time.monotonic() - began >= seconds:
            break
        seen.memory.append(running.memory_mib())
        seen.ages.append(_age(running, port, number))
        time.sleep(max(0.0, 1 - seen.ages[-1]))
    seen.seconds, seen.cpu = time.monotonic() - began, cpu_seconds(running.pid) - cpu
    seen.sent = _get(port, "/rate?pods=0")["sent"] - before
    stop.set()
    asking.join()
    return seen


def _ask(running: Running, nodes: int, seen: Seen, stop: threading.Event) -> None:
    names = [cluster.node_name(index) for index in range(nodes)]
    with Client(running.port, running.pid) as client:
        asker = Asker(client, _SHORTLIST)
        for pod in cluster.arrivals():
            if stop.wait(0.02):
                return
            pair, _ = asker.ask(pod, names)
            seen.answers += [pair.filter_ms, pair.prioritize_ms]
            seen.refused += not pair.nodes


def _age(running: Running, port: int, number: int) -> float:
    """Seconds until the state knows a pod that the API server sends now; ``_LONGEST`` if it does not."""
    pod, sent = _get(port, f"/mark?pod={number}"), time.monotonic()
    while time.monotonic() - sent < _LONGEST:
        try:
            _get(running.port, f"/debug/pods/{pod['namespace']}/{pod['name']}")
            break
        except urllib.error.HTTPError:
            time.sleep(_POLL)
    return time.monotonic() - sent


def _get(port: int, path: str) -> Any:  # noqa: ANN401
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return json.load(answer)


HEAD = """| version | events/s sent | CPU, us/event | MiB after 1/6 | at the end | peak \
| age of the state, s: median | max | answers, ms: median | p99 | p99.9 | number | without a node |"""


def main() -> None:
    """Print a row for each version."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=3000)
    parser.add_argument("--rate", type=float, default=2000)
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--before", type=Path, help="sources of an earlier version (none)")
    args = parser.parse_args()
    print(HEAD, "|---" * 13 + "|", sep="\n", flush=True)
    for name, sources in [("before", args.before)] * bool(args.before) + [("now", None)]:
        port, settings = free_port(), {"PYTHONPATH": str(sources)} if sources else {}
        with api_server(args.nodes, port=port) as kubeconfig, stowage(kubeconfig, settings) as running:
            seen = measure(running, port, args.nodes, args.rate, args.minutes * 60)
        print(f"| {name} | {seen.row()} |", flush=True)


if __name__ == "__main__":
    main()
