"""``stowage replay``: the same work under one policy or another, before switching.

Three kinds of work: a trace (``--nodes`` and ``--pods``), the pods of a cluster (``--snapshot``), and
request mixes over GPUs alone (``--mixes``). Standard output holds the result alone; progress goes to
standard error.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.packing import mig
from extender.cli.precompile import prepare_kernels
from extender.replay import report as replay_report
from extender.replay.repack import SnapshotOptions, replay_snapshot
from extender.replay.runs import TraceOptions, bound_trace, replay_mixes, replay_timeline, replay_trace
from extender.replay.traces import BadTrace
from extender.settings import Settings, SettingsError, load
from extender.source.interface import SourceError
from packing.policies.registry import POLICIES

_MOST_SEEDS, _MOST_ARRIVALS = 10_000, 100
_HEEDS = {
    "snapshot": ("policy", "sample", "mix", "config", "output"),
    "mixes": ("departures", "policy", "seeds", "bound", "output"),
    "timeline": ("nodes", "pods", "policy", "sample", "output"),
    "pods": (
        *("nodes", "policy", "seeds", "arrival", "ties", "node_order", "sample", "mix", "config"),
        *("scores", "bound", "output", "plot"),
    ),
}
"""Kinds of work, the first that is asked for counts, and the options that each has a use for. (Fills of mixes
have their bound anyway.)"""
_HARMLESS = {"seeds", "arrival", "ties", "node_order", "sample", "mix", "config", "scores"}
"""Options that change nothing where there is no use for them: a warning will do."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand and its options."""
    parser = subparsers.add_parser("replay", help="run the same pods under several policies and compare")
    work = parser.add_argument_group("work")
    work.add_argument("--nodes", type=Path, help="CSV of nodes: sn, cpu_milli, memory_mib, gpu, model")
    work.add_argument(
        "--pods",
        type=Path,
        nargs="+",
        default=[],
        help="CSV of pods: name, cpu_milli, memory_mib, num_gpu, gpu_milli, ...",
    )
    work.add_argument(
        "--timeline", action="store_true", help="keep creation times and durations; pods wait in a queue"
    )
    work.add_argument(
        "--snapshot",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="what 'kubectl get nodes,pods -A -o json' prints: pack the running GPU pods again from empty",
    )
    work.add_argument(
        "--mixes", type=Path, help="JSON of request mixes over GPUs alone (shares or MIG profiles)"
    )
    work.add_argument("--departures", action="store_true", help="with --mixes: requests leave again")
    work.add_argument("--policy", type=_policies, default=["inventory"], help="names, separated by commas")
    work.add_argument("--seeds", type=seed_range, default=list(range(42, 52)), help="such as 42-51 or 1,2,7")
    work.add_argument(
        "--arrival",
        type=_arrivals,
        default=[1.0],
        help="arrived GPU as parts of the capacity, such as 1.0,1.3",
    )
    how = parser.add_argument_group("scheduler")
    how.add_argument("--ties", choices=["fixed", "random"], default="fixed")
    how.add_argument("--node-order", choices=["file", "shuffle"], default="file")
    how.add_argument(
        "--scores",
        choices=["exact", "0-10"],
        default="exact",
        help="rank nodes by their cost, or by integers on a fixed scale (policy inventory only)",
    )
    how.add_argument(
        "--sample",
        type=_count,
        default=0,
        metavar="N",
        help="look at N nodes that fit (0: all), as kube-scheduler may",
    )
    how.add_argument(
        "--mix", choices=["learnt", "known"], default="learnt", help="learn the demand mix, or know it"
    )
    how.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="settings, as YAML: minimum_slice_milli and, with --snapshot, demand",
    )
    out = parser.add_argument_group("result")
    out.add_argument(
        "--bound", action="store_true", help="add rows of what no scheduler can exceed, as policy bound"
    )
    out.add_argument("--output", choices=["table", "json"], default="table")
    out.add_argument(
        "--plot", type=Path, metavar="FILE", help="write a picture of allocation against arrivals"
    )
    names = {name for kind, heeded in _HEEDS.items() for name in (kind, *heeded)}
    parser.set_defaults(run=run, unset={name: parser.get_default(name) for name in names})


def run(args: argparse.Namespace) -> int:
    """Replay, print, and return the exit code: 2 for options or files that cannot be used."""
    try:
        work = _work(args)
        rows = _replay(work, args)
    except (BadTrace, UsageError, SourceError, SettingsError, OSError) as wrong:
        print(f"stowage replay: {wrong}", file=sys.stderr)
        return 2
    shown = replay_report.snapshot_table if work == "snapshot" else replay_report.table
    print(json.dumps(rows, indent=1) if args.output == "json" else shown(rows))
    return 0


