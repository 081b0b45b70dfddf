"""How long a start takes and how much memory is in use afterwards.

Each start lists the whole cluster; the kernels are compiled, or loaded from the cache that the start before
has filled. Run alone:

    python -m bench.start --nodes 5000 --rounds 3
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import dataclass

from bench import cluster
from bench.client import Client, extender_args
from bench.service import api_server, stowage

_REQUESTS = 200  # filter and prioritize each, so that what requests cache is counted


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds from the start of the process until ``/readyz`` answers 200; memory in MiB after some
    requests."""

    compiled: bool
    ready_seconds: float
    resident_mib: float
    peak_mib: float


def run(nodes: int = 5000, rounds: int = 3) -> list[Start]:
    """Start with an empty kernel cache and then with the cache that this start filled, ``rounds`` times."""
    starts = []
    with api_server(nodes) as kubeconfig:
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as cache:
                for compiled in (True, False):
                    with stowage(kubeconfig, {"NUMBA_CACHE_DIR": cache}) as running:
                        _send_requests(running.port, running.pid, nodes)
                        memory = running.memory_mib("VmRSS"), running.memory_mib("VmHWM")
                        starts.append(Start(compiled, running.ready_seconds, *memory))
    return starts


def table(starts: Sequence[Start]) -> str:
    """Medians and the range of each kind of start, in Markdown."""
    lines = ["| kernels | ready after, s | resident memory, MiB | its peak, MiB |", "|---|--:|--:|--:|"]
    for compiled, label in ((True, "compiled"), (False, "from the cache")):
        kind = [start for start in starts if start.compiled is compiled]
        seconds = _cell([s.ready_seconds for s in kind], ".1f")
        memory = _cell([s.resident_mib for s in kind], ".0f"), _cell([s.peak_mib for s in kind], ".0f")
        lines.append(f"| {label} | {seconds} | {' | '.join(memory)} |")
    return "\n".join(lines)


def _send_requests(port: int, pid: int, nodes: int) -> None:
    names = [cluster.node_name(index) for index in range(nodes)]
    with Client(port, pid) as client:
        for pod in itertools.islice(cluster.arrivals(), _REQUESTS):
            for verb in ("filter", "prioritize"):
                client.post(f"/scheduler/{verb}", extender_args(pod, names))


def _cell(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def main() -> None:
    """Print the table."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(table(run(args.nodes, args.rounds)))


if __name__ == "__main__":
    main()
