"""Seeds and samples on the command line of the benchmarks."""

from __future__ import annotations

import argparse
import re

_MOST_SEEDS = 10_000


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
