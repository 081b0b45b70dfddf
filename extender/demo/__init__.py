"""``stowage demo``: the real service on the bundled cluster, driven as by kube-scheduler, against spreading.

The same pods are placed twice over the same fleet: by kube-scheduler's default scores, in memory, and with
Stowage as its extender, over HTTP. Nothing here touches the packing engine: it is asked like anyone asks it.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from typing import TYPE_CHECKING

from extender.data import CLUSTER
from extender.demo import report
from extender.demo.child_service import DemoError, Server, serving
from extender.demo.pods import stream
from extender.demo.scheduler import DEFAULT, PACKING, NodeInfo, PodInfo, Scheduler, read_cluster, read_pod

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_INTERRUPTED = 130  # what a shell reports of a program that Ctrl-C ended


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add ``demo`` to the command line."""
    parser = subparsers.add_parser(
        "demo",
        help="place a few hundred pods on a bundled cluster, with and without Stowage",
        description="Serve a bundled cluster, place a few hundred pods on it as kube-scheduler would, and "
        " compare with what its default spreading makes of the same pods.",
    )
    parser.add_argument("--exit", action="store_true", help="stop at the end instead of serving on")
    parser.add_argument("--host", default="127.0.0.1", help="address to serve on (%(default)s)")
    parser.add_argument(
        "--port", type=int, default=8080, help="a free one is taken if it is busy (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="draws the order of the pods (%(default)s)")
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the demo. Returns the exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # ends like Ctrl-C, the child included
    try:
        with serving(CLUSTER, args.host, args.port) as server:
            _compare(server, args)
            if not args.exit:
                _serve_on(server)
    except DemoError as error:
        print(f"stowage demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


def _compare(server: Server, args: argparse.Namespace) -> None:
    nodes, pending = _cluster()
    pods = pending + [read_pod(one) for one in stream(args.seed)]
    _say(f"Stowage demo: {report.fleet(nodes)}\n{len(pods)} pods arrive, in the order of seed {args.seed}\n")
    busy = f" (port {args.port} is busy)" if args.port not in (0, server.port) else ""
    _say(f"Starting the service at {server.url}{busy}\nIts kernels are being compiled ...")
    started = time.monotonic()
    server.wait_until_ready()
    _say(f"Ready after {time.monotonic() - started:.1f} s")
    default = Scheduler(nodes, profile=DEFAULT, seed=args.seed)
    for pod in pods:
        default.schedule(pod)
    packed = Scheduler(_cluster()[0], profile=PACKING, seed=args.seed, extender=server)
    started = time.monotonic()
    for pod in report.progress(pods, "Scheduling"):
        packed.schedule(pod)
    _say(f"Scheduled over HTTP in {time.monotonic() - started:.1f} s\nMedian call: {server.medians()}\n")
    _say("The same pods, in the same order, on the same nodes:\n")
    _say(report.table(report.measure(default), report.measure(packed)))
    _say(f"\n{report.waiting(packed)}")


def _cluster() -> tuple[list[NodeInfo], list[PodInfo]]:
    return read_cluster(json.loads(CLUSTER.read_text(encoding="utf-8"))["items"])


def _serve_on(server: Server) -> None:
    try:
        _say(f"\nThe service goes on, {server.url}/debug/nodes shows who holds what\nCtrl-C stops it.")
        server.wait()
    except KeyboardInterrupt:
        _say("\nStopped.")


def _say(text: str) -> None:
    print(text, flush=True)
