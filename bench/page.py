"""The cost of the page at ``/``: its load time in Chromium, and its effect on the verbs while it is open.

    python -m bench.page --nodes 2000 --loads 10 --pairs 20
    python -m bench.page --screenshots docs/images

Load times are those of a real Chromium on the same machine, until all nodes are drawn. For the verbs there
are ``--pairs`` of blocks of ``--seconds``, one with a page and one without, in random order, while pods
arrive and end. A separate process sends the requests of an open page at the same intervals, so that no
browser uses the CPUs of the service. The difference is the mean difference of the blocks' medians, with its
standard error.
"""

from __future__ import annotations

import http.client
import io
import itertools
import json
import random
import re
import select
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image  # also required by matplotlib

from bench import cluster
from bench.chromium import Page, chromium, find_chromium
from bench.client import Client, extender_args
from bench.page_cluster import manifests
from bench.service import api_server, cpu_seconds, free_port, running_process, stowage, until_ok

_READY = "document.body?.dataset.ready"
_POLL, _HISTORY = 2.0, 10.0  # seconds, as in main.js
_RATE = 20.0  # pods that arrive and end per second
_PAUSE = 0.02  # seconds between two pods


@dataclass(frozen=True, slots=True)
class Block:
    """Figures of one block: the median and mean milliseconds of filter and prioritize together, the mean CPU
    of the event loop during a request (including preceding work for the page), and the CPU seconds per second
    of the whole service."""

    median_ms: float
    mean_ms: float
    loop_ms: float
    service: float


_ROWS = (
    ("filter and prioritize, median, ms", "median_ms"),
    ("the same, mean, ms", "mean_ms"),
    ("CPU of the event loop during it, mean, ms", "loop_ms"),
    ("CPU of the service, s/s", "service"),
)


def table(pairs: Sequence[tuple[Block, Block]]) -> str:
    """Pairs of blocks without and with a page: medians, and the mean difference with its standard error, in
    Markdown."""
    lines = ["| | without a page | with an open page | difference |", "|---|--:|--:|--:|"]
    for label, name in _ROWS:
        without, opened = ([getattr(pair[which], name) for pair in pairs] for which in (0, 1))
        differences = [after - before for before, after in zip(without, opened, strict=True)]
        error = statistics.stdev(differences) / len(differences) ** 0.5
        medians = f"{statistics.median(without):.3f} | {statistics.median(opened):.3f}"
        lines.append(f"| {label} | {medians} | {statistics.mean(differences):+.3f} ± {error:.3f} |")
    return "\n".join(lines)


@contextmanager
def snapshot_service(nodes: int) -> Iterator[str]:
    """``stowage serve`` on the mixed fleet; its URL."""
    with tempfile.TemporaryDirectory() as folder:
        (path := Path(folder) / "fleet.json").write_text(json.dumps(manifests(nodes)))
        port = free_port()
        program = str(Path(sys.executable).with_name("stowage"))
        command = [program, "serve", f"--snapshot={path}", f"--port={port}"]
        quiet = {"STOWAGE_DRAIN_SECONDS": "0", "STOWAGE_LOG_LEVEL": "warning"}
        with running_process(command, quiet) as serving:
            until_ok(serving, f"http://127.0.0.1:{port}/readyz", 600)
            yield f"http://127.0.0.1:{port}"


def loads(page: Page, url: str, count: int) -> list[float]:
    """Seconds from the navigation until all nodes are drawn."""
    found = []
    for _ in range(count):
        page.open("about:blank")
        page.open(f"{url}/")
        page.wait_for(_READY)
        found.append(page.run("performance.getEntriesByName('drawn')[0].startTime") / 1000)
    return found


