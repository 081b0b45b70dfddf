"""The functions of CEL, and those that Kubernetes adds to it, on values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from extender.dra.cel.operators import integer, key
from extender.dra.cel.terms import Maybe, Meter, NotUnderstood, Result, fail, overload
from extender.k8s.quantity import QuantityError
from extender.k8s.resource_api.values import Amount, Version, amount, version
from extender.untrusted.bounded_cache import BoundedMap
from extender.untrusted.limits import quoted

_PATTERN = re.compile(
    r"(?:\(\?i\))?(?:[^\\(\[{]|\\[dwsDWSb.\\/+*?()|\[\]{}^$-]|\((?!\?)|\(\?:|\[\^?[\w .:/-]+\]|\{\d{1,2}\})*"
)
_LONGEST_PATTERN = 256
_TRIES = 64
"""Ways to match a text that are tried in one step."""
_COMPILE = 8
"""Steps that each character of a pattern takes to compile."""
_LONGEST = 64  # characters of a text that one is tried on: an attribute has no more, by the API
_MOST_PARTS = 1024  # of a text that is split
_INTEGER = re.compile(r"[+-]?[0-9]{1,32}")
_ASCII_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
_ASCII_UPPER = {lower: lower - 32 for lower in range(ord("a"), ord("z") + 1)}


@dataclass(frozen=True, slots=True)
class _Regex:
    """A compiled pattern. ``repeats`` of its atoms are repeated; ``anchored``: it starts with ``^``.
    ``branches``: the most ways through its alternatives."""

    pattern: re.Pattern[str]
    repeats: int
    anchored: bool
    branches: int

    def cost(self, text: str) -> int:
        """The steps that it takes at most to say that the text does not match. A way to match is a place
        where it begins, one where each repeat ends, in this order, and a way through the branches."""
        ends = self.repeats + (not self.anchored)
        ways = math.comb(len(text) + ends, ends) * self.branches
        return ways * (1 + len(self.pattern.pattern) // _TRIES) // _TRIES


_REGEXES: BoundedMap[str, _Regex | str] = BoundedMap(256, 64 << 10)
"""By pattern; a text says why there is none."""


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
    found = _REGEXES.get(pattern) or _regex(pattern)
    if isinstance(found, str) or len(text) > _LONGEST or "\n" in text:  # of which $ means another thing
        raise NotUnderstood(f"the regular expression {quoted(pattern)} is not understood")
    return found.pattern.search(text) is not None


def _cost_of_matches(meter: Meter, text: object, pattern: object) -> int:
    """The steps of an expression. Who is the first to use a pattern pays for compiling it, beside those."""
    if not isinstance(text, str) or not isinstance(pattern, str) or len(text) > _LONGEST:
        return 0
    if (found := _REGEXES.get(pattern)) is None:
        meter.spend_beside(_COMPILE * min(len(pattern), _LONGEST_PATTERN))
        found = _regex(pattern)
        _REGEXES.put(pattern, found, 64 + len(pattern))
    return 0 if isinstance(found, str) else found.cost(text)


def _regex(pattern: str) -> _Regex | str:
    """The pattern, if it means the same in RE2 and here, or what is wrong with it."""
    if len(pattern) > _LONGEST_PATTERN or not _PATTERN.fullmatch(pattern):
        return "not understood"
    if re.search(r"\)[*+?{]|[*+?}][*+?{]", pattern):
        return "a group that is repeated"
    bare = re.sub(r"\\.|\[[^]]*\]|(?<=\()\?[:i]", "", pattern)
    repeats, bars, groups = len(re.findall(r"[*+?{]", bare)), bare.count("|"), 1 + bare.count("(")
    # The product is largest where all groups, and what is outside of them, have equally many alternatives.
    branches = math.ceil((bars / groups + 1) ** groups) if bars else 1
    try:
        compiled = re.compile(pattern, re.ASCII)
    except (re.error, OverflowError, RecursionError):
        return "not understood"
    return _Regex(compiled, repeats, pattern.startswith("^") and not bars, branches)


def _lower(text: str) -> str:
    return text.translate(_ASCII_LOWER)


def _upper(text: str) -> str:
    return text.translate(_ASCII_UPPER)


def _split(text: str, separator: str) -> list[str]:
    if (text.count(separator) if separator else len(text)) > _MOST_PARTS:
        raise NotUnderstood(f"a text of more than {_MOST_PARTS} parts")
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
    except QuantityError:  # which kube-scheduler may take: its quantities may be negative
        raise NotUnderstood(f"the quantity {quoted(str(text))}") from None


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
COSTS: Mapping[str, Callable[..., int]] = {"matches": _cost_of_matches}
"""Of methods that take more steps than their arguments are long: how many more."""
