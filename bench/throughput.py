"""Pods per second through a real kube-scheduler: alone, with an echo, with Stowage, and with an earlier
Stowage, alternating on one control plane.

All pods exist before the scheduler starts; the rate is the slope of its counter of scheduled pods between 10
% and 90 % of them. The echo is an extender that answers with the same shortlist and decides nothing
(``bench.echo_extender``). With "all" nodes, ``percentageOfNodesToScore`` is 100, as in the shipped
configuration; "default" is kube-scheduler's default sample. The control plane is that of the end-to-end tests
(build it with ``make e2e``). Run alone:

    python -m bench.throughput --nodes 1000 5000 --pods 3000 --rounds 3 --before DIR

``--before`` is a directory with the sources of an earlier version, which runs with the packages of this one.
"""

from __future__ import annotations

import itertools
import re
import sys
import tempfile
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import httpx
import yaml

from bench import cluster
from bench.cells import median_and_range
from bench.echo_extender import SHORTLIST, running_echo_extender
from bench.node_manifest import Manifest
from bench.service import Running, cpu_seconds, stowage
from tests.e2e.controlplane.api import NAMESPACE
from tests.e2e.controlplane.build import missing
from tests.e2e.controlplane.cluster import ControlPlane
from tests.e2e.controlplane.process import Process

Extender: TypeAlias = Literal["alone", "echo", "before", "Stowage"]

_CONFIGURATION = Path(__file__).parents[1] / "scheduler-config" / "second-scheduler.yaml"
_SCHEDULED = re.compile(rb'^scheduler_schedule_attempts_total\{[^}]*result="scheduled"\} (\S+)', re.M)
_SET_BY_SERVER = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "ownerReferences")
_TIMEOUT = 600  # seconds for one run
_IDLE_SECONDS, _IDLE_SHARE = 2.0, 0.1
"""A process that uses less than this share of one CPU for this many seconds has completed its start."""
_SAMPLES = {"all": 100, "default": 0}
"""``percentageOfNodesToScore``, by the resulting sample of nodes."""


@dataclass(frozen=True, slots=True)
class Run:
    """Pods per second, and CPU per pod in ms: of the extender (0 without one), of kube-scheduler."""

    nodes: int
    sample: str
    extender: Extender
    pods_per_second: float
    extender_cpu_ms: float
    scheduler_cpu_ms: float


@dataclass(frozen=True, slots=True)
class _Count:
    """The number of scheduled pods at a time, and the CPU used until then, all in seconds."""

    at: float
    pods: float
    extender_cpu: float
    scheduler_cpu: float


def run(
    sizes: Sequence[int] = (1000,),
    pods: int = 3000,
    rounds: int = 3,
    before: Path | None = None,
    samples: Sequence[str] = tuple(_SAMPLES),
    shortlist: int = SHORTLIST,
) -> Iterator[Run]:
    """Run each extender ``rounds`` times, alternating. Needs the built control plane."""
    if missing():
        raise SystemExit("the control plane is not built: python -m tests.e2e.controlplane.build")
    extenders: list[Extender] = ["alone", "echo", *(("before",) if before else ()), "Stowage"]
    for nodes in sizes:
        with tempfile.TemporaryDirectory() as directory, ControlPlane(Path(directory) / "plane") as plane:
            plane.api.create_all(map(new_object, cluster.nodes(nodes)))
            for sample, _, extender in itertools.product(samples, range(rounds), extenders):
                one = Run(nodes, sample, extender, *_round(plane, pods, sample, extender, before, shortlist))
                print(one, file=sys.stderr, flush=True)  # a whole run takes long
                yield one


def table(runs: Sequence[Run]) -> str:
    """Medians (lowest to highest); ratios are medians of the ratios of each round. In Markdown."""
    lines = [
        "| nodes | sample | kube-scheduler | pods per second | x echo | x alone "
        "| CPU per pod of the extender, ms | of kube-scheduler, ms |",
        "|--:|---|---|--:|--:|--:|--:|--:|",
    ]
    places = dict.fromkeys((one.nodes, one.sample) for one in runs)
    for nodes, sample in places:
        here = [one for one in runs if (one.nodes, one.sample) == (nodes, sample)]
        for extender in dict.fromkeys(one.extender for one in here):
            rows = [one for one in here if one.extender == extender]
            name = "alone" if extender == "alone" else f"with {_NAMES[extender]}"
            ratios = [_ratio(rows, here, other) for other in ("echo", "alone")]
            cpu = [
                median_and_range([one.extender_cpu_ms for one in rows], ".2f") if extender != "alone" else "-"
            ]
            cpu.append(median_and_range([one.scheduler_cpu_ms for one in rows], ".1f"))
            rate = median_and_range([one.pods_per_second for one in rows], ".0f")
            lines.append(f"| {' | '.join([f'{nodes:,}', sample, name, rate, *ratios, *cpu])} |")
    return "\n".join(lines)


_NAMES = {"echo": "an echo", "before": "Stowage before", "Stowage": "Stowage"}


