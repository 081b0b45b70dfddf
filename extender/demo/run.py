"""``stowage demo``: compares Stowage with kube-scheduler's default spreading on the bundled cluster.

The same pods are placed twice on the same nodes: by kube-scheduler's default scores, in memory, and with the
actual service as its extender, over HTTP.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from extender.data import CLUSTER
from extender.demo.child_service import ChildService, DemoError, serving
from extender.demo.pods import GPU, Manifest, large_job, stream
from extender.demo.scheduler import NodeInfo, PodInfo, Scheduler, fits, read_cluster, read_pod
from extender.untrusted.terminal import interruptible, show_progress

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


_LARGE = 8  # GPUs
_DEVICES = "nvidia.com/"


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add ``demo`` to the command line."""
    parser = subparsers.add_parser(
        "demo",
        description="Serve an example cluster, place a few hundred pods on it as kube-scheduler would, and "
        "compare with kube-scheduler's default spreading of the same pods.",
    )
    parser.add_argument("--exit", action="store_true", help="exit at the end instead of serving until Ctrl-C")
    parser.add_argument("--host", default="127.0.0.1", help="address to serve on (%(default)s)")
    text = "port to serve on, or any free port if it is in use (%(default)s)"
    parser.add_argument("--port", type=int, default=8080, help=text)
    text = "random seed for the order of the pods (%(default)s)"
    parser.add_argument("--seed", type=int, default=1, help=text)
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the demo, and return the exit code."""
    items = _cluster(args.seed)
    try:
        with (
            interruptible(signal.SIGTERM, signal.SIGHUP),  # so that the child also ends
            TemporaryDirectory() as directory,
            serving(_written(items, directory), args.host, args.port) as service,
        ):
            _compare(service, items, args)
            if not args.exit:
                _serve_until_interrupted(service)
    except DemoError as error:
        print(f"stowage demo: {error}", file=sys.stderr)
        return 1
    return 0


def _compare(service: ChildService, items: list[Manifest], args: argparse.Namespace) -> None:
    nodes, pods = read_cluster(items)
    _print(f"Stowage demo: {len(pods)} pending pods, in the order of seed {args.seed}\n")
    in_use = f" (port {args.port} is in use)" if args.port not in (0, service.port) else ""
    _print(f"Starting the service at {service.url}{in_use}\nThe first start compiles for 10 to 20 s ...")
    started = time.monotonic()
    service.wait_until_ready()
    _print(f"Ready after {time.monotonic() - started:.1f} s\n\n{_census('Before', service)}")
    default, packed = Scheduler(nodes, args.seed), Scheduler(read_cluster(items)[0], args.seed, service)
    started = time.monotonic()
    for done, pod in enumerate(pods, 1):
        default.schedule(pod)
        packed.schedule(pod)
        show_progress("Scheduling", done / len(pods))
    _print(f"Scheduled over HTTP in {time.monotonic() - started:.1f} s\nMedian call: {service.medians()}\n")
    _print("The same pods, in the same order, on the same nodes:\n")
    _print(comparison(default, packed))
    _print(f"\n{_census('With Stowage', service)}\n{waiting_text(packed)}")


def _census(when: str, service: ChildService) -> str:
    return textwrap.fill(f"{when}: {service.totals().text}", 100, subsequent_indent="  ")


def _cluster(seed: int) -> list[Manifest]:
    """The bundled cluster with the pods of this seed. Pending pods are created now."""
    items: list[Manifest] = json.loads(CLUSTER.read_text(encoding="utf-8"))["items"] + stream(seed)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for item in items:
        if item["kind"] == "Pod" and item["status"]["phase"] == "Pending":
            item["metadata"]["creationTimestamp"] = now
    return items


def _written(items: list[Manifest], directory: str) -> Path:
    path = Path(directory) / "example.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}), encoding="utf-8")
    return path


def _serve_until_interrupted(service: ChildService) -> None:
    try:
        _print(f"\nTo see the fleet, open {service.url}/ in a browser")
        _print("Start with the rows h100-mig-*: MIG instances fill GPU after GPU, so whole GPUs stay free")
        _print("Ctrl-C stops the service.")
        service.wait()
    except KeyboardInterrupt:
        _print("\nStopped.")


def _print(text: str) -> None:
    print(text, flush=True)


def figures(run: Scheduler) -> dict[str, str]:
    """Rows of the table for a run. GPUs are whole GPUs, without MIG devices and replicas."""
    nodes, job = list(run.nodes.values()), read_pod(large_job())
    idle = [node for node in nodes if _is_idle(node)]
    taken = sum(node.requested[GPU] for node in nodes)
    gpus = sum(node.allocatable.get(GPU, 0) for node in nodes)
    pods = run.placed + run.waiting
    job_places = [min(node.free(name) // n for name, n in job.amounts.items()) for node in nodes]
    return {
        "pods placed": f"{len(run.placed)} of {len(pods)}",
        "8-GPU jobs placed": f"{_large_jobs(run.placed)} of {_large_jobs(pods)}",
        "whole GPUs in use": f"{taken} of {gpus}",
        "free blocks of 8 GPUs": str(sum(node.free(GPU) // _LARGE for node in nodes)),
        "8-GPU jobs that could still start": str(sum(job_places)),
        "GPUs on nodes with no GPU in use": str(sum(node.free(GPU) for node in idle)),
        "nodes with no GPU in use": str(len(idle)),
    }


def comparison(default: Scheduler, stowage: Scheduler) -> str:
    """The figures of both runs side by side."""
    without, with_stowage = figures(default), figures(stowage)
    rows = [("", "kube-scheduler's", "with"), ("", "default spreading", "Stowage")]
    rows += [(label, cell, with_stowage[label]) for label, cell in without.items()]
    first, second, third = (max(map(len, column)) for column in zip(*rows, strict=True))
    return "\n".join(f"  {a:<{first}}   {b:>{second}}   {c:>{third}}" for a, b, c in rows)


def waiting_text(run: Scheduler) -> str:
    """The pods that were not placed, by their requests."""
    empty = [replace(node, requested=Counter()) for node in run.nodes.values()]
    asked = Counter(_request_text(pod, empty) for pod in run.waiting)
    if not asked:
        return "With Stowage no pod stays pending."
    lines = (f"  {pods:>3} x {request}" for request, pods in asked.most_common())
    return "\n".join(["Pods still pending with Stowage, by request per node:", *lines])


def _request_text(pod: PodInfo, empty: Iterable[NodeInfo]) -> str:
    devices = ", ".join(
        f"{name}: {count}" for name, count in pod.amounts.items() if name.startswith(_DEVICES)
    )
    product = pod.manifest["spec"]["nodeSelector"].get("nvidia.com/gpu.product", "any product")
    never = "" if any(fits(node, pod) for node in empty) else " (larger than any node)"
    return f"{devices}, {product}{never}"


def _is_idle(node: NodeInfo) -> bool:
    devices = [name for name, count in node.allocatable.items() if count and name.startswith(_DEVICES)]
    return bool(devices) and not any(node.requested[name] for name in devices)


def _large_jobs(pods: Iterable[PodInfo]) -> int:
    return sum(pod.amounts.get(GPU) == _LARGE for pod in pods)
