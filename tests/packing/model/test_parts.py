"""Parts of a GPU in thousandths."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packing.model.request import WHOLE, part_milli

PARTS = st.fractions(min_value=Fraction(1, 10**9), max_value=1)


@given(PARTS)
def test_as_many_equal_parts_share_a_gpu_as_in_truth(part: Fraction) -> None:
    """Never more; and never fewer where they are no slivers."""
    counted, true = WHOLE // part_milli(part), 1 // part
    assert counted == true or (counted < true and true > 35)


@given(PARTS)
def test_a_part_counts_by_less_than_a_thousandth_too_little_or_too_much(part: Fraction) -> None:
    assert -1 < part_milli(part) - part * WHOLE < 1
    if part.denominator <= WHOLE and WHOLE % part.denominator == 0:
        assert part_milli(part) == part * WHOLE


@pytest.mark.parametrize(
    ("part", "milli"),
    [("1/3", 333), ("0.3333", 333), ("0.3334", 334), ("1/7", 142), ("0.143", 143), ("1/16", 62), ("1", 1000)],
)
def test_examples(part: str, milli: int) -> None:
    assert part_milli(Fraction(part)) == milli
