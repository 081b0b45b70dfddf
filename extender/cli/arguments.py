"""Parses the arguments of ``stowage``, and runs the subcommand.

Each subcommand imports its modules when it runs: help and argument errors do not load the compiler or the
Kubernetes client.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from extender.cli import cluster_args
from extender.cli.cluster_args import did_you_mean
from extender.source.errors import BadInput, SourceError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from extender.server.tls import Tls


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code: 0 for success, 1 for a failure, 2 for wrong arguments."""
    argv = _reordered(sys.argv[1:] if argv is None else argv)
    parser = _parser(argv[0] if argv else "")
    args = parser.parse_args(argv)
    if problem := _conflict(args):
        parser.error(problem)
    return int(args.run(args))


_EVERYWHERE = ("-n", "--namespace", "--context", "--kubeconfig")


def _reordered(argv: Sequence[str]) -> list[str]:
    """``help COMMAND`` as ``COMMAND --help``, and kubectl's options before a command moved after it."""
    before: list[str] = []
    after = [*argv]
    while after and after[0].partition("=")[0] in _EVERYWHERE:
        count = 1 if "=" in after[0] else 2
        before, after = before + after[:count], after[count:]
    if after[:1] == ["help"]:
        after = [*after[1:], "--help"]
    return [*after[:1], *before, *after[1:]]


def _conflict(args: argparse.Namespace) -> str:
    """Why arguments cannot be combined; "" if they can."""
    has = {name: bool(value) for name, value in vars(args).items()}
    debug_port = getattr(args, "debug_port", None) is not None
    names_pods = has.get("pod") or has.get("filename") or len(getattr(args, "snapshot", None) or ()) > 1
    if "filename" in has and not (names_pods or has["all_namespaces"] or has["namespace"]):
        return "nothing to explain: expected -f FILE, NAMESPACE/POD, KIND/NAME, or -A for all pending pods"
    if "filename" in has and names_pods and args.output == "csv":
        return "-o csv is for all pending pods: -A or -n NAMESPACE"
    if has.get("context") and (has["snapshot"] or has["example"]):
        return "--context selects a cluster: it cannot be combined with --snapshot or --example"
    if has.get("debug_host") and not debug_port:
        return "--debug-host requires --debug-port: each port has one address"
    if has.get("tls_cert") != has.get("tls_key"):
        return "--tls-cert and --tls-key require each other"
    if has.get("client_ca") and not has["tls_cert"]:
        return "--client-ca requires --tls-cert and --tls-key"
    if has.get("client_ca") and not debug_port:
        return "--client-ca requires --debug-port: kubelet's probes and Prometheus have no client certificate"
    if has.get("client_name") and not has["client_ca"]:
        return "--client-name requires --client-ca"
    return ""


_MODULES = {
    "explain": ("extender.cli.explain", "show where a pod fits, where it does not, and why"),
    "top": ("extender.cli.top", "show free GPUs by node, and pending pods"),
    "audit": ("extender.cli.audit", "show what GPUs are wasted, why, and what mends it"),
    "plan": ("extender.cli.plan", "plan capacity: nodes to remove or add, moves, MIG layouts"),
    "settings": ("extender.cli.show_settings", "print the effective settings and their sources"),
    "replay": ("extender.cli.replay", "compare policies on the pods of a cluster"),
    "completion": ("extender.cli.completion", "print a completion script for bash, zsh or fish"),
    "demo": ("extender.cli.demo", "place pods on an example cluster, with and without Stowage"),
}
"""Subcommands in their own modules, each with ``add_arguments(parser)`` and ``run(args)``."""


_PROGRAM = "kubectl stowage" if Path(sys.argv[0]).name == "kubectl-stowage" else "stowage"


def version() -> str:
    """Version of the installed distribution."""
    from importlib.metadata import version as distribution_version

    return distribution_version("kube-stowage")


class _PrintVersion(argparse.Action):
    """Reads the version only on demand, because that takes a while."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        parser.exit(_print_version())


_NEAR = {
    **dict.fromkeys(("queue", "squeue", "pending", "pods", "why"), "explain -A"),
    **dict.fromkeys(("describe", "debug"), "explain NAMESPACE/POD"),
    **dict.fromkeys(("get", "nodes", "sinfo", "status"), "top"),
}
"""Words of other tools, and the command that does nearly that."""


class _Parser(argparse.ArgumentParser):
    """Suggests the most similar name for an unknown name."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:  # noqa: ANN401
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:  # here, where all options are known
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        mistaken = re.search(r"invalid choice: '([^']*)'|unrecognized arguments: (-[^ =]+)", message)
        if mistaken:
            choices = (str(choice) for action in self._actions for choice in action.choices or ())
            known, word = [*self._option_string_actions, *choices], mistaken[1] or mistaken[2]
            near = _NEAR.get(word) if "explain" in known else None
            message += f"; see {_PROGRAM} {near}" if near else did_you_mean(word, known)
        if message.endswith("required: COMMAND"):
            message += f"; see {_PROGRAM} explain -A (pending pods), {_PROGRAM} top (GPUs), {_PROGRAM} --help"
        super().error(message)


