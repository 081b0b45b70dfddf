"""Durations as Go writes them."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.untrusted.duration import DurationError, seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("5s", 5),
        ("+5s", 5),
        ("-5s", -5),
        ("-0", 0),
        ("5.0s", 5),
        ("5.6s", 5.6),
        ("5.s", 5),
        (".5s", 0.5),
        ("1.0040s", 1.004),
        ("100.00100s", 100.001),
        ("10ns", 10e-9),
        ("11us", 11e-6),
        ("12µs", 12e-6),  # U+00B5
        ("12μs", 12e-6),  # U+03BC
        ("13ms", 0.013),
        ("14s", 14),
        ("15m", 900),
        ("16h", 57600),
        ("3h30m", 12600),
        ("10.5s4m", 250.5),
        ("-2m3.4s", -123.4),
        ("1h2m3s4ms5us6ns", 3723.004005006),
        ("9007199254.740993s", 9007199254.740993),
    ],
)
def test_valid(text: str, expected: float) -> None:
    assert seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    "text",
    [
        *("", "3", "-", "s", ".", "-.", ".s", "+.s", "1d", "5 s", "s5", "٣s", "1e3s"),
        *("3000000h", "9223372037s", "1h" * 33),
    ],
)
def test_invalid(text: str) -> None:
    with pytest.raises(DurationError) as caught:
        seconds(text)
    assert len(str(caught.value)) < 120


@given(st.text(alphabet="0123456789.hmsnuµ+-e ", max_size=80) | st.text(max_size=80))
def test_any_text_is_a_finite_number_or_refused(text: str) -> None:
    try:
        assert math.isfinite(seconds(text))
    except DurationError:
        return
    assert re.fullmatch(r"[-+]?[0-9hmsnuµμ.]+", text)
