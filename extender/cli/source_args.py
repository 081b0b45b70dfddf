"""The arguments that choose a source: ``--snapshot``, ``--kubeconfig`` and ``--example``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from extender.settings import Settings
    from extender.source.apiserver import KubeSource
    from extender.source.interface import Source
    from extender.source.rest import RestClient
    from extender.source.state_dump import Header

_NO_CLUSTER = (
    "no cluster: pass --kubeconfig FILE, --snapshot FILE (the output of 'kubectl get nodes,pods -A -o json') "
    "or --example (the bundled example)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--snapshot``, ``--kubeconfig`` and ``--example``."""
    chosen = parser.add_mutually_exclusive_group()
    text = "read the output of 'kubectl get nodes,pods -A -o json' instead of a cluster"
    chosen.add_argument("--snapshot", type=Path, nargs="+", metavar="FILE", help=text)
    text = "use the cluster of this kubeconfig ($KUBECONFIG, that of the pod, ~/.kube/config)"
    chosen.add_argument("--kubeconfig", metavar="FILE", help=text)
    chosen.add_argument("--example", action="store_true", help="use the bundled example cluster")


def source_of(args: argparse.Namespace) -> Source:
    """What the arguments name, else the cluster that kubectl would use here.

    Raises ``SourceError`` if it cannot be used, or if there is none.
    """
    if args.snapshot:
        return _snapshot_source(args.snapshot, ", ".join(map(str, args.snapshot)))
    if args.example:
        from extender.data import CLUSTER

        return _snapshot_source([CLUSTER], "the bundled example")
    if (live := _live(args)) is not None:
        return live
    from extender.source.interface import Unavailable

    raise Unavailable(_NO_CLUSTER)


def select_nodes(source: Source, settings: Settings) -> None:
    """Of a cluster, only the shard of these settings. A file has the nodes that it has."""
    from extender.source.interface import Unavailable

    if settings.node_selector is not None:
        with suppress(Unavailable):
            source.select_nodes(settings.node_selector, settings.shard_schedulers)


def rest_of(args: argparse.Namespace) -> RestClient | None:
    """A client for the API server that ``source_of`` would read, None without a cluster. Raises alike."""
    live = _live(args)
    return live.rest if live is not None else None


def dump_of(source: Source) -> Header | None:
    """What the service knew that wrote the file of ``--snapshot``; None for any other source."""
    return getattr(source, "dump", None)


def settings_of(args: argparse.Namespace, dump: Header | None) -> Settings | None:
    """The settings of that service, unless ``--config`` names others. Raises ``SettingsError``."""
    from pydantic import ValidationError

    from extender.settings import Settings, SettingsError

    if dump is None or args.config:
        return None
    try:
        return Settings.model_validate(dump.settings)
    except ValidationError as error:
        raise SettingsError(
            f"the settings in the dump are not valid here: {error.errors()[0]['msg']}"
        ) from None


def _live(args: argparse.Namespace) -> KubeSource | None:
    # Not imported before: the Kubernetes client takes half a second.
    from extender.source.apiserver import from_kubeconfig, in_cluster

    if path := args.kubeconfig or os.environ.get("KUBECONFIG"):
        return from_kubeconfig(path)
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster()
    default = Path.home() / ".kube" / "config"
    return from_kubeconfig(default) if default.exists() else None


def _snapshot_source(paths: Sequence[Path], name: str) -> Source:
    from extender.source.snapshot import SnapshotSource, read

    return SnapshotSource(read(paths), name)
