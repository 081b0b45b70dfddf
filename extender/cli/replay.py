"""``stowage replay``: the same pods under one policy after another, to compare before a switch.

The result goes to standard output, progress to standard error. The modules of the replay are imported when it
runs, because they load the kernels.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packing.policies.registry import POLICIES

if TYPE_CHECKING:
    from extender.replay.queues import QueueOptions
    from extender.settings import Settings

_MOST_SEEDS = 10_000
_OPTIONS = {
    "snapshot": ("policy", "sample", "config", "output"),
    "queues": (
        *("timeline", "nodes", "pods", "policy", "seeds", "sample", "config", "output"),
        *("load", "checkpoint", "spot"),
    ),
    "timeline": ("nodes", "pods", "policy", "sample", "output"),
    "pods": ("nodes", "policy", "seeds", "sample", "config", "output"),
}
"""What can be replayed, and the options that it uses. If several are given, the first one is replayed."""
_HARMLESS = {"seeds", "config"}
"""Options that only get a warning if they are not used."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand and its options."""
    parser = subparsers.add_parser(
        "replay",
        help="place the pods of a cluster or of a trace under several policies",
        description="Place the same pods under one policy after another. Changes nothing.",
        usage="stowage replay (--snapshot FILE... | --nodes CSV --pods CSV...) [options]",
    )
    add = parser.add_argument
    cluster = "output of 'kubectl get nodes,pods -A -o json'"
    add("--snapshot", type=Path, nargs="+", metavar="FILE", help=cluster)
    add("--nodes", type=Path, metavar="CSV", help="nodes of a trace (columns: docs/replay.md)")
    add("--pods", type=Path, nargs="+", default=[], metavar="CSV", help="pods of a trace")
    add("--timeline", action="store_true", help="keep times and durations; pods wait until they fit")
    mapping = "with queues, by qos: LS=interactive,BE=batch"
    add("--queues", type=queue_mapping, nargs="?", const={}, metavar="MAP", help=mapping)
    add("--load", type=positive, metavar="X", help="so few nodes that X GPUs are asked for per GPU")
    add("--checkpoint", type=positive, metavar="S", help="restartable pods save work every S seconds")
    add("--spot", type=spot_market, metavar="A,B,C", help="share, discount, interruptions per hour")
    add("--policy", type=policy_names, default=["inventory"], metavar="A,B", help=", ".join(POLICIES))
    orders = "orders in which the pods arrive, such as 1,2,7 (42-51)"
    add("--seeds", type=seed_range, default=seed_range("42-51"), metavar="S", help=orders)
    add("--sample", type=sample_size, default=0, metavar="N", help="look at N fitting nodes, 0 for all (0)")
    add("--config", type=Path, metavar="FILE", help="settings, as YAML (which ones: docs/replay.md)")
    add("--output", choices=["table", "json"], default="table")
    names = {name for work, used in _OPTIONS.items() for name in (work, *used)}
    parser.set_defaults(run=run, defaults={name: parser.get_default(name) for name in names})


def run(args: argparse.Namespace) -> int:
    """Replay and print; the exit code is 2 for options or files that cannot be used."""
    from extender.cli.precompile import loading_kernels
    from extender.settings import SettingsError
    from extender.settings_file import load
    from extender.source.interface import SourceError

    try:
        work = _work(args)
        settings = load(args.config, {})  # equal commands give equal results: the environment is not read
        with loading_kernels():
            text = _replay(work, args, settings)
        print(text)
    except (UsageError, SourceError, SettingsError, OSError) as error:
        print(f"stowage replay: {error}", file=sys.stderr)
        return 2
    return 0


class UsageError(ValueError):
    """Options that cannot be combined."""


def _work(args: argparse.Namespace) -> str:
    """What to replay, a key of ``_OPTIONS``. Raises ``UsageError``."""
    work = next((name for name in _OPTIONS if getattr(args, name) not in (None, [], False)), "")
    if not work or (work != "snapshot" and not (args.nodes and args.pods)):
        raise UsageError("nothing to replay: expected --snapshot, or --nodes and --pods")
    given = {name for name, default in args.defaults.items() if getattr(args, name) != default}
    unused = given - {work, *_OPTIONS[work]}
    problem = f"--{work} does not use {', '.join(f'--{name}' for name in sorted(unused))}"
    if unused - _HARMLESS:
        raise UsageError(problem)
    if unused:
        print(f"stowage replay: {problem}", file=sys.stderr)
    return work


