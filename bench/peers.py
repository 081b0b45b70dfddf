"""Allocated GPUs, placed 8-GPU jobs and pods per second, of other schedulers and with Stowage.

All of them schedule the same pods on one control plane, alternating.

Pods of 1, 2, 4 and 8 GPUs (``bench.cluster.GPU_WEIGHTS``) arrive in random order until they request three
quarters of all GPUs; every second one ends; then others arrive until all pods request as many GPUs as exist.
No pods are moved or evicted. The rate is that of the first part, whose pods exist before the scheduler
starts, between 10 and 90 % of them; the rest is counted when nothing has changed for ``_STILL`` seconds.
Rounds differ in their pods.

The schedulers: kube-scheduler with its defaults and with MostAllocated
(``scheduler-config/second-scheduler.yaml`` without its extender), the same with Stowage, and Volcano with
binpack if ``STOWAGE_E2E_VOLCANO`` is the path of vc-scheduler (tests/e2e/README.md). HAMi is not included:
its bind waits for its device plugin, which needs GPUs. The control plane is that of the end-to-end tests. Run
alone:

    python -m bench.peers --nodes 100 --rounds 2
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import cluster
from bench.cells import median_and_range
from bench.node_manifest import GPUS_PER_NODE, Manifest
from bench.service import stowage
from bench.throughput import configuration, new_object, until_idle
from tests.e2e import volcano
from tests.e2e.controlplane.build import missing
from tests.e2e.controlplane.cluster import ControlPlane

_FIRST = 0.75
"""Fraction of the GPUs that the pods of the first part request."""
_STILL, _TIMEOUT = 12.0, 300.0
"""Seconds: kube-scheduler retries an unschedulable pod after 10 s at most if something has changed."""


@dataclass(frozen=True, slots=True)
class Run:
    """``allocated``: fraction of the GPUs. ``placed`` and ``wanted``: 8-GPU jobs of the second part."""

    scheduler: str
    allocated: float
    placed: int
    wanted: int
    pods_per_second: float


@contextmanager
def _kube_scheduler(plane: ControlPlane, *, packs: bool) -> Iterator[None]:
    document = configuration(None, "all" if packs else "default")
    if not packs:
        del document["profiles"][0]["pluginConfig"]
    with plane.scheduler(document):
        yield


@contextmanager
def _with_stowage(plane: ControlPlane) -> Iterator[None]:
    with stowage(plane.kubeconfig) as running:
        until_idle(running)
        with plane.scheduler(configuration(running, "all")):
            yield


@contextmanager
def _volcano(plane: ControlPlane) -> Iterator[None]:
    binpack = "- name: binpack\n  arguments: {binpack.weight: 10, binpack.resources: nvidia.com/gpu}"
    names = "priority", "gang", "conformance", "overcommit", "drf", "predicates", "proportion", "nodeorder"
    plugins = "\n".join([*(f"- name: {name}" for name in names), binpack])
    text = f'actions: "enqueue, allocate, backfill"\ntiers:\n- plugins:\n{plugins}\n'
    with volcano.scheduler(plane, text):
        yield


_SCHEDULERS: Mapping[str, Callable[[ControlPlane], AbstractContextManager[None]]] = {
    "kube-scheduler, default": lambda plane: _kube_scheduler(plane, packs=False),
    "kube-scheduler, MostAllocated": lambda plane: _kube_scheduler(plane, packs=True),
    "kube-scheduler with Stowage": _with_stowage,
} | ({"Volcano, binpack": _volcano} if volcano.PROGRAM else {})


def run(nodes: int, rounds: int) -> Iterator[Run]:
    """Run each scheduler ``rounds`` times, alternating. Needs the built control plane."""
    if missing():
        raise SystemExit("the control plane is not built: python -m tests.e2e.controlplane.build")
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plane = stack.enter_context(ControlPlane(directory / "plane"))
        if volcano.PROGRAM:
            stack.enter_context(volcano.resources(plane.api))
        plane.api.create_all(map(new_object, cluster.nodes(nodes)))
        for seed in range(rounds):
            for name, scheduler in _SCHEDULERS.items():
                one = _run(plane, name, scheduler(plane), seed, nodes * GPUS_PER_NODE)
                plane.api.delete_all("Pod")
                print(one, file=sys.stderr, flush=True)  # a whole run takes long
                yield one


def _run(
    plane: ControlPlane, name: str, scheduler: AbstractContextManager[None], seed: int, gpus: int
) -> Run:
    groups = name.startswith("Volcano")
    sizes = random.Random(seed).choices(*zip(*cluster.GPU_WEIGHTS.items(), strict=True), k=gpus)
    first = list(_until(_FIRST * gpus, sizes))
    asked = _create(plane, first, 0, groups)
    with scheduler:
        pace = [(at, len(first) - len(waiting)) for at, waiting in _waiting(plane)]
        for pod in list(asked)[::2]:
            plane.api.delete("Pod", pod)
            del asked[pod]
        second = list(_until(gpus - sum(asked.values()), sizes[len(first) :]))
        added = _create(plane, second, len(first), groups)
        *_, (_, waiting) = _waiting(plane)
    allocated = sum(size for pod, size in (asked | added).items() if pod not in waiting)
    large = {pod for pod, size in added.items() if size == GPUS_PER_NODE}
    return Run(name, allocated / gpus, len(large - waiting), len(large), _rate(pace, len(first)))


def _until(gpus: float, sizes: Sequence[int]) -> Iterator[int]:
    """The first of these sizes that together do not exceed ``gpus`` GPUs; larger ones are skipped."""
    for size in sizes:
        if size <= gpus:
            gpus -= size
            yield size


def _create(plane: ControlPlane, sizes: Sequence[int], start: int, groups: bool) -> dict[str, int]:
    """Create pods of these sizes in this order: their names, with the sizes."""
    created = dict[str, int]()
    for number, size in enumerate(sizes, start):
        pod: Manifest = new_object(cluster.pod(number, size))
        name = pod["metadata"]["name"]
        if groups:
            volcano.group(plane.api, name, 1)
            pod["metadata"]["annotations"] |= {"scheduling.k8s.io/group-name": name}
            pod["spec"]["schedulerName"] = "volcano"
        plane.api.create(pod)
        created[name] = size
    return created


def _waiting(plane: ControlPlane) -> Iterator[tuple[float, set[str]]]:
    """The time (monotonic seconds) and the pods without a node, until there are none or nothing changes."""
    changed, before = time.monotonic(), None
    deadline = changed + _TIMEOUT
    while (now := time.monotonic()) < deadline:
        found = plane.api.list("Pod", fieldSelector="spec.nodeName=")["items"]
        waiting = {pod["metadata"]["name"] for pod in found}
        yield now, waiting
        if waiting != before:
            changed, before = now, waiting
        if not waiting or now - changed > _STILL:
            return
        time.sleep(0.3)
    raise TimeoutError(f"still scheduling after {_TIMEOUT:g} s")


def _rate(pace: Sequence[tuple[float, int]], pods: int) -> float:
    """Pods per second between 10 and 90 % of them."""
    begun = next(one for one in pace if one[1] >= 0.1 * pods)
    ended = next((one for one in pace if one[1] >= 0.9 * pods), pace[-1])
    return (ended[1] - begun[1]) / max(ended[0] - begun[0], 0.1)


def table(runs: Sequence[Run]) -> str:
    """Medians (lowest to highest), in Markdown."""
    lines = ["| | GPUs allocated, % | 8-GPU jobs placed, % | pods per second |", "|---|--:|--:|--:|"]
    for name in dict.fromkeys(one.scheduler for one in runs):
        rows = [one for one in runs if one.scheduler == name]
        allocated = median_and_range([100 * one.allocated for one in rows], ".1f")
        placed = median_and_range([100 * one.placed / max(1, one.wanted) for one in rows], ".0f")
        rate = median_and_range([one.pods_per_second for one in rows], ".0f")
        lines.append(f"| {name} | {allocated} | {placed} | {rate} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    print(table(list(run(args.nodes, args.rounds))))


if __name__ == "__main__":
    main()
