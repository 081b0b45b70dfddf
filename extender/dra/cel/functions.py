"""The functions and macros of CEL, and Kubernetes's additional functions, on values.

Regular expressions are matched by RE2, as in kube-scheduler, so the cost of a match is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from extender.dra.cel.program import (
    Meter,
    OptionalValue,
    Result,
    Unsupported,
    comparison_key,
    decide,
    fail,
    int64,
    no_overload,
)
from extender.k8s.quantity import QuantityError
from extender.k8s.resource_slices import Amount, Version, parse_amount, parse_version
from extender.untrusted.bounded_cache import BoundedMap
from extender.untrusted.limits import PATTERN_SIZE, quoted

MAX_NESTING = 2  # nested macros: their work multiplies
_MAX_ITEMS = 64  # of one macro, for the same reason
_MAX_PATTERN = 256
_STEPS_PER_MATCH, _WORK_PER_STEP = 8, 64  # characters of a text x instructions of a pattern
_MAX_PARTS = 1024  # of a split string
_INTEGER = re.compile(r"[+-]?[0-9]{1,32}")
_ASCII_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
_ASCII_UPPER = {lower: lower - 32 for lower in range(ord("a"), ord("z") + 1)}
_PART = re.compile(
    r"""(?P<flags>\(\?[a-zA-Z-]*\))|(?P<open>\((?:\?(?:P?<[^>]*>|[^:)]*:?))?)|(?P<close>\))|
    (?P<repeat>[*+?]|\{(?P<least>\d+)(?:,(?P<most>\d*))?\})|(?P<unicode>\\[pP])|(?P<wide>\\[A-Z])|
    \\x\{[^}]*\}|\\.|(?P<set>\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\])|(?P<short>[!-,/-~-])|.""",
    re.VERBOSE | re.DOTALL,
)
"""A part of a regular expression."""
_SIZES = {"unicode": 1000, "wide": 32, "short": 4}
"""The most instructions of a part, for all bytes that its characters can have in UTF-8."""
_WIDE_ITEM = re.compile(r"\\|\^|\[:|[^\x00-\x7f]")  # in a set of characters
_REGEXES: BoundedMap[str, Any] = BoundedMap(256, 64 << 10)
"""Compiled patterns; False for patterns that are invalid or too large."""


def _or_value(optional: object, other: object) -> Result:
    if not isinstance(optional, OptionalValue):
        no_overload()
    return optional.value if optional.present else other


def _of(kind: type | tuple[type, ...], function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, without an overload for values of other kinds."""

    def apply(*values: object) -> Result:
        return function(*values) if all(isinstance(value, kind) for value in values) else no_overload()

    return apply


def _comparison(test: Callable[[int], Any]) -> Callable[[object, object], Any]:
    """A function of two quantities or two versions: ``test`` of -1, 0 or 1."""

    def compare(first: object, other: object) -> Result:
        if not isinstance(first, Amount | Version) or type(first) is not type(other):
            no_overload()
        left, right = comparison_key(first), comparison_key(other)
        return test((left > right) - (left < right))

    return compare


def _matches(text: str, pattern: str) -> bool:
    regex = _REGEXES.get(pattern)
    if regex is None:
        regex = _compile_regex(pattern)
    with suppress(UnicodeEncodeError):
        if regex:  # False: not supported
            return regex.search(text) is not None
    raise Unsupported(f"the regular expression {quoted(pattern)} is not supported")


def _matches_cost(meter: Meter, text: object, pattern: object) -> int:
    """The steps of a match. The first expression with a pattern also spends the steps of compiling it."""
    if not isinstance(text, str) or not isinstance(pattern, str):
        return 0
    if (regex := _REGEXES.get(pattern)) is None:
        meter.spend_compiling(min(program_size(pattern), PATTERN_SIZE))
        regex = _compile_regex(pattern)
        _REGEXES.put(pattern, regex, 64 + len(pattern))
    return _STEPS_PER_MATCH + (1 + len(text)) * regex.programsize // _WORK_PER_STEP if regex else 0


def program_size(pattern: str) -> int:
    """An upper bound of the instructions to which RE2 compiles a pattern: repetitions multiply. More than
    ``PATTERN_SIZE`` for patterns that are too long or quote text."""
    if len(pattern) > _MAX_PATTERN or "\\Q" in pattern:
        return PATTERN_SIZE + 1
    sums, last = [0], 0  # of each open group; of the part that a repetition would repeat
    for part in _PART.finditer(pattern):
        kind, text = part.lastgroup, part[0]
        if kind == "repeat":
            times = max(1, int(part["least"] or 1), int(part["most"] or 1))
            sums[-1] += (last + 2) * times - last
            last = (last + 2) * times
        elif kind == "open":
            sums.append(2)
        elif kind != "flags":
            if kind == "set":
                last = 8 + len(text) + 24 * len(_WIDE_ITEM.findall(text)) + 1000 * text.lower().count("\\p")
            else:
                last = sums.pop() if kind == "close" and len(sums) > 1 else _SIZES.get(kind or "", 16)
            sums[-1] += last
    return sum(sums)


def _compile_regex(pattern: str) -> Any:  # noqa: ANN401 (re2 has no types)
    if program_size(pattern) > PATTERN_SIZE:
        return False
    import re2  # takes 20 ms, and few selectors have a pattern

    options = re2.Options()
    options.log_errors, options.max_mem = False, 1 << 16
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError):
        return False


