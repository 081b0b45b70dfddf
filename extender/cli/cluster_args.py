"""Selects the cluster of a command: the arguments, their source, and the running Stowage.

With arguments that select a source (``--snapshot``, ``--example``, ``--config``, ``--local``), the command
does not query the running Stowage. If the query fails, it reads the cluster directly and reports this.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from extender.source.errors import Unavailable
from extender.untrusted.limits import DEBUG_TOKEN
from extender.untrusted.terminal import show_line, show_step

if TYPE_CHECKING:
    from extender.k8s.objects import Event, Pod
    from extender.settings import Settings
    from extender.source.apiserver import KubeSource
    from extender.source.interface import Source
    from extender.source.rest import RestClient
    from extender.source.snapshot import SnapshotSource
    from extender.source.state_dump import Header
    from extender.source.stowage_service import StowageService


T = TypeVar("T")
_NO_CLUSTER = (
    "no cluster: pass --kubeconfig FILE, --snapshot FILE (the output of 'kubectl get nodes,pods -A -o json') "
    "or --example (the bundled example)"
)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A suggestion of the most similar name, to append to a message; "" if none is similar."""
    near = get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def number(above: float, most: float, expected: str) -> Callable[[str], float]:
    """Option type: a number in this range. It raises ``ArgumentTypeError``."""

    def read(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = above
        if not above < found <= most:
            raise argparse.ArgumentTypeError(f"invalid number {text!r}; expected {expected}")
        return found

    return read


def whole_number(least: int, most: int, expected: str) -> Callable[[str], int]:
    """Option type: a whole number from ``least`` to ``most``. It raises ``ArgumentTypeError``."""

    def read(text: str) -> int:
        if not text.isdecimal() or len(text) > 18 or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"invalid number {text!r}; expected {expected}")
        return int(text)

    return read


port = whole_number(0, 65535, "a port (0 to 65535)")


def add_source(parser: argparse.ArgumentParser, *, url: bool = False) -> None:
    """Add ``--snapshot``, ``--kubeconfig``, ``--context`` and ``--example``; if ``url``, also that."""
    chosen = parser.add_mutually_exclusive_group()
    text = "read files of 'kubectl get nodes,pods -A -o json'; -: stdin"
    chosen.add_argument("--snapshot", type=Path, nargs="+", metavar="FILE", help=text)
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig")
    text = "kubeconfig to use (default: kubectl's, or the pod's service account)"
    chosen.add_argument("--kubeconfig", metavar="FILE", help=text)
    chosen.add_argument("--example", action="store_true", help="use the bundled example cluster")
    if url:
        text = "read the state of the Stowage that serves /debug at this URL"
        chosen.add_argument("--url", metavar="URL", help=text)
        _add_token(parser)


def add_output(parser: argparse.ArgumentParser, *formats: str, **what: str) -> None:
    """Add ``-o`` with these formats, by default the first. ``what``: notes on formats, for the help."""
    text = ", ".join(f"{name} ({what[name]})" if name in what else name for name in formats)
    default = parser.argument_default or formats[0]
    parser.add_argument("-o", "--output", choices=formats, default=default, metavar="FORMAT", help=text)


def structured(value: object, output: str, indent: int | None = 2) -> str:
    """A value as JSON, or as YAML if ``output`` is ``yaml``."""
    from pydantic_core import to_json

    from extender.explain.answers import plain

    text = to_json(plain(value), indent=indent).decode()
    if output != "yaml":
        return text
    import yaml

    return yaml.safe_dump(json.loads(text), sort_keys=False, allow_unicode=True).rstrip()


