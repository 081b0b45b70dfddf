"""The slowest of 10,000 requests while the cluster changes and other clients read metrics and debug pages.

filter and prioritize alternate on one connection, while pods arrive and end (``--rate`` changes per second,
and ``--burst`` at once every five seconds; one run for each of several values), nodes report their status,
Prometheus scrapes, and the debug endpoint is read. Each request is also sent to an echo (``bench.echo``),
which replies with the same number of bytes and does nothing else: its slowest replies show the delays of the
machine. With ``--before DIR`` the version whose sources are there is measured first. Run alone:

    python -m bench.tails --nodes 5000 --requests 10000 --rate 500 --burst 0 500
"""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import threading
import time
import urllib.error
import urllib.request
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench import cluster
from bench.client import Client, extender_args
from bench.echo import echoed, running_echo
from bench.service import api_server, stowage

LIMIT_MS = 50.0
_FEWEST = 2  # minimum number of values for quantiles
_VISITS = {"/metrics": 5.0, "/debug/nodes": 20.0, "/debug/pods/team-00/none": 7.0}
"""Path -> seconds between two requests."""


@dataclass(frozen=True, slots=True)
class Request:
    """The end of a request (s since the start), its duration and wait for a CPU (ms), the duration of its
    echo (ms), and whether it was a refusal, which may wait for news (``extender/verbs/recheck.py``)."""

    at: float
    verb: str
    ms: float
    starved_ms: float
    echo_ms: float
    refused: bool = False


def run(
    nodes: int = 5000,
    requests: int = 10_000,
    rate: float = 500,
    burst: int = 500,
    sources: Path | None = None,
) -> list[Request]:
    """Send ``requests`` requests on one connection, one at a time, and each to an echo.

    ``sources``: directory of an earlier version to measure, None for this one.
    """
    settings = {"PYTHONPATH": str(sources)} if sources else {}
    names = [cluster.node_name(index) for index in range(nodes)]
    sent: list[Request] = []
    with (
        api_server(nodes, rate=rate, burst=burst) as kubeconfig,
        stowage(kubeconfig, settings) as running,
        running_echo() as bare,
        Client(running.port, running.pid) as client,
        Client(*bare) as echo,
        _visitors(running.port),
    ):
        started = time.perf_counter()
        for pod in itertools.islice(cluster.arrivals(), requests // 2):
            reply, filtered = _ask(client, echo, "filter", extender_args(pod, names), started)
            fit = json.loads(reply)["NodeNames"]
            _, prioritized = _ask(client, echo, "prioritize", extender_args(pod, fit or names), started)
            sent += [replace(filtered, refused=not fit), prioritized]
    return sent


def table(requests: Sequence[Request]) -> str:
    """The distribution as measured and without the time spent waiting for a CPU, as a Markdown table."""
    columns = {
        "as measured": [r.ms for r in requests],
        "without waiting for a CPU": [r.ms - r.starved_ms for r in requests],
        "the same without refusals": [r.ms - r.starved_ms for r in requests if not r.refused],
        "refusals alone": [r.ms - r.starved_ms for r in requests if r.refused],
        "the echo of all, as measured": [r.echo_ms for r in requests],
    }
    lines = [
        f"| {len(requests):,} requests, ms | median | p99 | p99.9 | longest | over {LIMIT_MS:g} "
        "| p99.9 x median |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for label, values in columns.items():
        if len(values) < _FEWEST:
            continue
        cuts = statistics.quantiles(values, n=1000)
        over = sum(value > LIMIT_MS for value in values)
        cells = (statistics.median(values), cuts[989], cuts[998], max(values))
        times = f"{cells[2] / cells[0]:.1f}"
        lines.append(f"| {label} | {' | '.join(f'{cell:.2f}' for cell in cells)} | {over} | {times} |")
    return "\n".join(lines)


def _ask(client: Client, echo: Client, verb: str, args: bytes, started: float) -> tuple[bytes, Request]:
    """The reply, and the figures of the request; refusals are not detected here."""
    reply = client.post(f"/scheduler/{verb}", args)
    at = time.perf_counter() - started
    echo_ms = echoed(echo, args, reply) * 1e3
    return reply, Request(at, verb, client.seconds * 1e3, client.starved * 1e3, echo_ms)


@contextlib.contextmanager
def _visitors(port: int) -> Iterator[None]:
    """Prometheus and readers of the debug endpoint, each in a thread that mostly sleeps."""
    stop = threading.Event()
    threads = [
        threading.Thread(target=_visit, args=(f"http://127.0.0.1:{port}{path}", every, stop), daemon=True)
        for path, every in _VISITS.items()
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _visit(url: str, every: float, stop: threading.Event) -> None:
    while not stop.wait(every):
        with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(url) as response:
            response.read()


def main() -> None:
    """Print the tables and the slowest requests except refusals."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=500)
    parser.add_argument("--burst", type=int, nargs="+", default=[0, 500])
    parser.add_argument("--before", type=Path, help="sources of an earlier version (none)")
    args = parser.parse_args()
    versions = [args.before, None] if args.before else [None]
    for burst, sources in itertools.product(args.burst, versions):
        requests = run(args.nodes, args.requests, args.rate, burst, sources)
        changes = f"{args.rate:g} changes per second, and {burst} at once every 5 s"
        print(f"{'before' if sources else 'now'}: {changes}:\n\n{table(requests)}\n")
        for slow in sorted((one for one in requests if not one.refused), key=lambda r: -r.ms)[:10]:
            waited = f"{slow.starved_ms:.1f} of it without a CPU"
            print(f"{slow.verb} at {slow.at:.2f} s: {slow.ms:.1f} ms, {waited}")


if __name__ == "__main__":
    main()
