"""Reads single fields of ``resource.k8s.io`` objects, and the types of values that JSON does not have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeAlias

from extender.k8s.quantity import QuantityError, exact
from extender.untrusted import limits
from extender.untrusted.limits import quoted

Raw: TypeAlias = Mapping[str, Any]
INT64_MAX = 2**63 - 1
_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z.-]+)?",
    re.ASCII,
)
_MAX_VERSION = 64  # characters, by the API
_LARGE_EXPONENT = re.compile(r"[eE][+-]?\d{3}")
"""Such numbers may have thousands of digits; kube-scheduler rounds them to billionths."""


class Malformed(ValueError):
    """A field does not have the form that the API gives it."""


@dataclass(frozen=True, slots=True)
class Amount:
    """A Kubernetes quantity, exact. Its own type, because CEL tells quantities from numbers."""

    number: Fraction


@dataclass(frozen=True, slots=True)
class Version:
    """A semantic version 2.0.0: its text, and a key that sorts as versions do."""

    text: str
    key: tuple[int, int, int, int, tuple[tuple[int, int, str], ...]]


Value: TypeAlias = bool | int | str | Version
"""An attribute. In Python ``bool`` is an ``int``, in CEL it is not: test for ``bool`` first."""


def parse_version(text: str) -> Version | None:
    return _parse_version(text) if len(text) <= _MAX_VERSION else None


@lru_cache(maxsize=4096)
def _parse_version(text: str) -> Version | None:
    match = _SEMVER.fullmatch(text)
    if match is None:
        return None
    major, minor, patch, pre_release = match.groups()
    # Numbers sort before words, and by value (semver.org, item 11).
    identifiers = tuple(
        (0, int(one), "") if one.isdecimal() else (1, 0, one)
        for one in (pre_release.split(".") if pre_release else ())
    )
    return Version(text, (int(major), int(minor), int(patch), 0 if pre_release else 1, identifiers))


def parse_amount(raw: object) -> Amount:
    """The quantity in this text or number. Raises ``QuantityError``."""
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        raise QuantityError("quantity is neither a text nor a number")
    if isinstance(raw, int) and abs(raw) > INT64_MAX:
        raise QuantityError("quantity is too large")
    if isinstance(raw, str) and _LARGE_EXPONENT.search(raw[:64]):
        raise QuantityError("quantity has an exponent of three digits")
    return Amount(exact(str(raw)))


def sorted_amounts(raw: object, what: str) -> tuple[tuple[str, Amount], ...]:
    """Amounts by the names of capacities, sorted by name. Raises ``Malformed`` or ``QuantityError``."""
    amounts = {
        read_name(key, "capacity", limits.KEY): parse_amount(value)
        for key, value in read_map(raw, what, limits.DEVICE_ATTRIBUTES).items()
    }
    return tuple(sorted(amounts.items(), key=lambda item: item[0]))


def read_map(raw: object, what: str, limit: int | None = None) -> Raw:
    """A JSON object with at most ``limit`` entries, {} for null. Raises ``Malformed``."""
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise Malformed(f"{what} is not an object")
    if limit is not None and len(raw) > limit:
        raise Malformed(f"{what} has more than {limit} entries")
    return raw


def read_list(raw: object, what: str, limit: int | None = None) -> list[Any]:
    """A JSON list with at most ``limit`` items, [] for null. Raises ``Malformed``."""
    if raw is None:
        return []
    if not isinstance(raw, list):
        raise Malformed(f"{what} is not a list")
    if limit is not None and len(raw) > limit:
        raise Malformed(f"{what} has more than {limit} entries")
    return raw


def read_maps(raw: object, what: str, limit: int) -> list[Raw]:
    """A JSON list of at most ``limit`` objects, [] for null. Raises ``Malformed``."""
    return [read_map(item, what) for item in read_list(raw, what, limit)]


def read_name(raw: object, what: str, limit: int = limits.OBJECT_NAME) -> str:
    """A text of at most ``limit`` characters, "" for another type. Raises ``Malformed``."""
    text = raw if isinstance(raw, str) else ""
    if len(text) > limit:
        raise Malformed(f"a {what} of more than {limit} characters")
    return text


def name_or_empty(raw: object) -> str:
    """A name, "" for another type or a text that is too long for a name."""
    return raw if isinstance(raw, str) and len(raw) <= limits.OBJECT_NAME else ""


def read_int64(raw: object) -> int:
    """A 64-bit integer, -1 for anything else."""
    if isinstance(raw, float) and raw.is_integer():  # not true of infinities and NaN
        raw = int(raw)
    return raw if isinstance(raw, int) and not isinstance(raw, bool) and abs(raw) <= INT64_MAX else -1


def unknown_field(raw: Raw, known: AbstractSet[str]) -> str:
    """The first key that is not ``known``, quoted; "" if there is none."""
    unknown = sorted(map(str, raw.keys() - known))
    return quoted(unknown[0]) if unknown else ""


def read_selectors(raw: Raw) -> tuple[str, ...]:
    """The CEL expressions of a request or a class. Raises ``Malformed``."""
    return tuple(
        read_name(read_map(selector.get("cel"), "cel").get("expression"), "selector", limits.SELECTOR)
        for selector in read_maps(raw.get("selectors"), "selectors", limits.SELECTORS)
    )


def check_selector_text(selectors: Iterable[str]) -> None:
    """Raises ``Malformed`` if the selectors of a claim or class are too long together."""
    if sum(map(len, selectors)) > limits.CLAIM_TEXT:
        raise Malformed(f"selectors of more than {limits.CLAIM_TEXT} characters")
