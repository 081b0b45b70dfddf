"""``stowage plan``: the effects of fewer, more or other nodes, of layouts and of moves. Changes nothing.

Every plan is replayed on the engine that serves kube-scheduler, and the answer compares the promised with the
actual result.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from extender.cli import cluster_args
from extender.cli.cluster_args import number, whole_number
from extender.source.errors import BadInput
from extender.untrusted.terminal import line_width, show_progress
from extender.untrusted.visible import joined, wrapped

if TYPE_CHECKING:
    from extender.cluster.census import Census
    from extender.k8s.objects import Node
    from extender.plan.report import Report
    from extender.plan.source import ClusterSource

_WHAT = {
    "summary": "free capacity, pending pods, removable nodes, cost",
    "drain": "nodes that can be removed",
    "change": "effect of adding or removing nodes",
    "moves": "the few moves that free the most GPUs or nodes",
    "mig": "the MIG layouts that serve the demand best",
    "slices": "pods with a whole GPU that would fit a MIG slice",
}
_count = whole_number(1, 100, "a whole number from 1 to 100")
_part = number(0, 1, "a number above 0, at most 1")
_factor = number(0, 1e6, "a number above 0")
_SEVERAL = {"action": "append", "default": []}
_MORE_NODES = "add COUNTxTYPE nodes, such as 4xH100 or 2xNODE (repeatable)"
_FREED = ("gpus", "nodes")
_REPARTITION = "seconds to re-partition a node, without its drain"
_WINDOW = "time window of the measurements (7d)"
_QUANTILE = "quantile of the activity; for memory always the maximum"


def _number(read: Callable[[str], float], default: float, metavar: str, text: str) -> dict[str, Any]:
    return {"type": read, "default": default, "metavar": metavar, "help": f"{text} ({default:g})"}


_OPTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("drain", "--ignore-waiting", {"action": "store_true", "help": "keep no room for pending pods"}),
    ("change", "--add", _SEVERAL | {"metavar": "NxTYPE", "help": _MORE_NODES}),
    ("change", "--remove", _SEVERAL | {"metavar": "NODE", "help": "remove this node (repeatable)"}),
    ("moves", "--moves", _number(_count, 5, "K", "maximum number of moves")),
    ("moves", "--free", {"choices": _FREED, "default": "gpus", "help": "what to free (gpus)"}),
    ("mig", "--layouts", _number(_count, 3, "K", "maximum number of layouts per pool")),
    ("mig", "--growth", _number(_factor, 1.0, "X", "plan for X times the current demand")),
    ("mig", "--repartition-seconds", _number(_factor, 90.0, "S", _REPARTITION)),
    ("slices", "--prometheus", {"metavar": "URL", "help": "Prometheus with the metrics of dcgm-exporter"}),
    ("slices", "--window", {"default": "7d", "metavar": "TIME", "help": _WINDOW}),
    ("slices", "--margin", _number(_factor, 1.2, "X", "the slice must fit X times the use")),
    ("slices", "--quantile", _number(_part, 0.95, "Q", _QUANTILE)),
)
"""Options of a single plan: the plan, the option, and its arguments for argparse."""
_WITH_PRICES = ("drain", "change", "summary")


class _OfOther(argparse.Action):
    """An option of another plan, whose name is ``const``."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> NoReturn:
        parser.error(f"{option_string} belongs to 'stowage plan {self.const}'")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Capacity plans, each replayed on the engine before it is shown. Changes nothing."
    _add_options(parser, "summary")
    plans = parser.add_subparsers(dest="what", metavar="PLAN", title="plans (summary)")
    parser.set_defaults(what="summary")
    for what, text in _WHAT.items():
        # Options before the name of the plan have set the defaults.
        plan_parser = plans.add_parser(what, help=text, description=text, argument_default=argparse.SUPPRESS)
        _add_options(plan_parser, what)


