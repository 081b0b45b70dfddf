"""Parses Kubernetes quantities ("250m", "1.5Gi", "2e3") into integers.

Grammar and suffixes: ``Quantity`` in k8s.io/apimachinery ``pkg/api/resource/quantity.go``. The
arithmetic is exact. Requests are rounded up and capacities down, so that rounding never makes a pod fit.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import lru_cache

from extender.untrusted.limits import quoted

_LARGEST = 2**63 - 1  # by the definition in quantity.go
_LONGEST = 64  # characters
_SMALLEST = -99  # exponent of ten; smaller ones would have thousands of digits, and round to the same integer
_MIB = Fraction(1, 2**20)
_GRAMMAR = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)(?:[eE]([+-]?\d{1,4})|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII)
_SUFFIXES = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", start=1)},
}


class QuantityError(ValueError):
    """A quantity is malformed, negative or too large. The text has the reason and the quantity."""


# Only texts of at most ``_LONGEST`` characters have a result, so each cache stays below 4 MiB.


@lru_cache(maxsize=4096)
def milli(text: str, *, round_up: bool = True) -> int:
    """Thousandths (milli-CPU). Raises ``QuantityError``."""
    return _rounded(text, Fraction(1000), round_up)


@lru_cache(maxsize=4096)
def whole(text: str, *, round_up: bool = True) -> int:
    """Units (devices, bytes), rounded. Raises ``QuantityError``."""
    return _rounded(text, Fraction(1), round_up)


@lru_cache(maxsize=4096)
def device_count(text: str) -> int:
    """The quantity of an extended resource. Raises ``QuantityError``, also if it is not an integer.

    The API server rejects fractions, too (``ValidateResourceQuantityValue`` of k8s.io/kubernetes,
    pkg/apis/core/validation).
    """
    number = exact(text)
    if number.denominator != 1:
        raise QuantityError(f"quantity {quoted(text)} is not a whole number")
    return number.numerator


@lru_cache(maxsize=4096)
def mib(text: str, *, round_up: bool = True) -> int:
    """MiB of a quantity in bytes. Raises ``QuantityError``."""
    return _rounded(text, _MIB, round_up)


def _rounded(text: str, unit: Fraction, round_up: bool) -> int:
    scaled = exact(text) * unit
    number = math.ceil(scaled) if round_up else math.floor(scaled)
    if number > _LARGEST:
        raise QuantityError(f"quantity {quoted(text)} is too large")
    return number


@lru_cache(maxsize=4096)
def exact(text: str) -> Fraction:
    """The number, not rounded. Raises ``QuantityError``."""
    match = _GRAMMAR.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise QuantityError(f"quantity {quoted(text)} is malformed")
    sign, number, exponent, suffix = match.groups()
    scale = _SUFFIXES[suffix or ""]
    if exponent:
        scale = Fraction(10) ** min(max(int(exponent), _SMALLEST), -_SMALLEST)
    value = Fraction(number) * scale
    if value and sign == "-":
        raise QuantityError(f"quantity {quoted(text)} is negative")
    if value > _LARGEST:
        raise QuantityError(f"quantity {quoted(text)} is too large")
    return value
