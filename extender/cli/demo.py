"""``stowage demo``: compares Stowage with kube-scheduler's default spreading on the bundled cluster, and then
serves the result of Stowage, with the page at ``/``."""

from __future__ import annotations

import argparse
import os
import socket
import textwrap
from typing import TYPE_CHECKING

from extender.cli.cluster_args import port
from extender.source.errors import BadInput
from extender.untrusted.terminal import show_progress

if TYPE_CHECKING:
    from extender.settings import Settings
    from extender.source.snapshot import Snapshot


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Place a few hundred pods on an example cluster, with Stowage and with "
    parser.description += "kube-scheduler's default spreading, and serve the result."
    parser.add_argument("--exit", action="store_true", help="exit at the end instead of serving until Ctrl-C")
    parser.add_argument("--host", default="127.0.0.1", help="address to serve on (%(default)s)")
    text = "port to serve on, or any free port if it is in use (%(default)s)"
    parser.add_argument("--port", type=port, default=8080, help=text)
    text = "random seed for the order of the pods (%(default)s)"
    parser.add_argument("--seed", type=int, default=1, help=text)


def run(args: argparse.Namespace) -> int:
    from extender import logs
    from extender.cli.precompile import loading_kernels
    from extender.settings_file import load

    logs.configure("warning")
    settings = load(None, os.environ).model_copy(update={"drain_seconds": 0})
    with loading_kernels():
        from extender.demo.compare import comparison, demo_cluster, placed, still_pending, totals_of
    cluster = demo_cluster(args.seed)
    default = placed(cluster, settings, lambda part: show_progress("Spreading", part), by_default=True)
    packed = placed(cluster, settings, lambda part: show_progress("Packing", part))
    print(f"Stowage demo: {len(packed.waiting)} pending pods, in the order of seed {args.seed}")
    print("The same pods, in the same order, on the same nodes:\n")
    words = f"With Stowage: {totals_of(packed).text}"
    print(f"{comparison(default, packed)}\n\n{textwrap.fill(words, 100, subsequent_indent='  ')}")
    print(still_pending(packed), flush=True)
    if not args.exit:
        cluster.pods.update(packed.state.pods)
        _serve(cluster, settings, args)
    return 0


def _serve(cluster: Snapshot, settings: Settings, args: argparse.Namespace) -> None:
    from extender.cli.arguments import version
    from extender.server.run import run as serve
    from extender.server.service import Service
    from extender.source.snapshot import SnapshotSource

    with _listening(args.host, args.port) as sock:
        host, port = f"[{args.host}]" if ":" in args.host else args.host, sock.getsockname()[1]
        in_use = f" (port {args.port} is in use)" if args.port not in (0, port) else ""
        print(f"\nOpen http://{host}:{port}/ in a browser to see the fleet{in_use}")
        print(
            "Start with the rows h100-mig-*: MIG instances are filled GPU by GPU, so whole GPUs remain free"
        )
        print("Ctrl-C stops the service.", flush=True)
        serve(Service(settings, SnapshotSource(cluster, "the example"), version()), sock)
    print("\nStopped.")


def _listening(host: str, port: int) -> socket.socket:
    from extender.server.run import PortInUse, listen

    try:
        return listen(host, port)
    except PortInUse:
        try:
            return listen(host, 0)
        except PortInUse as error:
            raise BadInput(str(error)) from None