def _split(text: str, separator: str) -> list[str]:
    if (text.count(separator) if separator else len(text)) > _MAX_PARTS:
        raise Unsupported(f"a text of more than {_MAX_PARTS} parts")
    return text.split(separator) if separator else list(text)


def _int(value: object) -> int:
    if isinstance(value, str):
        return int64(int(value)) if _INTEGER.fullmatch(value) else fail("not an integer")
    if not isinstance(value, int) or isinstance(value, bool):
        raise Unsupported("int() of a value that is neither a string nor an integer")
    return value


def _string(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int):
        raise Unsupported("string() of a value that is not a string, an integer or a boolean")
    return str(value)


def _quantity(text: str) -> Amount:
    try:
        return parse_amount(text)
    except QuantityError:  # kube-scheduler may accept it: its quantities may be negative
        raise Unsupported(f"the quantity {quoted(text)}") from None


def _as_integer(amount: Amount) -> int:
    return int(amount.number) if amount.number.denominator == 1 else no_overload()


def _sum(direction: int) -> Callable[[object, object], Amount]:
    """A function of a quantity and a second one, or an integer: their sum (1) or difference (-1)."""

    def add(first: object, other: object) -> Amount:
        if not isinstance(first, Amount) or isinstance(other, bool) or not isinstance(other, Amount | int):
            no_overload()
        return Amount(first.number + direction * (other.number if isinstance(other, Amount) else other))

    return add


def _version(text: object, normalize: object = False) -> Version | None:
    """``normalize``: drop a leading ``v`` and leading zeros, and add missing numbers
    (``normalizeAndParse`` of k8s.io/apiserver, pkg/cel/library/semverlib.go)."""
    if not isinstance(text, str) or not isinstance(normalize, bool):
        no_overload()
    if normalize:
        parts = text.removeprefix("v").split(".", 2)
        if len(parts) < 3 and {"+", "-"} & {*parts[-1]}:
            return None
        text = ".".join([re.sub(r"^0+(?=\d)", "", part) for part in parts] + ["0"] * (3 - len(parts)))
    return parse_version(text)


_size = _of((str, list, Mapping), len)

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "quantity": _of(str, _quantity),
    "semver": lambda *arguments: _version(*arguments) or fail("not a semantic version"),
    "isSemver": lambda *arguments: _version(*arguments) is not None,
    "sign": _of(Amount, lambda amount: (amount.number > 0) - (amount.number < 0)),
    "size": _size,
    "int": _int,
    "string": _string,
}
WITH_OPTION = frozenset({"semver", "isSemver"})
"""Functions that may have a second argument."""
METHODS: Mapping[str, tuple[int, Callable[..., Any]]] = {
    "startsWith": (1, _of(str, str.startswith)),
    "endsWith": (1, _of(str, str.endswith)),
    "contains": (1, _of(str, lambda text, part: part in text)),
    "matches": (1, _of(str, _matches)),
    "lowerAscii": (0, _of(str, lambda text: text.translate(_ASCII_LOWER))),
    "upperAscii": (0, _of(str, lambda text: text.translate(_ASCII_UPPER))),
    "split": (1, _of(str, _split)),
    "size": (0, _size),
    "compareTo": (1, _comparison(lambda sign: sign)),
    "isGreaterThan": (1, _comparison(lambda sign: sign > 0)),
    "isLessThan": (1, _comparison(lambda sign: sign < 0)),
    "asInteger": (0, _of(Amount, _as_integer)),
    "isInteger": (0, _of(Amount, lambda amount: amount.number.denominator == 1)),
    "add": (1, _sum(1)),
    "sub": (1, _sum(-1)),
    "major": (0, _of(Version, lambda version: version.key[0])),
    "minor": (0, _of(Version, lambda version: version.key[1])),
    "patch": (0, _of(Version, lambda version: version.key[2])),
    "orValue": (1, _or_value),
    "hasValue": (0, _of(OptionalValue, lambda optional: optional.present)),
}
"""By name: the number of arguments, and a function of the target and the arguments."""
COSTS: Mapping[str, Callable[..., int]] = {"matches": _matches_cost}
"""The ``cost`` of methods whose work is not proportional to the length of their arguments."""


def items_of(container: object) -> list[Any]:
    """The items that a macro visits. Raises ``MatchUnknown``."""
    if not isinstance(container, list | Mapping):
        no_overload()
    if len(container) > _MAX_ITEMS:
        raise Unsupported(f"a macro over more than {_MAX_ITEMS} items")
    return list(container)


def _filter(items: list[Any], test: Callable[[Any], Result]) -> list[Any]:
    return [item for item in items if _is_true(test(item))]


_is_true = _of(bool, lambda value: value)

MACROS: Mapping[str, Callable[[list[Any], Callable[[Any], Result]], Result]] = {
    "all": lambda items, test: decide(items, test, decisive=False),
    "exists": lambda items, test: decide(items, test, decisive=True),
    "exists_one": lambda items, test: len(_filter(items, test)) == 1,
    "existsOne": lambda items, test: len(_filter(items, test)) == 1,
    "filter": _filter,
    "map": lambda items, test: [test(item) for item in items],
}
"""Functions of the items of a list or the keys of a map, and the expression to evaluate for each."""
