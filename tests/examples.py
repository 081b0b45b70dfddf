"""What a property test tries, and a test with many parameters.

`make test` runs on every change and tries some, always the same ones: a change, not the day, turns a test
red. `make nightly` tries all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")
NIGHTLY = os.environ.get("STOWAGE_TESTS") == "nightly"
SEED = int(os.environ.get("TESTS_SEED", "0"))
"""Which ones `make test` tries."""
_USUAL = 100  # where a test does not say how many
_PART = 10  # `make test` tries one of so many
_LEAST = 10


def examples(nightly: int, least: int = _LEAST) -> int:
    """So many in the nightly run, and at least so many in the others."""
    return nightly if NIGHTLY else min(nightly, max(least, nightly // _PART))


USUAL = examples(_USUAL)


def some(values: Iterable[T], count: int = 3) -> list[T]:
    """Parameters of a test: all in the nightly run, else so many; with the next ``SEED`` the next ones."""
    known = list(values)
    if NIGHTLY or count >= len(known):
        return known
    first = SEED * count
    return [known[number % len(known)] for number in range(first, first + count)]
