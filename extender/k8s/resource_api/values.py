"""What attributes and capacities of devices are made of, as CEL sees them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias

from extender.k8s.quantity import QuantityError, exact

_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z.-]+)?",
    re.ASCII,
)
_LONGEST = 64  # characters of a version, by the API
_LARGEST = 2**63 - 1
_TINY = re.compile(r"[eE][+-]?\d{3}")
"""Numbers with thousands of digits, with which kube-scheduler counts in billionths."""


@dataclass(frozen=True, slots=True)
class Amount:
    """A Kubernetes quantity, exact."""

    number: Fraction


@dataclass(frozen=True, slots=True)
class Version:
    """A semantic version 2.0.0: as it is written, and a key that sorts as versions do."""

    text: str
    key: tuple[int, int, int, int, tuple[tuple[int, int, str], ...]]


Value: TypeAlias = bool | int | str | Version
"""An attribute. ``bool`` is an ``int`` in Python and is none in CEL: ask for it first."""


def version(text: str) -> Version | None:
    """The version that a text is, None where it is none."""
    return _version(text) if len(text) <= _LONGEST else None


@lru_cache(maxsize=4096)
def _version(text: str) -> Version | None:
    match = _SEMVER.fullmatch(text)
    if match is None:
        return None
    major, minor, patch, before = match.groups()
    parts = tuple(map(_identifier, before.split("."))) if before else ()
    return Version(text, (int(major), int(minor), int(patch), 0 if before else 1, parts))


def amount(text: object) -> Amount:
    """The amount that a text or number is. Raises ``QuantityError``."""
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise QuantityError("quantity is neither a text nor a number")
    if isinstance(text, int) and abs(text) > _LARGEST:
        raise QuantityError("quantity is too large")
    if isinstance(text, str) and _TINY.search(text[:_LONGEST]):
        raise QuantityError("quantity has an exponent of three digits")
    return Amount(exact(str(text)))


def _identifier(text: str) -> tuple[int, int, str]:
    # Numbers sort before words, and by value (semver.org, item 11).
    return (0, int(text), "") if text.isdecimal() else (1, 0, text)
