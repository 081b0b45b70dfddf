"""``stowage top``: the nodes with their GPUs, and the pods that wait for one."""

from __future__ import annotations

import argparse
import asyncio
import os
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, get_args

from extender.cli import cluster_args
from extender.cli.top_text import By, Sort, groups, in_order, render
from extender.cli.usage import whole_number
from extender.untrusted.terminal import clear_screen

if TYPE_CHECKING:
    from extender.cluster.state import State
    from extender.explain.overview_lines import Overview
    from extender.k8s.objects import Event
    from extender.settings import Settings
    from extender.source.interface import Source
    from extender.source.stowage_service import StowageService

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_WAITING = 20
"""Waiting pods that are shown."""
_POLICY = "best-fit"
"""What a place costs is not shown, and this one needs no tables."""
_PAUSE = 2.0
"""Seconds between two tables."""


def add_parser(subparsers: Subparsers) -> None:
    """Add ``top`` to the command line."""
    parser = subparsers.add_parser(
        "top", description="Show the free GPUs of each node, and the pods that are pending for a GPU."
    )
    cluster_args.add_running(parser)
    more = "any width, with each GPU, zone, islands, MIG, CPU, memory"
    cluster_args.add_output(parser, "table", "wide", "json", wide=more)
    text = "one line per node, model or zone (node)"
    parser.add_argument("--by", choices=get_args(By), default="node", help=text)
    text = f"{', '.join(get_args(Sort))}: numbers in descending order (name)"
    parser.add_argument("--sort", choices=get_args(Sort), default="name", metavar="COLUMN", help=text)
    text = f"maximum number of pending pods shown ({_WAITING})"
    parser.add_argument("--waiting", type=_waiting, default=_WAITING, metavar="N", help=text)
    parser.add_argument("-w", "--watch", action="store_true", help="refresh every 2 s, until Ctrl-C")


_waiting = whole_number(0, 1_000_000, "a whole number from 0")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from extender import logs
    from extender.settings_file import load

    settings = load(args.config, os.environ)
    logs.configure("warning")
    cluster_args.say_source(args, "top")
    for found, now in _overviews(args, settings):
        if args.watch and args.output != "json":
            clear_screen()
        print(_shown(found, now, args), flush=True)
    return 0


def _overviews(args: argparse.Namespace, settings: Settings) -> Iterator[tuple[Overview, float]]:
    """The fleet at a time in Unix seconds, once or every 2 s: as the running Stowage says, else as the source
    does."""
    if first := cluster_args.ask(args, "top", lambda stowage: (stowage, _asked(args, stowage))):
        stowage, found = first
        yield found, time.time()
        while args.watch:
            time.sleep(_PAUSE)
            yield _asked(args, stowage), time.time()
        return
    from extender.cli.precompile import kernels_for_question

    source, settings, dump = cluster_args.source_with_settings(args, settings)
    batches, nodes, pods = cluster_args.listed(source)
    with kernels_for_question(nodes + pods):
        from extender.cluster.census import CensusTaker
        from extender.cluster.factory import check_policy, state_of
        from extender.explain.overview import overview
    check_policy(settings.policy)
    state = state_of(settings.model_copy(update={"policy": _POLICY}), dump)
    state.learner.stopped = True  # nothing is placed, so no demand matters
    census = CensusTaker(state)
    for _ in _states(state, source, batches, watch=args.watch):
        found = asyncio.run(overview(state, census, args.waiting))
        yield found, cluster_args.moment(source, state.pods.values(), dump)


def _asked(args: argparse.Namespace, stowage: StowageService) -> Overview:
    from extender.explain.overview_lines import Overview
    from extender.untrusted.limits import DECISIONS_LISTED

    found = stowage.get("/debug/overview", [("waiting", str(min(args.waiting, DECISIONS_LISTED)))])
    return cluster_args.read_answer(Overview, found, stowage, "overview")


def _shown(found: Overview, now: float, args: argparse.Namespace) -> str:
    from pydantic_core import to_json, to_jsonable_python

    lines = in_order(found.nodes if args.by == "node" else groups(found.nodes, args.by), args.sort)
    if args.output == "json":
        shown = to_jsonable_python(found) | {f"{args.by}s": lines}
        return to_json(shown, indent=None if args.watch else 2).decode()
    return render(found, lines, args.by, now, wide=args.output == "wide")


def _states(
    state: State,
    source: Source,
    listed: Iterable[Sequence[Event]],
    *,
    watch: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Brings the state up to date before each step: with what was ``listed``, then every 2 s. Raises
    ``SourceError``."""
    for events in listed:
        state.apply(events)
    yield
    if not watch:
        return
    batches: queue.SimpleQueue[Sequence[Event]] = queue.SimpleQueue()
    source.start(batches.put)
    try:
        while True:
            sleep(_PAUSE)
            with suppress(queue.Empty):
                while True:
                    state.apply(batches.get_nowait())
            yield
    finally:
        source.stop()
