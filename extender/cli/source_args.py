"""The arguments that choose a source: ``--snapshot`` and ``--kubeconfig``."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from extender.source.interface import Source

_log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--snapshot`` and ``--kubeconfig``."""
    text = "read the output of 'kubectl get nodes,pods -A -o json' instead of a cluster"
    parser.add_argument("--snapshot", type=Path, nargs="+", metavar="FILE", help=text)
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE", help="use the cluster of this kubeconfig")


def source_of(args: argparse.Namespace) -> Source:
    """``--snapshot``, else ``--kubeconfig``, else the cluster in which this runs, else the bundled example.

    Raises ``SourceError`` if it cannot be used.
    """
    if args.snapshot:
        return _snapshot_source(args.snapshot, ", ".join(map(str, args.snapshot)))
    if args.kubeconfig or os.environ.get("KUBERNETES_SERVICE_HOST"):
        # Not imported before: the Kubernetes client takes half a second.
        from extender.source.apiserver import from_kubeconfig, in_cluster

        return from_kubeconfig(args.kubeconfig) if args.kubeconfig else in_cluster()
    from extender.demo.bundle import CLUSTER

    _log.warning("NOT YOUR CLUSTER: using the bundled example (no --snapshot, no --kubeconfig, no pod)")
    return _snapshot_source([CLUSTER], "the bundled example")


def _snapshot_source(paths: Sequence[Path], name: str) -> Source:
    from extender.source.snapshot import SnapshotSource, read

    return SnapshotSource(read(paths), name)