def _ratio(rows: Sequence[Run], here: Sequence[Run], other: str) -> str:
    """Pods per second divided by another extender's of the same round, as a median over the rounds."""
    others = [one for one in here if one.extender == other]
    pairs = zip(rows, others, strict=False)
    ratios = [one.pods_per_second / beside.pods_per_second for one, beside in pairs]
    return "-" if rows == others else median_and_range(ratios, ".2f")


def _round(
    plane: ControlPlane, pods: int, sample: str, extender: Extender, before: Path | None, shortlist: int
) -> tuple[float, float, float]:
    with ExitStack() as stack:
        running = None
        if extender == "echo":
            running = stack.enter_context(running_echo_extender(shortlist))
        elif extender != "alone":
            settings = {"STOWAGE_SHORTLIST": str(shortlist)}
            settings |= {"PYTHONPATH": str(before)} if extender == "before" else {}
            running = stack.enter_context(stowage(plane.kubeconfig, settings))
        waiting = (new_object(pod) for pod in cluster.arrivals(sizes={1: 1}))
        plane.api.create_all(itertools.islice(waiting, pods))
        if running is not None:
            until_idle(running)
        scheduler = stack.enter_context(plane.scheduler(configuration(running, sample)))
        counts = list(_counts(scheduler, running, pods))
    plane.api.delete_all("Pod")
    return _slope(counts, pods)


def until_idle(running: Running) -> None:
    """Wait until the work that follows a start is done, such as first tables."""
    used, deadline = cpu_seconds(running.pid), time.monotonic() + _TIMEOUT
    while time.monotonic() < deadline:
        time.sleep(_IDLE_SECONDS)
        before, used = used, cpu_seconds(running.pid)
        if used - before < _IDLE_SHARE * _IDLE_SECONDS:
            return


def _counts(scheduler: Process, running: Running | None, pods: int) -> Iterator[_Count]:
    """A sample several times a second until all pods are scheduled."""
    port = next(flag.partition("=")[2] for flag in scheduler.command if flag.startswith("--secure-port="))
    deadline = time.monotonic() + _TIMEOUT
    with httpx.Client(verify=False, trust_env=False) as client:
        scheduled = 0.0
        while scheduled < pods:
            found = _SCHEDULED.search(client.get(f"https://127.0.0.1:{port}/metrics").content)
            scheduled = float(found[1]) if found else 0.0
            cpu = cpu_seconds(running.pid) if running else 0.0
            yield _Count(time.monotonic(), scheduled, cpu, cpu_seconds(scheduler.pid))
            if time.monotonic() > deadline:
                raise TimeoutError(f"{scheduled:g} of {pods} pods scheduled in {_TIMEOUT} s")
            time.sleep(0.2)


def _slope(counts: Sequence[_Count], pods: int) -> tuple[float, float, float]:
    """Pods per second and both CPUs in ms per pod, from the first sample above 10 % to one above 90 %."""
    first = next(count for count in counts if count.pods >= 0.1 * pods)
    last = next(count for count in counts if count.pods >= 0.9 * pods)
    done = last.pods - first.pods
    extender, scheduler = last.extender_cpu - first.extender_cpu, last.scheduler_cpu - first.scheduler_cpu
    return done / (last.at - first.at), extender * 1e3 / done, scheduler * 1e3 / done


def configuration(running: Running | None, sample: str) -> dict[str, Any]:
    """The shipped configuration of a second scheduler, with this extender or without one."""
    configuration: dict[str, Any] = yaml.safe_load(_CONFIGURATION.read_text())
    configuration["leaderElection"] = {"leaderElect": False}
    configuration["clientConnection"] = {"qps": 5000, "burst": 5000}
    configuration["percentageOfNodesToScore"] = _SAMPLES[sample]
    if running is None:
        del configuration["extenders"]
    else:
        configuration["extenders"][0]["urlPrefix"] = f"http://127.0.0.1:{running.port}/scheduler"
    return configuration


def new_object(manifest: Manifest) -> Manifest:
    """The object without the fields that the API server sets."""
    metadata = {k: v for k, v in manifest["metadata"].items() if k not in _SET_BY_SERVER}
    if manifest["kind"] == "Node":
        return manifest | {"metadata": metadata}
    metadata["namespace"] = NAMESPACE
    return {k: v for k, v in manifest.items() if k != "status"} | {"metadata": metadata}


def main() -> None:
    """Print the table."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000])
    parser.add_argument("--pods", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seen", nargs="+", choices=_SAMPLES, default=[*_SAMPLES])
    parser.add_argument("--before", type=Path, help="sources of an earlier version (none)")
    parser.add_argument(
        "--shortlist", type=int, default=SHORTLIST, help="shortlist of the echo and of Stowage (64)"
    )
    args = parser.parse_args()
    found = run(args.nodes, args.pods, args.rounds, args.before, args.seen, args.shortlist)
    print(table(list(found)))


if __name__ == "__main__":
    main()
