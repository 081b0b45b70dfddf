"""What a property test tries, and a test with many parameters.

`make test` runs on every change and tries some, each day others. `make nightly` tries all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import date
from typing import TypeVar

T = TypeVar("T")
NIGHTLY = os.environ.get("STOWAGE_TESTS") == "nightly"
SEED = int(os.environ.setdefault("TESTS_SEED", str(date.today().toordinal())))
"""The day, unless the environment says which. All processes of a run have the same."""
_USUAL = 100  # where a test does not say how many
_PART = 10  # `make test` tries one of so many
_LEAST = 10


def examples(nightly: int, least: int = _LEAST) -> int:
    """So many in the nightly run, and at least so many in the others."""
    return nightly if NIGHTLY else min(nightly, max(least, nightly // _PART))


USUAL = examples(_USUAL)


def some(values: Iterable[T], count: int = 3) -> list[T]:
    """Parameters of a test: all in the nightly run, else so many, each day the next ones."""
    known = list(values)
    if NIGHTLY or count >= len(known):
        return known
    first = SEED * count
    return [known[number % len(known)] for number in range(first, first + count)]
