"""``stowage audit``: what the GPUs of a cluster are used for, what is wasted, why, what it costs, and the
command that mends it. Only reads: each mend is carried out on a copy of the cluster."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from extender.cli import cluster_args
from extender.untrusted.terminal import line_width, show_progress

if TYPE_CHECKING:
    from extender.plan.audit import Audit
    from extender.settings import Settings
    from extender.source.interface import Source


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "What GPUs are wasted, why, what that costs, and the command that mends it. "
    parser.description += "Changes nothing."
    cluster_args.add_source(parser, url=True)
    text = "sums by team (namespace), model, or pool of nodes (team)"
    parser.add_argument("--by", choices=("team", "model", "pool"), default="team", help=text)
    text = "prices per hour, as YAML (docs/plan.md)"
    parser.add_argument("--prices", type=Path, metavar="FILE", help=text)
    text = "Prometheus with the metrics of dcgm-exporter: how much pods use their GPUs"
    parser.add_argument("--prometheus", default="", metavar="URL", help=text)
    text = "also show what has changed since this file of the same cluster was written"
    parser.add_argument("--before", type=Path, metavar="FILE", help=text)
    text = "also replay the pods of the last 24 hours with the scoring of kube-scheduler and of Stowage"
    parser.add_argument("--bill", action="store_true", help=text)
    parser.add_argument("--window", default="7d", metavar="TIME", help="time window of the measurements (7d)")
    cluster_args.add_namespace(parser, argparse.SUPPRESS)
    cluster_args.add_config(parser)
    cluster_args.add_output(parser, "text", "wide", "json", "yaml", "md", "html", wide="any width")


def run(args: argparse.Namespace) -> int:
    """Run the command. Exit codes: 0, 2 for unusable options or files."""
    from extender.cli.precompile import loading_kernels

    settings = cluster_args.begin(args, "audit", level="error")
    with loading_kernels():
        from extender.plan.audit_text import as_html, as_markdown, as_text
    found = _audited(args, settings)
    if args.output in ("json", "yaml"):
        print(cluster_args.structured(found, args.output))
    elif args.output in ("md", "html"):
        print(as_markdown(found) if args.output == "md" else as_html(found))
    else:
        print(as_text(found, line_width(wide=args.output == "wide")))
    return 0


def _audited(args: argparse.Namespace, settings: Settings) -> Audit:
    """Raises ``SourceError`` and ``SettingsError``."""
    import asyncio

    from extender.cluster.census import CensusTaker
    from extender.explain.gpu_use import GpuUse, gpu_use
    from extender.plan.audit import Earlier, audit
    from extender.plan.bill import daily_bill
    from extender.plan.mends import Mender
    from extender.plan.prices import costs_in, read_prices
    from extender.plan.source import ClusterSource
    from extender.source.prometheus import measured_use

    prices = read_prices(args.prices) if args.prices else None
    measured = measured_use(args.prometheus, args.window, 0.95) if args.prometheus else {}
    now, settings, dump = cluster_args.source_with_settings(args, settings)
    now.read_for_audit()

    def surveyed(cluster: Source) -> tuple[ClusterSource, Mender, GpuUse]:
        events = [event for batch in cluster.list_once() for event in batch]
        source = ClusterSource(cluster_args.short_name(args), events, settings)
        source.add_unmade_pods(state := source.state())
        mender = Mender(source, state, measured, args.prometheus)
        return source, mender, mender.with_use(asyncio.run(gpu_use(state, CensusTaker(state))))

    earlier = None
    if args.before:
        before, _, use = surveyed(cluster := cluster_args.snapshot_source([args.before]))
        at = cluster_args.moment(cluster, before.pods(), cluster.dump)
        earlier = Earlier(at, use.by_step())
    source, mender, use = surveyed(now)
    at, state = cluster_args.moment(now, source.pods(), dump), mender.state
    mends = dict(mender.mends(use, show_progress))
    bill = daily_bill(source, at, show_progress) if args.bill else None
    return audit(state, source.name, at, use, mends, args.by, costs_in(state, prices), earlier, bill)
