"""Cells of the printed tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def median_and_range(values: Sequence[float], form: str) -> str:
    """Median (lowest to highest), each in this format; "-" without values."""
    if not values:
        return "-"
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"
