"""``stowage demo``: compares Stowage with kube-scheduler's default spreading on the bundled cluster.

The same pods are placed twice on the same nodes: by kube-scheduler's default scores, in memory, and with the
real service as its extender, over HTTP.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import textwrap
import time
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from extender.data import CLUSTER
from extender.demo import report
from extender.demo.child_service import ChildService, DemoError, serving
from extender.demo.pods import Manifest, stream
from extender.demo.scheduler import Scheduler, read_cluster
from extender.untrusted.terminal import interruptible, show_progress

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


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
            interruptible(signal.SIGTERM, signal.SIGHUP),  # so that the child ends, too
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
    _print(report.table(default, packed))
    _print(f"\n{_census('With Stowage', service)}\n{report.waiting(packed)}")


def _census(when: str, service: ChildService) -> str:
    return textwrap.fill(f"{when}: {service.totals().text}", 100, subsequent_indent="  ")


def _cluster(seed: int) -> list[Manifest]:
    """The bundled cluster with the pods of this seed. Those that wait have been created now."""
    items: list[Manifest] = json.loads(CLUSTER.read_text(encoding="utf-8"))["items"] + stream(seed)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for one in items:
        if one["kind"] == "Pod" and one["status"]["phase"] == "Pending":
            one["metadata"]["creationTimestamp"] = now
    return items


def _written(items: list[Manifest], directory: str) -> Path:
    path = Path(directory) / "example.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}), encoding="utf-8")
    return path


def _serve_until_interrupted(service: ChildService) -> None:
    try:
        _print(f"\nThe fleet is at {service.url}/ now: open it in a browser")
        _print(
            "Look first at the rows h100-mig-*: MIG instances filled GPU by GPU, so that whole GPUs stay free"
        )
        _print("Ctrl-C stops the service.")
        service.wait()
    except KeyboardInterrupt:
        _print("\nStopped.")


def _print(text: str) -> None:
    print(text, flush=True)
