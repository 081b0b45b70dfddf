"""Quantities as Kubernetes writes them, in thousandths, whole numbers and MiB."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.k8s.quantity import QuantityError, mib, milli, whole

LARGEST = 2**63 - 1
DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
Read = Callable[[str], int]
ALL: tuple[Read, ...] = (milli, whole, mib)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("2", 2000),
        ("250m", 250),
        ("0.1", 100),
        (".5", 500),
        ("1.", 1000),
        ("+1", 1000),
        ("-0", 0),
        ("1e3", 1_000_000),
        ("1E-3", 1),
        ("2e+0", 2000),
        ("1k", 1_000_000),
        ("100u", 1),
        ("1n", 1),
        ("0.0001", 1),
        ("1500000u", 1500),
    ],
)
def test_thousandths(text: str, expected: int) -> None:
    assert milli(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1Ki", 1024),
        ("1E", 10**18),
        ("1e18", 10**18),
        ("7Ei", 7 * 2**60),
        ("1500m", 2),
        ("8", 8),
        ("9223372036854775807", LARGEST),
    ],
)
def test_whole_numbers(text: str, expected: int) -> None:
    assert whole(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1Gi", 1024),
        ("1536Mi", 1536),
        ("1.5Gi", 1536),
        ("129e6", 124),
        ("128974848", 123),
        ("1", 1),
        ("1G", 954),
        ("1m", 1),
    ],
)
def test_mebibytes(text: str, expected: int) -> None:
    assert mib(text) == expected


def test_capacities_round_down() -> None:
    assert mib("1G", round_up=False) == 953
    assert milli("999u", round_up=False) == 0
    assert whole("1500m", round_up=False) == 1


MALFORMED = [
    *("", " ", "1 ", " 1", "1\n", "m", ".", "e3", "1e", "1e3m", "1K", "1ki", "1KiB", "1Mi2", "1.2.3", "1,5"),
    *("0x10", "--1", "NaN", "inf", "\N{ARABIC-INDIC DIGIT ONE}", "1_000", "9" * 65),
]


@pytest.mark.parametrize("text", MALFORMED)
@pytest.mark.parametrize("read", ALL)
def test_malformed(text: str, read: Read) -> None:
    with pytest.raises(QuantityError, match="malformed"):
        read(text)


@pytest.mark.parametrize("text", ["-1", "-1n", "-0.5Gi", "-9e-9"])
@pytest.mark.parametrize("read", ALL)
def test_negative(text: str, read: Read) -> None:
    with pytest.raises(QuantityError, match="is negative"):
        read(text)


@pytest.mark.parametrize("text", ["9223372036854775808", "8Ei", "10E", "1e19", "1e9999", "9" * 64])
@pytest.mark.parametrize("read", ALL)
def test_beyond_int64(text: str, read: Read) -> None:
    with pytest.raises(QuantityError, match="too large"):
        read(text)


def test_thousandths_may_overflow_where_the_quantity_does_not() -> None:
    assert whole("1E") == 10**18
    with pytest.raises(QuantityError, match="too large"):
        milli("1E")


def test_an_endless_text_is_not_repeated_in_the_error() -> None:
    with pytest.raises(QuantityError) as caught:
        milli("1" * 100_000)
    assert len(str(caught.value)) < 120


numbers = st.one_of(
    st.integers(0, 10**12).map(str),
    st.tuples(st.integers(0, 10**6), st.text("0123456789", min_size=0, max_size=6)).map(
        lambda p: f"{p[0]}.{p[1]}"
    ),
)
suffixes = st.one_of(
    st.sampled_from(sorted(DECIMAL)).map(lambda s: (s, Fraction(10) ** DECIMAL[s])),
    st.sampled_from(sorted(BINARY)).map(lambda s: (s, Fraction(2) ** BINARY[s])),
    st.integers(-30, 30).map(lambda e: (f"e{e}", Fraction(10) ** e)),
)


@given(number=numbers, suffix=suffixes)
def test_every_spelling_is_exact_and_rounds_towards_safety(number: str, suffix: tuple[str, Fraction]) -> None:
    exact = Fraction(number) * suffix[1]
    for read, unit in ((milli, Fraction(1000)), (whole, Fraction(1)), (mib, Fraction(1, 2**20))):
        if max(exact, exact * unit) > LARGEST:
            with pytest.raises(QuantityError, match="too large"):
                read(number + suffix[0])
        else:
            assert read(number + suffix[0]) == math.ceil(exact * unit)
            assert read(number + suffix[0], round_up=False) == math.floor(exact * unit)


@given(st.integers(0, LARGEST))
def test_a_plain_integer_is_itself(number: int) -> None:
    assert whole(str(number)) == number


@given(st.text(max_size=80))
def test_any_text_is_a_number_or_a_quantity_error(text: str) -> None:
    for read in ALL:
        with contextlib.suppress(QuantityError):
            assert 0 <= read(text) <= LARGEST
