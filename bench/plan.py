"""Duration of commands on a snapshot: until their first line, and until they end.

``explain``, ``top`` and ``plan`` on nodes of eight GPUs with six running pods each (``bench/cluster.py``) and
a hundred pending pods. The kernels are loaded from a cache filled by a preceding run. CPU time is shown in
addition to elapsed time, because it is also meaningful on a busy machine. Run alone:

    python -m bench.plan --nodes 400 1000 --rounds 3
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import cluster
from bench.cells import median_and_range

_WAITING = 100
COMMANDS = (
    ("top",),
    ("explain", "POD"),
    ("plan",),
    ("plan", "drain"),
    ("plan", "change", "--add", "4xH100"),
    ("plan", "moves", "--free", "nodes"),
)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one run, from the start of the process: elapsed time and CPU time (``cpu``)."""

    command: str
    nodes: int
    first_line: float
    first_line_cpu: float
    end: float
    end_cpu: float


def write_snapshot(path: Path, nodes: int) -> str:
    """Write the cluster to a file; returns the key of a pending pod."""
    waiting = list(itertools.islice(cluster.arrivals(), _WAITING))
    items = [*cluster.nodes(nodes), *cluster.bound_pods(nodes), *waiting]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return f"{waiting[0]['metadata']['namespace']}/{waiting[0]['metadata']['name']}"


def measure(command: Sequence[str], snapshot: Path, pod: str, nodes: int) -> Timing:
    """One run. Raises ``CalledProcessError`` if it fails."""
    words = [pod if word == "POD" else word for word in command]
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "extender.cli.main", *words, "--snapshot", str(snapshot)],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    first, first_cpu = time.perf_counter() - started, _cpu_seconds(process.pid)
    process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise subprocess.CalledProcessError(os.waitstatus_to_exitcode(status), words)
    end_cpu = usage.ru_utime + usage.ru_stime
    return Timing(" ".join(command), nodes, first, first_cpu, time.perf_counter() - started, end_cpu)


def _cpu_seconds(pid: int) -> float:
    """CPU time of a running process (proc(5): utime and stime, in ticks)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(nodes: Sequence[int], rounds: int) -> list[Timing]:
    """All commands on all sizes, ``rounds`` times; a preceding run fills the cache of kernels."""
    timings: list[Timing] = []
    with tempfile.TemporaryDirectory() as directory:
        for count in nodes:
            snapshot = Path(directory) / f"{count}-nodes.json"
            pod = write_snapshot(snapshot, count)
            for command in COMMANDS:
                measure(command, snapshot, pod, count)
                timings += [measure(command, snapshot, pod, count) for _ in range(rounds)]
    return timings


def table(timings: Sequence[Timing]) -> str:
    """Medians and the range of each command, in Markdown."""
    head = "| nodes | command | first line after, s | CPU, s | end after, s | CPU, s |"
    lines = [head, "|--:|---|--:|--:|--:|--:|"]
    for count, command in dict.fromkeys((one.nodes, one.command) for one in timings):
        same = [one for one in timings if (one.nodes, one.command) == (count, command)]
        names = "first_line", "first_line_cpu", "end", "end_cpu"
        cells = " | ".join(median_and_range([getattr(one, name) for one in same], ".1f") for name in names)
        lines.append(f"| {count} | `stowage {command}` | {cells} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[400, 1000])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(table(run(args.nodes, args.rounds)))


if __name__ == "__main__":
    main()
