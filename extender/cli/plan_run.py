"""Converts the options of ``stowage plan`` into a source and a report."""

from __future__ import annotations

import argparse

from extender.cli import cluster_args
from extender.cluster.census import Census
from extender.k8s.objects import Node, Upserted
from extender.plan.change import added_nodes, change_report
from extender.plan.drain import drain_report, summary_report
from extender.plan.mig import mig_report
from extender.plan.moves import moves_report
from extender.plan.prices import NO_COSTS, NodeCosts, costs_of, read_prices
from extender.plan.report import Progress, Report
from extender.plan.slices import slices_report
from extender.plan.source import ClusterSource
from extender.settings import Settings
from extender.source.interface import Source
from extender.source.prometheus import measured_use
from extender.trial.trial import Trial


def source_of(args: argparse.Namespace, cluster: Source, settings: Settings) -> ClusterSource:
    """The cluster as a source of plans. Raises ``SourceError`` and ``SettingsError``."""
    events = [event for batch in cluster.list_once() for event in batch]
    return ClusterSource(
        cluster_args.short_name(args),
        events,
        settings,
        bare_pods=args.bare_pods,
        allow_downgrade=args.allow_downgrade,
    )


def work_out(args: argparse.Namespace, source: ClusterSource, census: Census, progress: Progress) -> Report:
    """The requested report. Raises ``BadInput``."""
    if args.what == "change":
        return _change(args, source, progress)
    trial = source.trial()
    costs = _costs(args, source, trial)
    if args.what == "summary":
        return summary_report(source.name, trial, census, costs, progress)
    if args.what == "mig":
        return mig_report(source, trial, args.layouts, args.growth, args.repartition_seconds, progress)
    if args.what == "slices":
        measured = measured_use(args.prometheus, args.window, args.quantile) if args.prometheus else {}
        return slices_report(source, trial, measured, args.margin, progress)
    if args.what == "moves":
        return moves_report(source.name, trial, args.moves, args.free, progress)
    return drain_report(source.name, trial, costs, progress, keep_room=not args.ignore_waiting)


def _change(args: argparse.Namespace, source: ClusterSource, progress: Progress) -> Report:
    nodes = source.nodes()
    added: list[Node] = []
    for text in args.add:
        added += added_nodes(text, nodes, [node.name for node in added])
    costs = NO_COSTS
    if args.prices:
        changed = source.state(map(Upserted, added))
        costs = costs_of(read_prices(args.prices), filter(None, changed.fleet.specs), changed.nodes)
    return change_report(source, added, args.remove, costs, progress)


def _costs(args: argparse.Namespace, source: ClusterSource, trial: Trial) -> NodeCosts:
    if not args.prices:
        return NO_COSTS
    specs = [spec for spec in trial.fleet.specs if spec]
    return costs_of(read_prices(args.prices), specs, source.nodes())
