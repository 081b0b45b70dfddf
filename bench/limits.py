"""Measures the figures of ``limits.yaml``, and fails if one exceeds its margin.

Every figure is a ratio of two values of the same run, lower is better: machines differ, and one machine
differs from hour to hour. Slowdowns of 20 % should be detected. Run alone:

    python -m bench.limits --only echo-1000-shortlist memory
"""

from __future__ import annotations

import itertools
import statistics
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

import yaml

from bench import cluster, latency, request
from bench.client import Client, extender_args
from bench.echo import running_echo
from bench.service import api_server, stowage

FILE = Path(__file__).with_name("limits.yaml")
_SHORTLIST = 64
_PODS = 300
_BEFORE_MEMORY = 100  # requests
_SIZES = (100, 1000, 5000)
_ECHO_SIZES = (100, 1000)  # with more nodes the echo differs too much from hour to hour


@dataclass(frozen=True, slots=True)
class Limit:
    """``observed``: the median of the runs when the file was written; ``spread``: their highest minus their
    lowest. ``margin``: the fraction of ``observed`` by which a later median may be higher."""

    name: str
    what: str
    observed: float
    spread: float
    margin: float

    @property
    def most(self) -> float:
        """The highest value that passes."""
        return self.observed * (1 + self.margin)


def read(path: Path = FILE) -> list[Limit]:
    """The limits of a file. Raises ``ValueError`` if a figure is incomplete or duplicated."""
    limits = []
    for entry in yaml.safe_load(path.read_text())["figures"]:
        if set(entry) != {field.name for field in fields(Limit)}:
            raise ValueError(
                f"{path.name}: {entry.get('name')}: expected name, what, observed, spread, margin"
            )
        limits.append(Limit(**entry))
    if len({limit.name for limit in limits}) < len(limits):
        raise ValueError(f"{path.name}: two figures have one name")
    return limits


@dataclass(frozen=True, slots=True)
class Verdict:
    """The measured values of one figure, and whether their median passes."""

    limit: Limit
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def passes(self) -> bool:
        return self.median <= self.limit.most

    @property
    def text(self) -> str:
        """One row of the table."""
        spread = max(self.values) - min(self.values)
        result = "ok" if self.passes else "WORSE"
        if self.median < self.limit.observed * (1 - self.limit.margin):
            result = "better: lower it in the file"
        columns = self.limit.name, f"{self.limit.observed:g}", f"{self.limit.most:.2f}"
        return f"| {' | '.join(columns)} | {self.median:.2f} | {spread:.2f} | {result} |"


def echo(nodes: int, shortlist: int, rounds: int) -> list[float]:
    """CPU of filter and prioritize together as a multiple of that of their echo, on one running Stowage."""
    with (
        api_server(nodes, waiting=2 * _PODS) as kubeconfig,
        running_echo() as bare,
        stowage(kubeconfig, {"STOWAGE_SHORTLIST": str(shortlist)}) as running,
    ):
        rows = [latency.measure(running, bare, nodes, shortlist, _PODS) for _ in range(rounds)]
    return [undisturbed(row.pairs) / undisturbed(row.echoes) for row in rows]


def undisturbed(pairs: Sequence[latency.Pair]) -> float:
    """The lower quartile of the CPU, ms: other work on the machine can only add to it."""
    return statistics.quantiles([pair.cpu_ms for pair in pairs], n=4)[0]


def memory(rounds: int) -> list[float]:
    """Resident memory with 5,000 nodes and 30,000 pods as a multiple of that with 100 nodes and 600 pods."""
    return [_resident(5000) / _resident(100) for _ in range(rounds)]


def _resident(nodes: int) -> float:
    names = [cluster.node_name(index) for index in range(nodes)]
    with (
        api_server(nodes) as kubeconfig,
        stowage(kubeconfig) as running,
        Client(running.port, running.pid) as client,
    ):
        for pod in itertools.islice(cluster.arrivals(), _BEFORE_MEMORY):
            client.post("/scheduler/filter", extender_args(pod, names))
        return running.memory_mib()


def in_process(nodes: int, shortlist: int, rounds: int) -> list[float]:
    """Filter and prioritize without HTTP, as a multiple of Python's json for the body of filter."""
    return [request.measure(nodes, shortlist).times_json for _ in range(rounds)]


MEASURES: Mapping[str, Callable[[int], list[float]]] = {
    **{f"request-{nodes}-all": partial(in_process, nodes, 0) for nodes in _SIZES},
    **{f"request-{nodes}-shortlist": partial(in_process, nodes, _SHORTLIST) for nodes in _SIZES},
    **{f"echo-{nodes}-all": partial(echo, nodes, 0) for nodes in _ECHO_SIZES},
    **{f"echo-{nodes}-shortlist": partial(echo, nodes, _SHORTLIST) for nodes in _ECHO_SIZES},
    "memory": memory,
}
"""By the names in the file. Each takes a number of rounds, and returns that many values."""


def chosen(limits: Sequence[Limit], only: Sequence[str]) -> list[Limit]:
    """The limits with these names, or all. Raises ``ValueError`` for an unknown name."""
    if unknown := set(only) - {limit.name for limit in limits}:
        raise ValueError(f"unknown figure: {', '.join(sorted(unknown))}")
    return [limit for limit in limits if not only or limit.name in only]


def main() -> None:
    """Print a row for each figure; the exit code is 1 if one exceeds its margin."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="names of figures (all)")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print("| figure | observed | limit | now | spread | |\n|---|--:|--:|--:|--:|---|")
    passes = True
    for limit in chosen(read(), args.only):
        verdict = Verdict(limit, tuple(MEASURES[limit.name](args.rounds)))
        print(verdict.text, flush=True)
        passes &= verdict.passes
    sys.exit(0 if passes else 1)


if __name__ == "__main__":
    main()
