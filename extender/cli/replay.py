"""``stowage replay``: replays the pods of a cluster under one policy after another, to compare the policies.

The result is written to standard output, progress to standard error. The modules of the replay are imported
when it runs, because they load the kernels.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from extender.cli import cluster_args
from extender.untrusted.terminal import interruptible, line_width, show_progress
from packing.policies.registry import POLICIES

if TYPE_CHECKING:
    from extender.settings import Settings
    from extender.source.interface import Source

_INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended, as in shells."""
Rows = list[dict[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Place the same pods with one policy after another. Changes nothing."
    cluster_args.add_source(parser, url=True)
    add, names = parser.add_argument, ", ".join(POLICIES)
    add("--policy", type=policy_names, default=["inventory"], metavar="A,B", help=names)
    add("--allow-downgrade", action="store_true", help="allow weaker devices for running pods")
    cluster_args.add_namespace(parser, argparse.SUPPRESS)
    cluster_args.add_config(parser)
    cluster_args.add_output(parser, "table", "wide", "json", "yaml", "csv", wide="any width")


def policy_names(text: str, known: Sequence[str] = tuple(POLICIES)) -> list[str]:
    """Parse names separated by commas. Raises ``ArgumentTypeError``."""
    names = text.split(",")
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"no policy {', '.join(unknown)}; expected {', '.join(known)}")
    return list(dict.fromkeys(names))


def run(args: argparse.Namespace) -> int:
    """Replay and print. The exit code is 2 for unusable options or files, and 130 after Ctrl-C, which prints
    the complete rows."""
    from extender.cli.precompile import loading_kernels

    rows: Rows = []
    # Equal commands give equal results: the environment is not read.
    settings = cluster_args.begin(args, "replay", environ={}, level="error")
    source, settings, _ = cluster_args.source_with_settings(args, settings)
    with loading_kernels():
        interrupted = _collect(rows, args, settings, source)
    if rows:
        print(_text(rows, args.output), flush=True)
    if interrupted:
        done = f"only the {len(rows)} rows above are complete" if rows else "no row is complete"
        print(f"stowage replay: interrupted: {done}", file=sys.stderr)
    return _INTERRUPTED if interrupted else 0


def _collect(rows: Rows, args: argparse.Namespace, settings: Settings, source: Source) -> bool:
    """Add the rows one by one. Returns whether Ctrl-C interrupted this; the rows are then marked."""
    from extender.replay.repack import replay_cluster

    replayed = replay_cluster(
        source, cluster_args.short_name(args), args.policy, settings, show_progress,
        allow_downgrade=args.allow_downgrade,
    )  # fmt: skip
    try:
        with interruptible():
            for row in replayed:
                rows.append(row)
    except KeyboardInterrupt:
        rows[:] = [row | {"interrupted": True} for row in rows]
        return True
    return False


def _text(rows: Rows, output: str) -> str:
    from extender.replay.report import as_csv, snapshot_table

    if output in ("json", "yaml"):
        return cluster_args.structured(rows, output)
    if output == "csv":
        return as_csv(rows)
    shown = snapshot_table(rows, line_width(wide=output == "wide"))
    return f"INTERRUPTED: not all replays are complete:\n{shown}" if "interrupted" in rows[0] else shown
