"""The options of ``stowage replay``, and which of them go together."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from extender.cli import cluster_args
from extender.cli.usage import UsageError
from packing.policies.registry import POLICIES

_MOST_SEEDS = 10_000
_COMMON = ("policy", "sample", "output")
_CLUSTER = ("snapshot", "kubeconfig", "example", "url")
_OPTIONS = {
    "cluster": (*_COMMON, *_CLUSTER, "token_file", "config", "allow_downgrade"),
    "timeline": (*_COMMON, "nodes", "pods"),
    "pods": (*_COMMON, "nodes", "seeds", "config"),
}
"""What can be replayed, and the options that it uses. If several are given, the first one is replayed."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options. Those that are not given are None; see ``complete``."""
    add = parser.add_argument
    cluster_args.add_source(parser, url=True)
    add("--nodes", type=Path, metavar="CSV", help="nodes of a trace (columns: docs/replay.md)")
    add("--pods", type=Path, nargs="+", metavar="CSV", help="pods of a trace")
    waits = "use the times in the trace; pods wait until they fit"
    add("--timeline", action="store_true", default=None, help=waits)
    add("--policy", type=policy_names, metavar="A,B", help=", ".join(POLICIES))
    orders = "seeds of the arrival order, such as 1,2,7 (42-51)"
    add("--seeds", type=seed_range, metavar="S", help=orders)
    add("--sample", type=sample_size, metavar="N", help="consider N fitting nodes, 0 for all (0)")
    weaker = "allow weaker devices for running pods"
    add("--allow-downgrade", action="store_true", default=None, help=weaker)
    cluster_args.add_config(parser)
    cluster_args.add_output(parser, "table", "wide", "json", "csv", wide="any width")


def complete(args: argparse.Namespace) -> str:
    """What to replay, a key of ``_OPTIONS``. Sets the defaults of options that are not given. Raises
    ``UsageError`` for options that are missing or that have no effect."""
    given = {name for name, value in vars(args).items() if value not in (None, False)} - {"run", "output"}
    of_trace = next((work for work in ("timeline", "pods") if work in given), "")
    work = "cluster" if given & {*_CLUSTER} or not (of_trace or args.nodes) else of_trace
    if work != "cluster" and not (args.nodes and args.pods):
        missing = "--pods without --nodes" if args.pods else "--nodes without --pods"
        missing = missing if args.pods or args.nodes else f"--{of_trace} without --nodes and --pods"
        raise UsageError(f"nothing to replay: {missing}")
    if unused := sorted(given - {work, *_OPTIONS[work]}):
        raise UsageError(_without_effect(work, unused))
    defaults: dict[str, Any] = {"policy": ["inventory"], "sample": 0}
    defaults["seeds"] = seed_range("42-51")
    for name, value in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return work


def _without_effect(work: str, unused: Sequence[str]) -> str:
    names = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
    users = [
        f"--{other}" for other in _OPTIONS if other != "cluster" and {*unused} <= {other, *_OPTIONS[other]}
    ]
    hint = f", or use {'it' if len(unused) == 1 else 'them'} with {' or '.join(users)}" if users else ""
    what = "the replay of a cluster" if work == "cluster" else f"--{work}"
    return f"{what} does not use {names}: leave {'it' if len(unused) == 1 else 'them'} out{hint}"


def policy_names(text: str, known: Sequence[str] = tuple(POLICIES)) -> list[str]:
    """Names separated by commas. Raises ``ArgumentTypeError``."""
    names = text.split(",")
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"no policy {', '.join(unknown)}; expected {', '.join(known)}")
    return list(dict.fromkeys(names))


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
