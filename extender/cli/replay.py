"""``stowage replay``: the same pods under one policy after another, to compare before a switch.

The result goes to standard output, progress to standard error. The modules of the replay are imported when it
runs, because they load the kernels.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from extender.cli import cluster_args
from extender.cli.replay_args import add_options, complete
from extender.cli.usage import UsageError
from extender.untrusted.terminal import interruptible, show_progress

if TYPE_CHECKING:
    from extender.settings import Settings
    from extender.source.interface import Source

_INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended, as shells report it."""
Rows = list[dict[str, Any]]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand and its options."""
    parser = subparsers.add_parser(
        "replay",
        help="compare policies on the pods of a cluster or a trace",
        description="Place the same pods with one policy after another. Changes nothing.",
    )
    add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Replay and print. The exit code is 2 for options or files that cannot be used, and 130 after
    Ctrl-C, which prints the rows that are complete."""
    from extender.cli.precompile import loading_kernels
    from extender.settings_file import load

    rows: Rows = []
    work = complete(args)
    settings = load(args.config, {})  # equal commands give equal results: the environment is not read
    cluster_args.say_source(args, "replay")
    source = None
    if work == "cluster":
        source, settings, _ = cluster_args.source_with_settings(args, settings)
    with loading_kernels(*(["packing.policies.fgd_kernels"] if "fgd" in args.policy else [])):
        interrupted = _collect(rows, work, args, settings, source)
    if rows:
        print(_text(work, rows, args.output), flush=True)
    if interrupted:
        done = f"only the {len(rows)} replays above are complete" if rows else "no replay is complete"
        print(f"stowage replay: interrupted: {done}", file=sys.stderr)
    return _INTERRUPTED if interrupted else 0


def _collect(
    rows: Rows, work: str, args: argparse.Namespace, settings: Settings, source: Source | None
) -> bool:
    """Add the rows one by one. Whether Ctrl-C ended that; the rows then say so."""
    from extender.replay.traces import BadInput

    try:
        replayed = _rows(work, args, settings, source)
        with interruptible():
            for row in replayed:
                rows.append(row)
    except KeyboardInterrupt:
        rows[:] = [row | {"interrupted": True} for row in rows]
        return True
    except BadInput as error:
        raise UsageError(str(error)) from None
    return False


def _text(work: str, rows: Rows, output: str) -> str:
    from extender.cli.explain_text import WIDTH
    from extender.replay.report import LEGENDS, as_csv, snapshot_table, table, wait_table

    if output == "json":
        return json.dumps(rows, indent=1)
    if output == "csv":
        return as_csv(rows)
    tables = {"cluster": snapshot_table, "pods": table, "timeline": wait_table}
    shown = tables[work](rows, 0 if output == "wide" else WIDTH)
    parts = ["INTERRUPTED, not all replays are here:"] if "interrupted" in rows[0] else []
    return "\n".join([*parts, shown, *([LEGENDS[work]] if work in LEGENDS else [])])


def _rows(
    work: str, args: argparse.Namespace, settings: Settings, source: Source | None
) -> Iterator[dict[str, Any]]:
    from extender.replay.repack import replay_cluster
    from extender.replay.runs import replay_timeline, replay_trace
    from packing.model.gpu_catalogue import GpuValues

    sample, progress = args.sample, show_progress
    if source is not None:
        return replay_cluster(
            source, cluster_args.short_name(args), args.policy, settings, sample, progress,
            allow_downgrade=bool(args.allow_downgrade),
        )  # fmt: skip
    if work == "timeline":
        return replay_timeline(args.nodes, args.pods, args.policy, sample=sample, progress=progress)
    return replay_trace(
        args.nodes, args.pods, args.policy, args.seeds,
        sample=sample, minimum_milli=settings.minimum_slice_milli, progress=progress,
        values=GpuValues(settings.gpu_values),
    )  # fmt: skip
