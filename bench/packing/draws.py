"""Tests whether a lost random mix was bad luck, with other arrivals of the same mix: ``python -m
bench.packing.draws 2/58``.

On its original draw a mix is compared with the best of the other policies (``random_runs``), which benefits
from the luck of that draw. Here the winning policy is compared with ours on further draws.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from extender.cli.precompile import choose_cache

if __name__ == "__main__":
    choose_cache()  # before the imports that load kernels

from bench.packing.gains import OURS, mean_and_error
from bench.packing.mixes import fill_mix
from bench.packing.random_mixes import random_shares
from bench.packing.random_runs import KINDS
from bench.packing.runs import spread
from extender.replay.report import aligned

HEAD = ["mix", "winner", "its draw", "other draws", "±", "bound"]
_APART = 7_777_777
"""Difference between the seeds of two draws of a mix."""


def main() -> int:
    args = _parser().parse_args()
    lines = spread(partial(line_of, args.draws), args.mixes, args.jobs)
    print(aligned([HEAD, *lines]))
    return 0


def line_of(draws: int, which: tuple[int, int]) -> list[str]:
    """For the mix (seed, number): the policy that is best on its original draw, our difference to it there
    and on ``draws`` others, ± the standard error, and the difference from ours to the bound on those; all in
    points."""
    seed, number = which
    made, others = random_shares(seed, number), KINDS["shares"].others

    def pack(policy: str, draw: int) -> dict[str, float]:
        arrivals = seed * 100_000 + number + draw * _APART
        return fill_mix(made.work, policy, load=made.load, seed=arrivals)

    own = {policy: pack(policy, 0)["allocation"] for policy in (OURS, *others)}
    winner = max(others, key=own.__getitem__)
    ours = [pack(OURS, draw) for draw in range(1, draws + 1)]
    theirs = [pack(winner, draw) for draw in range(1, draws + 1)]
    gained = [a["allocation"] - b["allocation"] for a, b in zip(ours, theirs, strict=True)]
    gain, error = mean_and_error(gained)
    left, _ = mean_and_error([found["bound"] - found["allocation"] for found in ours])
    figures = (own[OURS] - own[winner], gain)
    return [f"{seed}/{number}", winner, *(f"{x:+.2f}" for x in figures), f"{error:.2f}", f"{left:.2f}"]


def _mix(text: str) -> tuple[int, int]:
    seed, _, number = text.partition("/")
    if not (seed.isdigit() and number.isdigit()):
        raise argparse.ArgumentTypeError(f"invalid mix {text!r}; expected SEED/NUMBER, such as 2/58")
    return int(seed), int(number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.packing.draws")
    parser.add_argument("mixes", nargs="+", type=_mix, metavar="SEED/NUMBER")
    parser.add_argument("--draws", type=int, default=5, metavar="N", help="other draws of each mix (5)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