def _add_options(parser: argparse.ArgumentParser, what: str) -> None:
    add = parser.add_argument
    for plan, name, how in _OPTIONS:
        others = {"action": _OfOther, "nargs": "*", "const": plan, "help": argparse.SUPPRESS}
        add(name, **(how if plan == what else others))
    cluster_args.add_source(parser, url=True)
    if what in _WITH_PRICES:
        add("--prices", type=Path, metavar="FILE", help="prices per hour, as YAML (docs/plan.md)")
    else:
        add("--prices", action=_OfOther, nargs="*", const=_WITH_PRICES[0], help=argparse.SUPPRESS)
    text = "allow weaker devices for running pods"
    add("--allow-downgrade", action="store_true", help=text)
    text = "also move pods without a controller"
    add("--bare-pods", action="store_true", help=text)
    cluster_args.add_namespace(parser, argparse.SUPPRESS)
    cluster_args.add_config(parser)
    formats = "table", "wide", "json", "yaml", "csv", "name"
    cluster_args.add_output(parser, *formats, wide="any width", csv="the main table")


def run(args: argparse.Namespace) -> int:
    """Run the command. Exit codes: 0, 1 for a plan that gains less than promised, 2 for unusable options or
    files."""
    from extender.cli.precompile import loading_kernels

    _check(args)
    settings = cluster_args.begin(args, "plan", level="error")
    for_people, width = args.output in ("table", "wide"), line_width(wide=args.output == "wide")
    cluster, settings, _ = cluster_args.source_with_settings(args, settings)
    if for_people:  # before the kernels load, which takes longer
        print(f"Reading {cluster.describe()}", flush=True)
    with loading_kernels():
        from extender.plan.source import ClusterSource
    source = ClusterSource(
        cluster_args.short_name(args),
        [event for batch in cluster.list_once() for event in batch],
        settings,
        bare_pods=args.bare_pods,
        allow_downgrade=args.allow_downgrade,
    )
    census = source.census()
    if for_people:
        print(joined(wrapped(f"{source.name}: {census.totals.text}", width)), flush=True)
    report = _report(args, source, census)
    report.totals = census.totals
    print(_rendered(report, args.output, width))
    return 0 if report.agrees else 1


def _check(args: argparse.Namespace) -> None:
    """Raises ``BadInput`` and ``MetricsError`` for unusable options, before anything is read."""
    if args.what == "change" and not (args.add or args.remove):
        raise BadInput("nothing to change: expected --add or --remove")
    if args.prices and not args.prices.is_file():
        raise BadInput(f"--prices {args.prices}: cannot be read: no such file")
    if args.what == "slices" and args.prometheus:
        from extender.source.prometheus import check_question

        check_question(args.prometheus, args.window)


def _report(args: argparse.Namespace, source: ClusterSource, census: Census) -> Report:
    """Raises ``BadInput``."""
    from extender.k8s.objects import Upserted
    from extender.plan.change import added_nodes, change_report
    from extender.plan.drain import drain_report, summary_report
    from extender.plan.mig import mig_report
    from extender.plan.moves import moves_report
    from extender.plan.prices import costs_in, read_prices
    from extender.plan.slices import slices_report
    from extender.source.prometheus import measured_use

    prices = read_prices(args.prices) if args.prices else None
    if args.what == "change":
        added: list[Node] = []
        for text in args.add:
            added += added_nodes(text, source.nodes(), [node.name for node in added])
        costs = costs_in(source.state(map(Upserted, added)), prices)
        return change_report(source, added, args.remove, costs, show_progress)
    trial = source.trial()
    costs = costs_in(trial.state, prices)
    if args.what == "summary":
        return summary_report(source.name, trial, census, costs, show_progress)
    if args.what == "mig":
        return mig_report(source, trial, args.layouts, args.growth, args.repartition_seconds, show_progress)
    if args.what == "slices":
        measured = measured_use(args.prometheus, args.window, args.quantile) if args.prometheus else {}
        return slices_report(source, trial, measured, args.margin, show_progress)
    if args.what == "moves":
        return moves_report(source.name, trial, args.moves, args.free, show_progress)
    return drain_report(source.name, trial, costs, show_progress, keep_room=not args.ignore_waiting)


def _rendered(report: Report, output: str, width: int) -> str:
    from extender.plan.report import as_csv, as_text, as_values

    if output in ("json", "yaml"):
        return cluster_args.structured(as_values(report), output)
    if output == "name":
        rows = (row for table in report.tables[:1] for row in table.rows)
        return joined(next(cell for cell in row if isinstance(cell, str)) for row in rows)
    return as_csv(report) if output == "csv" else as_text(report, width)
