"""Duration of a start compared with the list calls alone, and the memory used afterwards.

Each start lists the whole cluster; the kernels are compiled, or loaded from the cache filled by the preceding
start. Before each start a plain client reads and discards the same pages. With ``--before``, a directory with
the sources of an earlier version, that version and this one are started alternately. Run alone:

    python -m bench.start --nodes 5000 --rounds 3 --before DIR
"""

from __future__ import annotations

import http.client
import itertools
import json
import tempfile
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

import yaml

from bench import cluster
from bench.cells import median_and_range
from bench.client import Client, extender_args
from bench.service import api_server, cpu_seconds, stowage
from extender.source.list_watch import PAGE

_REQUESTS = 200  # filter and prioritize each, so that the caches of requests are counted
_LISTS = ("/api/v1/nodes", "/api/v1/pods")


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds from the start of the process until ``/readyz`` answers 200, of the list calls alone just
    before, and of CPU until ready; memory in MiB after some requests."""

    version: str
    compiled: bool
    ready_seconds: float
    list_seconds: float
    cpu_seconds: float
    resident_mib: float
    peak_mib: float


def run(
    nodes: int = 5000, rounds: int = 3, before: Path | None = None, *, cached: bool = False
) -> list[Start]:
    """Start with an empty kernel cache and then with the cache that this start filled, ``rounds`` times.

    ``cached``: only the starts from the cache count, and the cache is filled once.
    """
    versions = [("before", before)] if before else []
    with api_server(nodes) as kubeconfig, tempfile.TemporaryDirectory() as directory:
        starts = [
            _start(kubeconfig, nodes, version, sources, Path(directory) / f"{version}-{number}", compiled)
            for number, compiled in _turns(rounds, cached=cached)
            for version, sources in [*versions, ("now", None)]
        ]
    return [start for start in starts if not (cached and start.compiled)]


def _turns(rounds: int, *, cached: bool) -> Iterator[tuple[int, bool]]:
    """(number of the cache, whether it is empty) for each start."""
    if cached:
        yield 0, True
        yield from ((0, False) for _ in range(rounds))
    else:
        yield from itertools.product(range(rounds), (True, False))


def _start(
    kubeconfig: Path, nodes: int, version: str, sources: Path | None, cache: Path, compiled: bool
) -> Start:
    settings = {"NUMBA_CACHE_DIR": str(cache), "PYTHONPYCACHEPREFIX": str(cache / "bytecode")}
    settings |= {"PYTHONDONTWRITEBYTECODE": ""} | ({"PYTHONPATH": str(sources)} if sources else {})
    lists = list_seconds(kubeconfig)
    with stowage(kubeconfig, settings) as running:
        cpu = cpu_seconds(running.pid)
        _send_requests(running.port, running.pid, nodes)
        memory = running.memory_mib("VmRSS"), running.memory_mib("VmHWM")
        return Start(version, compiled, running.ready_seconds, lists, cpu, *memory)


def list_seconds(kubeconfig: Path) -> float:
    """Seconds to read both lists concurrently, in the pages that Stowage requests."""
    server = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    started = time.perf_counter()
    with ThreadPoolExecutor(len(_LISTS)) as pool:
        list(pool.map(lambda path: _read_list(urlsplit(server).netloc, path), _LISTS))
    return time.perf_counter() - started


def _read_list(host: str, path: str) -> None:
    with closing(http.client.HTTPConnection(host)) as connection:
        more = ""
        while True:
            connection.request("GET", f"{path}?limit={PAGE}" + (f"&continue={quote(more)}" if more else ""))
            head, _, _ = connection.getresponse().read().partition(b',"items":')
            more = json.loads(head + b"}")["metadata"].get("continue") or ""
            if not more:
                return


def table(starts: Sequence[Start]) -> str:
    """Medians and the range of each kind of start, in Markdown."""
    lines = [
        "| version | kernels | ready after, s | list calls alone, s | difference, s | CPU until ready, s "
        "| resident memory, MiB | its peak, MiB |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for version, compiled in dict.fromkeys((one.version, one.compiled) for one in starts):
        kind = [one for one in starts if (one.version, one.compiled) == (version, compiled)]
        cells = [
            median_and_range([one.ready_seconds for one in kind], ".1f"),
            median_and_range([one.list_seconds for one in kind], ".1f"),
            median_and_range([one.ready_seconds - one.list_seconds for one in kind], ".1f"),
            median_and_range([one.cpu_seconds for one in kind], ".1f"),
            median_and_range([one.resident_mib for one in kind], ".0f"),
            median_and_range([one.peak_mib for one in kind], ".0f"),
        ]
        kernels = "compiled" if compiled else "from the cache"
        lines.append(f"| {version} | {kernels} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _send_requests(port: int, pid: int, nodes: int) -> None:
    names = [cluster.node_name(index) for index in range(nodes)]
    with Client(port, pid) as client:
        for pod in itertools.islice(cluster.arrivals(), _REQUESTS):
            for verb in ("filter", "prioritize"):
                client.post(f"/scheduler/{verb}", extender_args(pod, names))


def main() -> None:
    """Print the table."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", type=Path, help="sources of an earlier version (none)")
    parser.add_argument("--cached", action="store_true", help="only starts with cached kernels")
    args = parser.parse_args()
    print(table(run(args.nodes, args.rounds, args.before, cached=args.cached)))


if __name__ == "__main__":
    main()
