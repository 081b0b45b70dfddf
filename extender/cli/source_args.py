"""Which source of state the arguments of a command mean."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from extender.source.interface import Source

_log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--snapshot`` and ``--kubeconfig``."""
    parser.add_argument(
        "--snapshot",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="read the state from what 'kubectl get nodes,pods -A -o json' prints, instead of a cluster",
    )
    parser.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="follow the cluster of this kubeconfig"
    )


def source_of(args: argparse.Namespace) -> Source:
    """``--snapshot``, else ``--kubeconfig``, else the cluster around us, else the bundled example.

    Raises ``SourceError`` where it cannot be used.
    """
    if args.snapshot:
        return _snapshot(args.snapshot, ", ".join(map(str, args.snapshot)))
    from extender.source import apiserver as kube

    if args.kubeconfig:
        return kube.from_kubeconfig(args.kubeconfig)
    if (cluster := kube.in_cluster()) is not None:
        return cluster
    from extender.data import CLUSTER

    _log.warning("NOT YOUR CLUSTER: outside a cluster and without --snapshot or --kubeconfig, an example")
    return _snapshot([CLUSTER], "the bundled example")


def _snapshot(paths: Sequence[Path], name: str) -> Source:
    from extender.source.snapshot import SnapshotSource, read

    return SnapshotSource(read(paths), name)