def add_namespace(parser: argparse.ArgumentParser, text: str) -> None:
    """Add ``-n`` with this help, and ``-A``."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("-n", "--namespace", metavar="NAMESPACE", help=text)
    which.add_argument("-A", "--all-namespaces", action="store_true", help="all namespaces, the default")


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings, as YAML")


def add_running(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``add_source``, those of the running Stowage, and ``--config``."""
    add_source(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--url", help="ask the Stowage that serves /debug at this URL")
    which.add_argument("--local", action="store_true", help="read the cluster, do not ask a running Stowage")
    text = "namespace of the running Stowage (stowage-system, then all)"
    which.add_argument("--stowage-namespace", metavar="NAMESPACE", help=text)
    _add_token(parser)
    add_config(parser)


def _add_token(parser: argparse.ArgumentParser) -> None:
    text = "file with the token for the running Stowage"
    parser.add_argument("--token-file", type=Path, metavar="FILE", help=text)


def short_name(args: argparse.Namespace) -> str:
    """Name of the cluster in tables."""
    if args.snapshot:
        return ", ".join(path.stem for path in args.snapshot)
    return "example" if args.example else "cluster"


def begin(
    args: argparse.Namespace,
    command: str,
    environ: Mapping[str, str] = os.environ,
    level: str = "warning",
) -> Settings:
    """Log from this level on, read the settings, and report the source that the command reads or queries, so
    that the user sees progress. Raises ``SettingsError``."""
    from extender import logs
    from extender.settings_file import load

    logs.configure(level)
    settings = load(args.config, environ)
    given, files = vars(args), args.snapshot or []
    what = f"reading {', '.join(map(str, files))}" if files else "reading the bundled example"
    if not files and not args.example:
        local = given.get("local", True) or args.config
        what = f"asking {args.url}" if given.get("url") else f"{'reading' if local else 'asking'} the cluster"
    show_step(f"stowage {command}: {what}")
    return settings


def source_of(args: argparse.Namespace) -> Source:
    """The source that the arguments select, or else the cluster that kubectl would use.

    Raises ``SourceError`` if it is unusable or does not exist.
    """
    if args.snapshot:
        return snapshot_source(args.snapshot)
    if args.example:
        from extender.data import CLUSTER

        return snapshot_source([CLUSTER], "the bundled example")
    if url := getattr(args, "url", None):
        from extender.source.snapshot import Snapshot, SnapshotSource
        from extender.source.stowage_service import at_url

        snapshot = Snapshot()
        snapshot.add(at_url(url, _token(args.token_file)).download("/debug/state"), url)
        return SnapshotSource(snapshot, url)
    if (live := _live(args)) is not None:
        return live
    raise Unavailable(_NO_CLUSTER)


def source_with_settings(
    args: argparse.Namespace, settings: Settings
) -> tuple[Source, Settings, Header | None]:
    """The source; the settings, from the state dump if the source is one, unless ``--config`` is set; and the
    header of the dump. Raises ``SourceError`` and ``SettingsError``."""
    source = source_of(args)
    dump: Header | None = getattr(source, "dump", None)
    if dump is not None and not args.config:
        settings = _settings_of(dump)
    select_nodes(source, settings)
    return source, settings, dump


def listed(source: Source) -> tuple[list[Sequence[Event]], int, int]:
    """All objects of a source as events, the number of nodes, and the number of pods that have not ended.
    Raises ``SourceError``."""
    from extender.k8s.objects import Node, Pod, Upserted

    batches = list(source.list_once())
    objects = [event.obj for events in batches for event in events if isinstance(event, Upserted)]
    pods = sum(isinstance(obj, Pod) and not obj.terminated for obj in objects)
    return batches, sum(isinstance(obj, Node) for obj in objects), pods


def moment(source: Source, pods: Iterable[Pod], dump: Header | None) -> float:
    """Now in Unix seconds; for a file the newest time in it, so that answers are reproducible."""
    from extender.source.snapshot import moment_of

    if source.watches():
        return time.time()
    return (dump.at if dump else moment_of(pods)) or time.time()


def select_nodes(source: Source, settings: Settings) -> None:
    """Limit a cluster to the shard of these settings. Files are not limited."""
    if settings.node_selector is not None:
        with suppress(Unavailable):
            source.select_nodes(settings.node_selector, settings.shard_schedulers)


def ask(args: argparse.Namespace, command: str, question: Callable[[StowageService], T]) -> T | None:
    """The answer of the running Stowage; None if the command is to read the cluster directly.

    Raises ``ValueError`` if Stowage rejects the query, or does not answer at ``--url``.
    """
    if args.local or args.snapshot or args.example or (args.config and not args.url):
        return None
    from extender.source.stowage_service import NotAsked

    try:
        service = _service(args)
        if service is None:
            return None
        answer = question(service)
    except NotAsked as reason:
        if args.url:
            raise ValueError(str(reason)) from None
        lost = "without decisions, expected start and learned demand"
        _say(f"stowage {command}: reading the cluster directly, {lost}, because {reason}")
        return None
    _say(f"stowage {command}: answered by {service.name}")
    return answer


def dry_run_client(args: argparse.Namespace) -> RestClient | None:
    """The API server that may be asked for dry runs; None if the arguments select another source."""
    live = None if args.local or args.snapshot or args.example or args.url else _live(args)
    return live.rest if live else None


def _say(text: str) -> None:
    show_line("")
    print(text, file=sys.stderr)


def read_answer(kind: type[T], found: object, stowage: StowageService, key: str = "") -> T:
    """An answer of the running Stowage, or its value for ``key``, as this type. Raises ``NotAsked``."""
    from pydantic import TypeAdapter, ValidationError

    from extender.source.stowage_service import NotAsked

    if key:
        found = found.get(key) if isinstance(found, dict) else None
    try:
        return TypeAdapter(kind).validate_python(found)
    except ValidationError:
        raise NotAsked(f"{stowage.name} runs another version, and its answer is unreadable") from None


def _settings_of(dump: Header) -> Settings:
    from pydantic import ValidationError

    from extender.settings import Settings, SettingsError

    try:
        return Settings.model_validate(dump.settings)
    except ValidationError as error:
        raise SettingsError(f"the settings in the dump are invalid: {error.errors()[0]['msg']}") from None


def _service(args: argparse.Namespace) -> StowageService | None:
    """The running Stowage; None without a cluster. Raises ``NotAsked``."""
    from extender.source.stowage_service import at_url, behind_service

    token = _token(args.token_file)
    if args.url:
        return at_url(args.url, token)
    keys = (word.split("/") for word in getattr(args, "pod", ()))
    asks_in = args.namespace or next((parts[0] for parts in keys if len(parts) == 2), "")
    live = _live(args)
    return behind_service(live.rest, args.stowage_namespace, token, asks_in) if live else None


def _token(path: Path | None) -> str:
    if path is None:
        return ""
    with path.open(encoding="ascii") as file:
        token = file.read(DEBUG_TOKEN + 1).strip()
    if not token or len(token) > DEBUG_TOKEN or not token.isprintable():
        raise ValueError(f"{path}: has no token")
    return token


def _live(args: argparse.Namespace) -> KubeSource | None:
    # Imported here, because the Kubernetes client takes half a second.
    from extender.source.apiserver import from_kubeconfig, in_cluster

    if path := args.kubeconfig or os.environ.get("KUBECONFIG"):
        return from_kubeconfig(path, context=args.context)
    if os.environ.get("KUBERNETES_SERVICE_HOST") and not args.context:
        return in_cluster()
    default = Path.home() / ".kube" / "config"
    return from_kubeconfig(default, context=args.context) if default.exists() else None


def snapshot_source(paths: Sequence[Path], name: str = "") -> SnapshotSource:
    """The cluster in these files."""
    from extender.source.snapshot import SnapshotSource, read

    return SnapshotSource(read(paths), name or ", ".join(map(str, paths)))