def _replay(work: str, args: argparse.Namespace, settings: Settings) -> str:
    """The result as text."""
    from extender.replay.report import queue_table, snapshot_table, table
    from extender.replay.traces import BadInput

    try:
        rows = _rows(work, args, settings)
    except BadInput as error:
        raise UsageError(str(error)) from None
    if args.output == "json":
        return json.dumps(rows, indent=1)
    return {"snapshot": snapshot_table, "queues": queue_table}.get(work, table)(rows)


def _rows(work: str, args: argparse.Namespace, settings: Settings) -> list[dict[str, Any]]:
    from extender.cli.precompile import prepare_victim_kernels
    from extender.replay.queues import replay_queues
    from extender.replay.repack import replay_snapshot
    from extender.replay.runs import replay_timeline, replay_trace

    sample, progress = args.sample, _show_progress()
    if work == "snapshot":
        return list(replay_snapshot(args.snapshot, args.policy, settings, sample, progress))
    if work == "queues":
        prepare_victim_kernels()
        return replay_queues(args.nodes, args.pods, args.seeds, _queue_options(args, settings), progress)
    if work == "timeline":
        return replay_timeline(args.nodes, args.pods, args.policy, sample=sample, progress=progress)
    return replay_trace(
        args.nodes, args.pods, args.policy, args.seeds,
        sample=sample, minimum_milli=settings.minimum_slice_milli, progress=progress,
    )  # fmt: skip


def _queue_options(args: argparse.Namespace, settings: Settings) -> QueueOptions:
    from extender.replay.queues import QUEUE_OF_QOS, QueueOptions
    from packing.replay.spot_nodes import SpotMarket

    if len(args.policy) > 1:
        raise UsageError("--queues uses one --policy")
    return QueueOptions(
        args.queues or QUEUE_OF_QOS,
        settings.queues,
        policy=args.policy[0],
        sample=args.sample,
        load=args.load,
        checkpoint=args.checkpoint,
        shield=settings.shield_seconds,
        spot=SpotMarket(*args.spot) if args.spot else None,
    )


def _show_progress() -> Callable[[str, float], None]:
    """A progress bar on standard error, if that is a terminal."""
    is_terminal = sys.stderr.isatty()

    def show(what: str, part: float) -> None:
        if is_terminal:
            filled = round(30 * part)
            bar = f"{what:32.32} [{'#' * filled}{'.' * (30 - filled)}] {part:4.0%}"
            print(f"\r{bar}", end="" if part < 1 else "\r\033[K", file=sys.stderr)

    return show


def policy_names(text: str, known: Sequence[str] = tuple(POLICIES)) -> list[str]:
    """Names separated by commas. Raises ``ArgumentTypeError``."""
    names = text.split(",")
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"no policy {', '.join(unknown)}; expected {', '.join(known)}")
    return names


def seed_range(text: str) -> list[int]:
    """Seeds such as ``42-51`` (both included) or ``1,2,7``. Raises ``ArgumentTypeError``."""
    seeds: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", item.strip(), re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < first + _MOST_SEEDS:
            raise argparse.ArgumentTypeError(f"invalid seeds {item!r}; expected a range such as 42-51")
        seeds += range(first, last + 1)
    return list(dict.fromkeys(seeds))


def sample_size(text: str) -> int:
    """A number of nodes. Raises ``ArgumentTypeError``."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"invalid number {text!r}; expected a whole number from 0")
    return min(int(text), 1 << 30)


def queue_mapping(text: str) -> dict[str, str]:
    """Queues by quality of service, ``LS=interactive,BE=backfill``. Raises ``ArgumentTypeError``."""
    pairs = [item.partition("=") for item in text.split(",")]
    if not all(qos.strip() and queue.strip() for qos, _, queue in pairs):
        raise argparse.ArgumentTypeError(f"invalid queues {text!r}; expected LS=interactive,BE=backfill")
    return {qos.strip(): queue.strip() for qos, _, queue in pairs}


def positive(text: str) -> float:
    """A number above 0. Raises ``ArgumentTypeError``."""
    return _number(text, 0, 1e9, "a number above 0")


def spot_market(text: str) -> tuple[float, float, float]:
    """Share, discount and interruptions per hour, ``0.3,0.65,0.02``. Raises ``ArgumentTypeError``."""
    expected = "SHARE,DISCOUNT,RATE such as 0.3,0.65,0.02"
    parts = text.split(",")
    if len(parts) != 3:
        raise argparse.ArgumentTypeError(f"invalid spot nodes {text!r}; expected {expected}")
    share, discount = (_number(part, 0, 1, expected) for part in parts[:2])
    return share, discount, _number(parts[2], 0, 60, expected)


def _number(text: str, above: float, most: float, expected: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = above
    if not above < number <= most:
        raise argparse.ArgumentTypeError(f"invalid number {text!r}; expected {expected}")
    return number