@lru_cache
def _parser(command: str) -> argparse.ArgumentParser:
    """The parser. Of ``_MODULES``, it imports only the module of ``command``."""
    parser = _Parser(prog=_PROGRAM, description="GPU bin-packing scheduler extender for Kubernetes.")
    parser.add_argument("--version", nargs=0, action=_PrintVersion, help="print the version")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_serve(commands.add_parser("serve", help="serve kube-scheduler over HTTP"))
    for name, (module_name, text) in _MODULES.items():
        subparser = commands.add_parser(name, help=text)
        if name == command:
            module = import_module(module_name)
            module.add_arguments(subparser)
            subparser.set_defaults(run=partial(_run_module, name, module.run))
    commands.add_parser("version", help="print the version").set_defaults(run=_print_version)
    commands.add_parser("help", help="show the options of a command: help COMMAND")
    return parser


def commands(command: str) -> dict[str, argparse.ArgumentParser]:
    """Parsers of all commands; only that of ``command`` is complete."""
    actions = _parser(command)._actions
    return next(action.choices for action in actions if isinstance(action, argparse._SubParsersAction))


def _run_module(command: str, run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run a subcommand. A failure that the user can fix is reported in one line, with exit code 1, or 2 for
    commands that use 1 otherwise."""
    gc.set_threshold(100_000)  # the objects read are kept: frequent collection took a tenth of the time
    failed = 2 if command in ("audit", "plan", "replay") or getattr(args, "exit_code", False) else 1
    try:
        if command in ("audit", "plan", "replay") and args.namespace:
            raise BadInput("nodes run the pods of all namespaces: omit --namespace")
        return run(args)
    except Exception as error:
        from extender.settings import SettingsError
        from extender.untrusted.terminal import OutputLost, show_line

        expected = SettingsError, SourceError, OSError
        reads_manifests = command in ("explain", "top")
        if not (isinstance(error, expected) or (reads_manifests and isinstance(error, ValueError))):
            if failed == 1 or isinstance(error, OutputLost):
                raise
            traceback.print_exc()
            return failed
        show_line("")
        print(f"stowage {command}: {error}", file=sys.stderr)
        return 2 if isinstance(error, BadInput) else failed


def _add_serve(parser: argparse.ArgumentParser) -> None:
    cluster_args.add_source(parser)
    cluster_args.add_config(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    text = "port to listen on, 0 for any free port (8080)"
    parser.add_argument("--port", type=cluster_args.port, default=8080, help=text)
    text = "serve /debug and /metrics on this port instead"
    parser.add_argument("--debug-port", type=cluster_args.port, metavar="PORT", help=text)
    text = "log format (text on a terminal, otherwise json)"
    parser.add_argument("--log-format", choices=("text", "json"), help=text)
    text = "verbosity: 2 logs each decision, 4 is for debugging (default: log_level)"
    parser.add_argument("-v", "--v", type=int, dest="verbosity", metavar="LEVEL", help=text)
    text = "address for --debug-port (default: --host)"
    parser.add_argument("--debug-host", metavar="HOST", help=text)
    _add_tls(parser.add_argument_group("TLS", "PEM files, which are reloaded when they change"))
    parser.set_defaults(run=_serve)


def _add_tls(group: argparse._ArgumentGroup) -> None:
    text = "serve all ports over TLS, with this certificate and its chain"
    group.add_argument("--tls-cert", type=Path, metavar="FILE", help=text)
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="the key of --tls-cert")
    text = "accept only clients with a certificate from this CA (not on --debug-port)"
    group.add_argument("--client-ca", type=Path, metavar="FILE", help=text)
    text = "accept only clients with this common name or alternative name (repeatable)"
    group.add_argument("--client-name", action="append", default=[], metavar="NAME", help=text)


def _print_version(args: argparse.Namespace | None = None) -> int:
    print(f"stowage {version()}")
    return 0


def _serve(args: argparse.Namespace) -> int:
    from extender import logs
    from extender.cli.precompile import prepare_kernels
    from extender.server.run import PortInUse, listen, run
    from extender.server.service import Service
    from extender.server.tls import TlsError
    from extender.settings import SettingsError
    from extender.settings_file import load
    from extender.source.errors import SourceError

    try:
        chosen = load(args.config, os.environ)
        level = chosen.log_level if args.verbosity is None else logs.level_of(args.verbosity)
        logs.configure(level, form=args.log_format)
        with ExitStack() as stack:  # first, so that a busy port is reported at once
            sock = stack.enter_context(listen(args.host, args.port))
            debug = None
            if args.debug_port is not None:
                debug = stack.enter_context(listen(args.debug_host or args.host, args.debug_port))
            source = cluster_args.source_of(args)
            service = Service(chosen, source, version(), prepare_kernels)
            tls = _tls_of(args, service.metrics.registry)
            run(service, sock, debug, tls)
    except (SettingsError, PortInUse, SourceError, TlsError) as error:
        print(f"stowage: {error}", file=sys.stderr)
        return 1
    return 0


def _tls_of(args: argparse.Namespace, registry: CollectorRegistry) -> Tls | None:
    """Raises ``TlsError`` if the files are unusable."""
    from extender.server.tls import Tls, TlsFiles

    if args.tls_cert is None:
        return None
    files = TlsFiles(args.tls_cert, args.tls_key, args.client_ca)
    return Tls(files, registry, frozenset(args.client_name))
