"""From the options of ``stowage plan`` to a source and a report."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

from extender.cli import source_args
from extender.k8s.objects import Node, Upserted
from extender.plan.answers import drain_report, size_of
from extender.plan.change import added_nodes
from extender.plan.change_report import change_report
from extender.plan.cluster import ClusterSource
from extender.plan.moves import moves_report
from extender.plan.prices import NO_COSTS, NodeCosts, costs_of, read_prices
from extender.plan.report import Report
from extender.plan.source import PlanSource
from extender.plan.summary import summary_report
from extender.plan.work import Work
from extender.replay.traces import BadInput
from extender.settings_file import load

Progress = Callable[[str, float], None]
_OF_PLAN = {"add": "change", "remove": "change"}


def source_of(args: argparse.Namespace) -> PlanSource:
    """The cluster or trace that the arguments name. Raises ``BadInput``, ``SourceError`` and
    ``SettingsError``."""
    if args.what is None:
        args.what = "change" if args.add or args.remove else "summary"
    for option, what in _OF_PLAN.items():
        if getattr(args, option) and args.what != what:
            raise BadInput(f"--{option} belongs to 'stowage plan {what}', not to {args.what}")
    if args.what == "change" and not (args.add or args.remove):
        raise BadInput("nothing to change: expected --add or --remove")
    source = source_args.source_of(args)
    events = [event for batch in source.list_once() for event in batch]
    settings = load(args.config, os.environ)
    return ClusterSource(_name(args), events, settings, bare_pods=args.bare_pods)


def _name(args: argparse.Namespace) -> str:
    if args.snapshot:
        return ", ".join(path.stem for path in args.snapshot)
    return "example" if args.example else "cluster"


def first_line(work: Work, name: str) -> str:
    """What is known before anything is searched."""
    return size_of(work, name)


def work_out(args: argparse.Namespace, source: PlanSource, work: Work, progress: Progress) -> Report:
    """The report that was asked for. Raises ``BadInput``."""
    if args.what == "change":
        return _change(args, source, progress)
    costs = _costs(args, source, work)
    if args.what == "summary":
        return summary_report(source, work, costs, progress)
    if args.what == "moves":
        return moves_report(source, work, args.moves, args.free, progress)
    return drain_report(source, work, costs, progress, keep_room=not args.ignore_waiting)


def _change(args: argparse.Namespace, source: PlanSource, progress: Progress) -> Report:
    assert isinstance(source, ClusterSource)
    nodes = source.nodes()
    added: list[Node] = []
    for text in args.add:
        added += added_nodes(text, nodes, [node.name for node in added])
    costs = NO_COSTS
    if args.prices:
        changed = source.changed(map(Upserted, added)).state()
        costs = costs_of(read_prices(args.prices), filter(None, changed.fleet.specs), changed.nodes)
    return change_report(source, added, args.remove, costs, progress)


def _costs(args: argparse.Namespace, source: PlanSource, work: Work) -> NodeCosts:
    if not args.prices:
        return NO_COSTS
    specs = [spec for spec in work.fleet.specs if spec]
    return costs_of(read_prices(args.prices), specs, source.nodes())
