"""Random request mixes under every policy: ``python -m bench.packing.random_runs --mixes 200 --seed 1``.

A difference is our allocation minus that of the best of the other policies on the same arrivals, in points.
Taking the best of several benefits from the luck of each draw, so 0 is better than equal.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from extender.cli.precompile import choose_cache

if __name__ == "__main__":
    choose_cache()  # before the imports that load kernels

from bench.packing.gains import OURS, mean_and_error
from bench.packing.mixes import fill_mix, serve_mix
from bench.packing.random_mixes import RandomMix, random_profiles, random_shares
from bench.packing.runs import spread
from bench.packing.trace_runs import Rows
from extender.replay.report import aligned

_HEAD = ["kind", "way", "mixes", "mean", "±", "worst", "its number", "below -0.3", "equal", "ours", "bound"]
ROUNDED = 0.0015
"""Points by which an allocation may be above its bound, because both are rounded to 0.001."""
NOTICEABLE = -0.3
"""Points: mixes with a smaller difference are counted."""


class Kind(NamedTuple):
    """The generator of mixes of a kind from a seed and a number, and the other policies that pack them."""

    make: Callable[[int, int], RandomMix]
    others: tuple[str, ...]


KINDS = {
    "shares": Kind(random_shares, ("best-fit", "fgd", "least-squares", "dot-product")),
    "mig": Kind(random_profiles, ("best-fit", "fgd", "mfi")),
}
REPLAYS = {"fill": fill_mix, "departures": serve_mix}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the summary; the exit code is 1 if a policy exceeded a bound."""
    args = _parser().parse_args(argv)
    numbers = [(kind, number) for kind in args.kinds for number in range(args.first, args.first + args.mixes)]
    rows: Rows = []
    for found in spread(partial(run_mix, args.seed, args.ways), numbers, args.jobs):
        rows += found
        print(f"{len(rows)}/{len(numbers) * len(args.ways)}", end="\r", file=sys.stderr, flush=True)
    if args.output:
        args.output.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print(aligned(summary(rows)))
    exceeded = [row for row in rows if row["exceeds"]]
    for row in exceeded:
        print(f"exceeds the bound: {row}", file=sys.stderr)
    return 1 if exceeded else 0


def run_mix(seed: int, ways: Sequence[str], which: tuple[str, int]) -> Rows:
    """One row for each way of replaying this (kind, number)."""
    kind, number = which
    made, rows = KINDS[kind].make(seed, number), []
    for way in ways:
        names = (OURS, *KINDS[kind].others)
        arrivals = seed * 100_000 + number
        found = {name: REPLAYS[way](made.work, name, load=made.load, seed=arrivals) for name in names}
        allocation = {name: figures["allocation"] for name, figures in found.items()}
        bound = found[OURS].get("bound")
        best = max(KINDS[kind].others, key=allocation.__getitem__)
        row: dict[str, Any] = {"kind": kind, "way": way, "seed": seed, "number": number, "load": made.load}
        row |= {"difference": round(allocation[OURS] - allocation[best], 3), "best": best, "bound": bound}
        exceeds = bound is not None and max(allocation.values()) > bound + ROUNDED
        rows.append(row | {"exceeds": exceeds, "allocation": allocation})
    return rows


def summary(rows: Rows) -> list[list[str]]:
    """A row for each kind and way."""
    lines = [_HEAD]
    for kind, way in dict.fromkeys((row["kind"], row["way"]) for row in rows):
        of_kind = [row for row in rows if (row["kind"], row["way"]) == (kind, way)]
        gained = [row["difference"] for row in of_kind]
        mean, error = mean_and_error(gained)
        worst = min(of_kind, key=lambda row: float(row["difference"]))
        figures = [f"{mean:+.2f}", f"{error:.2f}", f"{worst['difference']:+.2f}"]
        counts = [str(sum(x < NOTICEABLE for x in gained)), str(sum(x == 0 for x in gained))]
        ours = f"{fmean(row['allocation'][OURS] for row in of_kind):.2f}"
        bounds = [row["bound"] for row in of_kind if row["bound"] is not None]
        bound = f"{fmean(bounds):.2f}" if bounds else ""
        lines.append([kind, way, str(len(gained)), *figures, str(worst["number"]), *counts, ours, bound])
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.packing.random_runs")
    parser.add_argument("--mixes", type=int, default=200, metavar="N", help="mixes of each kind (200)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the number of the first mix (0)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the mixes and the arrivals (1)")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--ways", nargs="+", choices=list(REPLAYS), default=list(REPLAYS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (%(default)s)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write a row for each mix, as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
