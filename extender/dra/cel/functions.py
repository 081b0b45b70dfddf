"""The functions of CEL, and those that Kubernetes adds to it, on values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from extender.dra.cel.operators import integer, key
from extender.dra.cel.terms import Maybe, NotUnderstood, Result, fail, overload
from extender.dra.values import Amount, Version, amount, version
from extender.quantity import QuantityError

_PATTERN = re.compile(
    r"(?:\(\?i\))?(?:[^\\(\[{]|\\[dwsDWSb.\\/+*?()|\[\]{}^$-]|\((?!\?)|\(\?:|\[\^?[\w .:/-]+\]|\{\d+\})*"
)
_MOST_STEPS = 1_000_000  # of a regular expression, at worst
_LONGEST = 64  # characters of a text that one is tried on: an attribute has no more, by the API
_INTEGER = re.compile(r"[+-]?[0-9]+")


def _or_value(maybe: object, other: object) -> Result:
    return (maybe.value if maybe.there else other) if isinstance(maybe, Maybe) else overload()


def _has_value(maybe: object) -> bool:
    return maybe.there if isinstance(maybe, Maybe) else overload()


def _of_texts(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(*values: object) -> Result:
        return function(*values) if all(isinstance(value, str) for value in values) else overload()

    return apply


def _compared(test: Callable[[int], Any]) -> Callable[[object, object], Any]:
    """Of two quantities or two versions: ``test`` of -1, 0 or 1."""

    def compare(one: object, other: object) -> Result:
        if not isinstance(one, Amount | Version) or type(one) is not type(other):
            overload()
        left, right = key(one), key(other)
        return test((left > right) - (left < right))

    return compare


def _matches(text: str, pattern: str) -> bool:
    if len(text) > _LONGEST or not _harmless(pattern):
        raise NotUnderstood(f"the regular expression {pattern[:64]!r} is not understood")
    return re.search(pattern, text, re.ASCII) is not None


@lru_cache(maxsize=1024)
def _harmless(pattern: str) -> bool:
    """Whether a pattern means the same in RE2 and here, and cannot take long here."""
    if len(pattern) > 256 or not _PATTERN.fullmatch(pattern) or re.search(r"\)[*+?{]|[*+?}][*+?{]", pattern):
        return False
    bare = re.sub(r"\\.|\[[^]]*\]|\(\?[:i]", "", pattern)
    repeats, groups, choices = len(re.findall(r"[*+?{]", bare)), pattern.count("("), bare.count("|")
    try:
        re.compile(pattern)
    except re.error:
        return False
    return bool((1 + _LONGEST) ** repeats * (1 + choices) ** max(groups, 1) <= _MOST_STEPS)


def _lower(text: str) -> str:
    return "".join(chr(ord(c) + 32) if "A" <= c <= "Z" else c for c in text)


def _upper(text: str) -> str:
    return "".join(chr(ord(c) - 32) if "a" <= c <= "z" else c for c in text)


def _split(text: str, separator: str) -> list[str]:
    return text.split(separator) if separator else list(text)


def _size(value: object) -> int:
    return len(value) if isinstance(value, str | list | Mapping) else overload()


def _to_integer(value: object) -> int:
    if isinstance(value, str):
        return integer(int(value)) if _INTEGER.fullmatch(value) else fail("no integer")
    if not isinstance(value, int) or isinstance(value, bool):
        raise NotUnderstood("int() of what is neither text nor integer")
    return value


def _to_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int):
        raise NotUnderstood("string() of what is neither text, integer nor truth")
    return str(value)


def _quantity(text: object) -> Amount:
    try:
        return amount(text) if isinstance(text, str) else overload()
    except QuantityError as error:
        return fail(str(error))


def _semver(text: object) -> Version:
    found = version(text) if isinstance(text, str) else overload()
    return found if found is not None else fail("no semantic version")


def _is_semver(text: object) -> bool:
    return version(text) is not None if isinstance(text, str) else overload()


def _as_integer(value: object) -> int:
    if isinstance(value, Amount) and value.number.denominator == 1:
        return int(value.number)
    overload()


def _is_integer(value: object) -> bool:
    return value.number.denominator == 1 if isinstance(value, Amount) else overload()


def _sign(value: object) -> int:
    return (value.number > 0) - (value.number < 0) if isinstance(value, Amount) else overload()


def _plus(direction: int) -> Callable[[object, object], Amount]:
    """A quantity and a second one, or an integer."""

    def add(one: object, other: object) -> Amount:
        if not isinstance(one, Amount) or isinstance(other, bool) or not isinstance(other, Amount | int):
            overload()
        return Amount(one.number + direction * (other.number if isinstance(other, Amount) else other))

    return add


def _part(index: int) -> Callable[[object], int]:
    return lambda value: value.key[index] if isinstance(value, Version) else overload()  # type: ignore[return-value]


FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "quantity": _quantity,
    "semver": _semver,
    "isSemver": _is_semver,
    "sign": _sign,
    "size": _size,
    "int": _to_integer,
    "string": _to_text,
}
METHODS: Mapping[str, tuple[int, Callable[..., Any]]] = {
    "startsWith": (1, _of_texts(str.startswith)),
    "endsWith": (1, _of_texts(str.endswith)),
    "contains": (1, _of_texts(lambda text, part: part in text)),
    "matches": (1, _of_texts(_matches)),
    "lowerAscii": (0, _of_texts(_lower)),
    "upperAscii": (0, _of_texts(_upper)),
    "split": (1, _of_texts(_split)),
    "size": (0, _size),
    "compareTo": (1, _compared(lambda sign: sign)),
    "isGreaterThan": (1, _compared(lambda sign: sign > 0)),
    "isLessThan": (1, _compared(lambda sign: sign < 0)),
    "asInteger": (0, _as_integer),
    "isInteger": (0, _is_integer),
    "add": (1, _plus(1)),
    "sub": (1, _plus(-1)),
    "major": (0, _part(0)),
    "minor": (0, _part(1)),
    "patch": (0, _part(2)),
    "orValue": (1, _or_value),
    "hasValue": (0, _has_value),
}
"""By name: how many arguments, and the function of the target and those."""
