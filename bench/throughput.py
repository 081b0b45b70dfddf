"""Pods per second through a real kube-scheduler, with and without Stowage, in turns on one control plane.

All pods exist before the scheduler starts; the rate is the slope of its counter of scheduled pods between 10
% and 90 % of them. Both schedulers see every node. The control plane is that of the end-to-end tests (build
it with ``make e2e``). Run alone:

    python -m bench.throughput --nodes 1000 --pods 3000 --rounds 3
"""

from __future__ import annotations

import itertools
import re
import statistics
import tempfile
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from bench import cluster
from bench.node_manifest import Manifest
from bench.service import Running, cpu_seconds, stowage
from tests.e2e.controlplane.api import NAMESPACE
from tests.e2e.controlplane.build import missing
from tests.e2e.controlplane.cluster import ControlPlane
from tests.e2e.controlplane.process import Process

_CONFIGURATION = Path(__file__).parents[1] / "scheduler-config" / "second-scheduler.yaml"
_SCHEDULED = re.compile(rb'^scheduler_schedule_attempts_total\{[^}]*result="scheduled"\} (\S+)', re.M)
_SET_BY_SERVER = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "ownerReferences")
_TIMEOUT = 300  # seconds for one run


@dataclass(frozen=True, slots=True)
class Run:
    """Pods a second, and Stowage's CPU for each of them (0 without Stowage)."""

    with_stowage: bool
    pods_per_second: float
    stowage_cpu_ms: float


def run(nodes: int = 1000, pods: int = 3000, rounds: int = 3) -> list[Run]:
    """Run without and with Stowage, ``rounds`` times. Needs the built control plane."""
    if missing():
        raise SystemExit("the control plane is not built: python -m tests.e2e.controlplane.build")
    with tempfile.TemporaryDirectory() as directory, ControlPlane(Path(directory) / "plane") as plane:
        plane.api.create_all(map(_new, cluster.nodes(nodes)))
        return [_round(plane, pods, with_stowage) for with_stowage in (False, True) * rounds]


def table(runs: Sequence[Run]) -> str:
    """Medians and ranges without and with Stowage, and the ratio of the medians, in Markdown."""
    alone, with_stowage = ([r for r in runs if r.with_stowage is wanted] for wanted in (False, True))
    ratio = _median(with_stowage) / _median(alone)
    cpu = statistics.median(r.stowage_cpu_ms for r in with_stowage)
    lines = [
        "| kube-scheduler | pods a second, median (lowest to highest) | Stowage's CPU for a pod |",
        "|---|--:|--:|",
        f"| alone | {_rates(alone)} | - |",
        f"| with Stowage | {_rates(with_stowage)}, {ratio:.0%} | {cpu:.2f} ms |",
    ]
    return "\n".join(lines)


def _round(plane: ControlPlane, pods: int, with_stowage: bool) -> Run:
    with ExitStack() as stack:
        running = stack.enter_context(stowage(plane.kubeconfig)) if with_stowage else None
        waiting = (_new(pod) for pod in cluster.arrivals(sizes={1: 1}))
        plane.api.create_all(itertools.islice(waiting, pods))
        scheduler = stack.enter_context(plane.scheduler(_configuration(running)))
        samples = list(_counts(scheduler, running, pods))
    plane.api.delete_all("Pod")
    return Run(with_stowage, *_slope(samples, pods))


def _counts(scheduler: Process, running: Running | None, pods: int) -> Iterator[tuple[float, float, float]]:
    """(seconds, pods scheduled, CPU seconds of Stowage) until all pods are scheduled."""
    port = next(flag.partition("=")[2] for flag in scheduler.command if flag.startswith("--secure-port="))
    deadline = time.monotonic() + _TIMEOUT
    with httpx.Client(verify=False, trust_env=False) as client:
        scheduled = 0.0
        while scheduled < pods:
            found = _SCHEDULED.search(client.get(f"https://127.0.0.1:{port}/metrics").content)
            scheduled = float(found[1]) if found else 0.0
            yield time.monotonic(), scheduled, cpu_seconds(running.pid) if running else 0.0
            if time.monotonic() > deadline:
                raise TimeoutError(f"{scheduled:g} of {pods} pods scheduled in {_TIMEOUT} s")
            time.sleep(0.2)


def _slope(samples: Sequence[tuple[float, float, float]], pods: int) -> tuple[float, float]:
    """Pods a second and CPU ms of Stowage for each, from the first sample past 10 % to one past 90 %."""
    first = next(sample for sample in samples if sample[1] >= 0.1 * pods)
    last = next(sample for sample in samples if sample[1] >= 0.9 * pods)
    done = last[1] - first[1]
    return done / (last[0] - first[0]), (last[2] - first[2]) * 1e3 / done


def _configuration(running: Running | None) -> dict[str, Any]:
    """The shipped configuration of a second scheduler, with Stowage or without any extender."""
    configuration: dict[str, Any] = yaml.safe_load(_CONFIGURATION.read_text())
    configuration["leaderElection"] = {"leaderElect": False}
    configuration["clientConnection"] = {"qps": 5000, "burst": 5000}
    if running is None:
        del configuration["extenders"]
    else:
        configuration["extenders"][0]["urlPrefix"] = f"http://127.0.0.1:{running.port}/scheduler"
    return configuration


def _new(manifest: Manifest) -> Manifest:
    """The object without the fields that the API server sets."""
    metadata = {k: v for k, v in manifest["metadata"].items() if k not in _SET_BY_SERVER}
    if manifest["kind"] == "Node":
        return manifest | {"metadata": metadata}
    metadata["namespace"] = NAMESPACE
    return {k: v for k, v in manifest.items() if k != "status"} | {"metadata": metadata}


def _median(runs: Sequence[Run]) -> float:
    return statistics.median(r.pods_per_second for r in runs)


def _rates(runs: Sequence[Run]) -> str:
    rates = [r.pods_per_second for r in runs]
    return f"{_median(runs):.0f} ({min(rates):.0f} to {max(rates):.0f})"


def main() -> None:
    """Print the table."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(table(run(args.nodes, args.pods, args.rounds)))


if __name__ == "__main__":
    main()
