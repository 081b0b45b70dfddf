"""The command ``stowage``: reads the arguments and runs a subcommand.

Each subcommand imports what it needs when it runs: help and wrong arguments are answered without loading the
compiler or the Kubernetes client.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from importlib.metadata import version as distribution_version
from pathlib import Path

from extender.cli import source_args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code: 0 for success, 1 for a failure, 2 for wrong arguments."""
    argv = sys.argv[1:] if argv is None else argv
    parser = _parser(argv[0] if argv else "")
    args = parser.parse_args(argv)
    if getattr(args, "debug_host", None) and args.debug_port is None:
        parser.error("--debug-host needs --debug-port: one port has one address")
    return int(args.run(args))


_MODULES = {
    "explain": ("extender.cli.explain", "say where a pod fits, where it does not, and why"),
    "top": ("extender.cli.top", "show what each node has left, and the pods that wait"),
    "replay": ("extender.cli.replay", "place the pods of a cluster or of a trace under several policies"),
    "demo": ("extender.demo.run", "place a few hundred pods on an example cluster, with and without Stowage"),
}
"""Subcommands in modules of their own: each module has ``add_parser(subparsers)`` and ``run(args)``."""


_PROGRAM = "kubectl stowage" if Path(sys.argv[0]).name == "kubectl-stowage" else "stowage"


def version() -> str:
    """Version of the installed distribution."""
    return distribution_version("kube-stowage")


def _parser(command: str) -> argparse.ArgumentParser:
    """The parser. Of the modules in ``_MODULES`` it imports only the one of ``command``."""
    parser = argparse.ArgumentParser(
        prog=_PROGRAM, description="GPU bin-packing scheduler extender for Kubernetes."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_serve(commands.add_parser("serve", help="answer kube-scheduler over HTTP"))
    for name, (module_name, text) in _MODULES.items():
        if name == command:
            module = import_module(module_name)
            module.add_parser(commands)
            commands.choices[name].set_defaults(run=module.run)
        else:
            commands.add_parser(name, help=text)
    commands.add_parser("version", help="print the version").set_defaults(run=_print_version)
    return parser


def _add_serve(parser: argparse.ArgumentParser) -> None:
    source_args.add_arguments(parser)
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings, as YAML")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    text = "port to listen on, 0 for any free port (8080)"
    parser.add_argument("--port", type=_port, default=8080, help=text)
    text = "serve /debug and /metrics on this port instead"
    parser.add_argument("--debug-port", type=_port, metavar="PORT", help=text)
    text = "address to listen on for --debug-port (that of --host)"
    parser.add_argument("--debug-host", metavar="HOST", help=text)
    parser.set_defaults(run=_serve)


def _port(text: str) -> int:
    if text.isdecimal() and int(text) < 1 << 16:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a port (0 to 65535)")


def _print_version(args: argparse.Namespace) -> int:
    print(f"stowage {version()}")
    return 0


def _serve(args: argparse.Namespace) -> int:
    from extender.cli import logs
    from extender.cli.precompile import prepare_kernels, victim_kernels_command
    from extender.server.run import PortInUse, listen, run
    from extender.server.service import Service
    from extender.settings import SettingsError
    from extender.settings_file import load
    from extender.source.interface import SourceError

    try:
        chosen = load(args.config, os.environ)
        logs.configure(chosen.log_level)
        with ExitStack() as stack:  # first, so that a busy port is reported at once
            sockets = [stack.enter_context(listen(host, port)) for host, port in _addresses(args)]
            source = source_args.source_of(args)
            service = Service(chosen, source, version(), prepare_kernels, victim_kernels_command)
            run(service, *sockets)
    except (SettingsError, PortInUse, SourceError) as error:
        print(f"stowage: {error}", file=sys.stderr)
        return 1
    return 0


def _addresses(args: argparse.Namespace) -> list[tuple[str, int]]:
    """Where to listen: for kube-scheduler, and for ``/debug`` and ``/metrics`` where that is apart."""
    if args.debug_port is None:
        return [(args.host, args.port)]
    return [(args.host, args.port), (args.debug_host or args.host, args.debug_port)]


if __name__ == "__main__":
    sys.exit(main())
