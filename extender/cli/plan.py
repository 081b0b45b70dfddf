"""``stowage plan``: what fewer, more or other nodes, layouts or moves would change. Changes nothing.

Every plan is carried out on the engine that serves kube-scheduler, and the answer shows what it promised
beside what came out.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from extender.cli import cluster_args
from extender.cli.usage import UsageError, number, whole_number
from extender.untrusted.terminal import show_progress
from extender.untrusted.visible import joined

if TYPE_CHECKING:
    from extender.plan.report import Report

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_WHAT = {
    "summary": "what is free, what waits, which nodes could go, what it costs",
    "drain": "the fewest nodes that hold the work, and which nodes could go in which order",
    "change": "what --add and --remove would change, waiting pods included",
    "moves": "the few moves that free the most whole GPUs or nodes",
    "mig": "the MIG layouts that serve the demand best",
    "slices": "the pods that ask for a whole GPU and would fit a slice",
}


def add_parser(subparsers: Subparsers) -> None:
    """Add ``plan`` to the command line."""
    lines = [f"  {name:<9}{text}" for name, text in _WHAT.items()]
    parser = subparsers.add_parser(
        "plan",
        description="Capacity plans, each carried out on the engine before it is shown. Changes nothing.\n\n"
        + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("what", nargs="?", choices=tuple(_WHAT), help="what to plan (summary)", metavar="WHAT")
    cluster_args.add_source(parser)
    add("--nodes", type=Path, metavar="CSV", help="nodes of a trace (columns: docs/replay.md)")
    add("--pods", type=Path, metavar="CSV", help="pods of a trace")
    cluster_args.add_config(parser)
    formats = ("table", "json", "csv")
    add("-o", "--output", choices=formats, default="table", help="table, json, or csv (the main table)")
    _add_options(parser)


_count = whole_number(1, 100, "a whole number from 1 to 100")
_part = number(0, 1, "a number above 0, at most 1")
_factor = number(0, 1e6, "a number above 0")


def _add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the single plans."""
    add = parser.add_argument
    text = "change: COUNTxTYPE nodes more, such as 4xH100 or 2xNODE; may be repeated"
    add("--add", action="append", default=[], metavar="NxTYPE", help=text)
    text = "change: a node less; may be repeated"
    add("--remove", action="append", default=[], metavar="NODE", help=text)
    add("--moves", type=_count, default=5, metavar="K", help="moves: at most so many (5)")
    add("--free", choices=("gpus", "nodes"), default="gpus", help="moves: what is to become free (gpus)")
    add("--layouts", type=_count, default=3, metavar="K", help="mig: at most so many layouts in a pool (3)")
    add("--growth", type=_factor, default=1.0, metavar="X", help="mig: X times the demand of today (1)")
    text = "mig: seconds that a node takes to re-partition, without its drain (90)"
    add("--repartition-seconds", type=_factor, default=90.0, metavar="S", help=text)
    add("--prometheus", metavar="URL", help="slices: measured use, from the metrics of dcgm-exporter")
    add("--window", default="7d", metavar="TIME", help="slices: the maximum over so much time (7d)")
    text = "slices: X times the use must fit (1.2)"
    add("--margin", type=_factor, default=1.2, metavar="X", help=text)
    text = "slices: this quantile of the activity; of the memory always the maximum (0.95)"
    add("--quantile", type=_part, default=0.95, metavar="Q", help=text)
    add("--prices", type=Path, metavar="FILE", help="prices per hour, as YAML (docs/plan.md)")
    add("--ignore-waiting", action="store_true", help="drain: leave no room for waiting pods")
    text = "pods that run may get weaker devices: a part for a whole GPU, a lesser model, spot"
    add("--allow-downgrade", action="store_true", help=text)
    text = "pods without a controller may move, too: you create them again"
    add("--bare-pods", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    """Run the command. Exit codes: 0, 1 for a plan that gains less than it promised, 2 for options or files
    that cannot be used."""
    from extender.cli import logs
    from extender.cli.precompile import loading_kernels

    logs.configure("error")
    cluster = None if args.nodes or args.pods else cluster_args.source_of(args)
    if cluster and args.output == "table":  # before the kernels are loaded, which takes longer
        print(f"Reading {cluster.describe()}", flush=True)
    with loading_kernels():
        from extender.cli.plan_run import source_of, work_out
        from extender.plan.report import wrapped
        from extender.replay.traces import BadInput
    try:
        source = source_of(args, cluster)
        census = source.census()
        if args.output == "table":
            print(joined(wrapped([f"{source.name}: {census.totals.text}"])), flush=True)
        report = work_out(args, source, census, show_progress)
        report.totals = census.totals
    except BadInput as error:
        raise UsageError(str(error)) from None
    print(_rendered(report, args.output))
    return 0 if report.agrees else 1


def _rendered(report: Report, output: str) -> str:
    from extender.plan.report import as_csv, as_text, as_values

    if output == "json":
        return json.dumps(as_values(report), indent=1)
    return as_csv(report) if output == "csv" else as_text(report)
