"""What a property test tries, and a test with many parameters.

`make test` runs on every change and tries some. `make nightly` tries all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

NIGHTLY = os.environ.get("STOWAGE_TESTS") == "nightly"
_USUAL = 100  # where a test does not say how many
_PART = 10  # `make test` tries one of so many
_LEAST = 10


def examples(nightly: int, least: int = _LEAST) -> int:
    """So many in the nightly run, and at least so many in the others."""
    return nightly if NIGHTLY else min(nightly, max(least, nightly // _PART))


USUAL = examples(_USUAL)


def some(values: Iterable[str], count: int = 3) -> list[Any]:
    """Parameters of a test: the first ones always, the others in the nightly run."""
    return [
        pytest.param(value, marks=() if number < count else pytest.mark.nightly)
        for number, value in enumerate(values)
    ]