class UsageError(ValueError):
    """Options that do not go together."""


def _work(args: argparse.Namespace) -> str:
    """The kind of work asked for. Raises ``UsageError``."""
    work = next((kind for kind in _HEEDS if getattr(args, kind)), "")
    if not work or (work in ("timeline", "pods") and not (args.nodes and args.pods)):
        raise UsageError("name the work: --nodes and --pods, --snapshot, or --mixes")
    given = [name for name, unset in args.unset.items() if getattr(args, name) != unset]
    useless = {name for name in given if name not in (work, *_HEEDS[work])}
    if useless - _HARMLESS:
        raise UsageError(f"--{work} has no use for {_flags(useless - _HARMLESS)}")
    if useless:
        print(f"stowage replay: --{work} has no use for {_flags(useless)}", file=sys.stderr)
    if work != "mixes" and (of_mig := [name for name in args.policy if name not in POLICIES]):
        raise UsageError(f"{', '.join(of_mig)} packs MIG instances alone: --mixes")
    if work == "pods" and args.scores != "exact" and args.policy != ["inventory"]:
        raise UsageError("--scores 0-10 is a scale for the policy inventory alone")
    return work


def _flags(names: set[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in sorted(names))


def _replay(work: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    prepare_kernels(bar=True)
    if work == "snapshot":
        options = SnapshotOptions(_settings(args), args.sample, args.mix == "known")
        return replay_snapshot(args.snapshot, args.policy, options, _bar())
    if work == "mixes":
        return replay_mixes(args.mixes, args.policy, args.seeds, departures=args.departures, progress=_bar())
    how = TraceOptions(
        tuple(args.arrival),
        args.ties == "random",
        args.node_order == "shuffle",
        args.sample,
        args.mix == "known",
        _settings(args).minimum_slice_milli,
        args.scores == "0-10",
    )
    if work == "timeline":
        return replay_timeline(args.nodes, args.pods, args.policy, how, _bar())
    rows, curves = replay_trace(args.nodes, args.pods, args.policy, args.seeds, how, _bar())
    if args.bound:
        rows += bound_trace(args.nodes, args.pods, args.seeds, how, _bar())
    if args.plot:
        _plot(curves, args.plot)
    return rows


def _plot(curves: replay_report.Curves, path: Path) -> None:
    try:
        replay_report.plot(curves, path)
    except ImportError:
        raise UsageError("--plot needs matplotlib: pip install 'kube-stowage[plot]'") from None
    except ValueError as error:  # matplotlib on a kind of file that it does not write
        raise UsageError(f"--plot: {error}") from None


def _settings(args: argparse.Namespace) -> Settings:
    return load(args.config, {})  # a replay repeats itself: the environment has no say


def _bar() -> Callable[[str, float], None]:
    """A progress bar on standard error, if that is a terminal."""
    shown = sys.stderr.isatty()

    def show(what: str, part: float) -> None:
        if shown:
            filled = round(30 * part)
            print(
                f"\r{what:32.32} [{'#' * filled}{'.' * (30 - filled)}] {part:4.0%}", end="", file=sys.stderr
            )
            if part >= 1:
                print("\r\033[K", end="", file=sys.stderr)

    return show


def _policies(text: str) -> list[str]:
    names = text.split(",")
    known = dict.fromkeys([*POLICIES, *mig.POLICIES])
    unknown = [name for name in names if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"no policy {', '.join(unknown)}; there are {', '.join(known)}")
    return names


def seed_range(text: str) -> list[int]:
    """Seeds such as ``42-51`` (both included) or ``1,2,7``. Raises ``ArgumentTypeError``."""
    seeds: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", item.strip(), re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < first + _MOST_SEEDS:
            raise argparse.ArgumentTypeError(f"{item!r} is no seed, and no range such as 42-51")
        seeds += range(first, last + 1)
    return list(dict.fromkeys(seeds))


def _arrivals(text: str) -> list[float]:
    try:
        numbers = [float(item) for item in text.split(",")]
    except ValueError:
        numbers = [0.0]
    if not all(0 < number <= _MOST_ARRIVALS for number in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} are not parts of the capacity, such as 1.0,1.3")
    return list(dict.fromkeys(numbers))


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return min(int(text), 1 << 30)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand alone: ``python -m extender.cli.replay ...``."""
    parser = argparse.ArgumentParser(prog="stowage")
    add_parser(parser.add_subparsers(required=True))
    args = parser.parse_args(argv)
    return run(args)


if __name__ == "__main__":
    sys.exit(main())
