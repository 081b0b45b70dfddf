"""The command ``stowage``: arguments, and which room of the house answers them.

Each subcommand imports what it needs when it runs, so that ``stowage version`` costs no compiler and no
Kubernetes client.
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

from extender.cli import source_args as sources


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0 for success, 1 for what failed, 2 for wrong arguments."""
    argv = sys.argv[1:] if argv is None else argv
    args = _parser(argv[0] if argv else "").parse_args(argv)
    code: int = args.run(args)
    return code


# Subcommands that live elsewhere: each module has add_parser(subparsers) and run(args).
_ROOMS = {
    "explain": ("extender.cli.explain", "say where a pod fits, where not, and why"),
    "replay": ("extender.cli.replay", "place a trace, or a cluster's own pods, under one policy or several"),
    "demo": ("extender.demo", "place a few hundred pods on a bundled cluster, with and without Stowage"),
}


def version() -> str:
    """Version of the installed distribution."""
    return distribution_version("kube-stowage")


def _parser(command: str) -> argparse.ArgumentParser:
    """The parser; of the rooms in other modules only that of ``command`` is entered."""
    parser = argparse.ArgumentParser(
        prog="stowage", description="GPU bin-packing scheduler extender for Kubernetes."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_serve(commands.add_parser("serve", help="answer kube-scheduler over HTTP"))
    for name, (module, text) in _ROOMS.items():
        if name == command:
            room = import_module(module)
            room.add_parser(commands)
            commands.choices[name].set_defaults(run=room.run)
        else:
            commands.add_parser(name, help=text)
    commands.add_parser("version", help="print the version").set_defaults(run=_print_version)
    return parser


def _add_serve(parser: argparse.ArgumentParser) -> None:
    sources.add_arguments(parser)
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings, as YAML")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=_port, default=8080, help="port to listen on, 0 for a free one (8080)")
    parser.add_argument(
        "--debug-port", type=_port, metavar="PORT", help="move /debug and /metrics to this port"
    )
    parser.set_defaults(run=_serve)


def _port(text: str) -> int:
    if text.isdecimal() and int(text) < 1 << 16:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no port (0 to 65535)")


def _print_version(args: argparse.Namespace) -> int:
    print(f"stowage {version()}")
    return 0


def _serve(args: argparse.Namespace) -> int:
    from extender import settings
    from extender.cli import logs as log
    from extender.cli.precompile import compile_apart
    from extender.server import run as serve
    from extender.server.service import Service
    from extender.source.interface import SourceError

    try:
        chosen = settings.load(args.config, os.environ)
        log.configure(chosen.log_level)
        with ExitStack() as stack:  # before anything that takes long: a busy port is said at once
            ports = [port for port in (args.port, args.debug_port) if port is not None]
            sockets = [stack.enter_context(serve.listen(args.host, port)) for port in ports]
            source = sources.source_of(args)
            service = Service(chosen, source, version(), lambda: compile_apart(chosen.policy))
            serve.run(service, *sockets)
    except (settings.SettingsError, serve.PortInUse, SourceError) as error:
        print(f"stowage: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