def verbs(nodes: int, pairs: int, seconds: float) -> list[tuple[Block, Block]]:
    """Pairs of blocks without and with a page, each pair in random order."""
    found, rng = [], random.Random(1)
    with api_server(nodes, rate=_RATE) as kubeconfig, stowage(kubeconfig) as running:
        names = [cluster.node_name(index) for index in range(nodes)]
        bodies = [extender_args(pod, names) for pod in itertools.islice(cluster.arrivals(), 50)]
        command = [sys.executable, "-m", "bench.page", "--poll", str(running.port)]
        poller = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
        assert poller.stdin is not None
        try:
            with Client(running.port, running.pid) as client:
                _block(client, bodies, 2.0, running.pid)  # caches fill
                for _ in range(pairs):
                    blocks = {}
                    for which in rng.sample(("off", "on"), 2):
                        print(which, file=poller.stdin, flush=True)
                        time.sleep(0.5)
                        blocks[which] = _block(client, bodies, seconds, running.pid)
                    found.append((blocks["off"], blocks["on"]))
        finally:
            poller.kill()
            poller.wait()
    return found


def _block(client: Client, bodies: Sequence[bytes], seconds: float, pid: int) -> Block:
    end, both, loop, before = time.monotonic() + seconds, [], [], cpu_seconds(pid)
    for body in itertools.cycle(bodies):
        client.post("/scheduler/filter", body)
        filtered, cpu = client.seconds, client.cpu
        client.post("/scheduler/prioritize", body)
        both.append(1000 * (filtered + client.seconds))
        loop.append(1000 * (cpu + client.cpu))
        if time.monotonic() > end:
            break
        time.sleep(_PAUSE)
    used = (cpu_seconds(pid) - before) / seconds
    return Block(statistics.median(both), statistics.mean(both), statistics.mean(loop), used)


def poll(port: int) -> None:
    """Send the requests of an open page, between the lines "on" and "off" of standard input."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    version, is_open, read_at, history_at = "", False, 0.0, 0.0
    while True:
        if select.select([sys.stdin], [], [], 0.05)[0]:
            is_open = sys.stdin.readline().strip() == "on"
        now = time.monotonic()
        if is_open and now - read_at >= _POLL:
            read_at = now
            answer = _get(connection, f"/debug/fleet?since={version}")
            found = re.search(rb'"version":"([^"]*)"', answer[:200])
            version = found[1].decode() if found else ""
        if is_open and now - history_at >= _HISTORY:
            history_at = now
            _get(connection, "/debug/fleet/history")


def _get(connection: http.client.HTTPConnection, path: str) -> bytes:
    connection.request("GET", path)
    return connection.getresponse().read()


_SHOTS = (
    ("page-40-light", 40, "light", "#sel=gpu/mig-002/3"),
    ("page-40-dark", 40, "dark", "#q=is:stranded"),
    ("page-2000-light", 2000, "light", ""),
    ("page-2000-dark", 2000, "dark", "#color=use"),
)
"""File, nodes, color scheme and view."""


def screenshots(folder: Path) -> None:
    """Write the screenshots of docs/page.md."""
    path = find_chromium()
    if path is None:
        raise SystemExit("Chromium is required: apt-get install chromium")
    for nodes, shots in itertools.groupby(_SHOTS, lambda shot: shot[1]):
        with snapshot_service(nodes) as url, chromium(path, 1280, 800) as page:
            time.sleep(12)  # a second sample
            for name, _, scheme, fragment in shots:
                page.prefer(scheme)
                page.open("about:blank")
                page.open(f"{url}/{fragment}")
                page.wait_for(_READY)
                page.run("document.getElementById('source').textContent = 'an example'")
                time.sleep(1)
                # 128 colors are sufficient, at a third of the size.
                picture = Image.open(io.BytesIO(page.picture())).convert("RGB").quantize(128)
                picture.save(folder / f"{name}.png", optimize=True)


def main() -> None:
    """Print the figures, or write the screenshots."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--loads", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--screenshots", type=Path)
    parser.add_argument("--poll", type=int, help="used internally")
    args = parser.parse_args()
    if args.poll:
        poll(args.poll)
    elif args.screenshots:
        screenshots(args.screenshots)
    else:
        if (path := find_chromium()) and args.loads:
            with snapshot_service(args.nodes) as url, chromium(path) as page:
                found = loads(page, url, args.loads)
            text = f"{statistics.median(found):.2f} s (median), {max(found):.2f} s (slowest)"
            print(f"Load at {args.nodes:,} nodes, {len(found)} times: {text}, {found[0]:.2f} s (first)\n")
        if args.pairs:
            print(table(verbs(args.nodes, args.pairs, args.seconds)))


if __name__ == "__main__":
    main()
