"""The operators of CEL on values, and steps that are made of other steps."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from extender.dra.cel.terms import (
    Defaulting,
    Failed,
    Maybe,
    Names,
    NotUnderstood,
    Result,
    Step,
    fail,
    overload,
)
from extender.dra.values import Amount, Version

_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
Item = TypeVar("Item")
_LONGEST = 1024
"""Characters or items of a sum: with ``cel.bind`` a short expression can double one any number of times."""
_SUMS: Mapping[str, Callable[[Any, Any], Any]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def constant(value: object) -> Step:
    """Always this value."""
    return lambda names: value


def applied(function: Callable[[Any], Any], argument: Step) -> Step:
    """A function of what the step gives."""
    return lambda names: function(argument(names))


def binary(function: Callable[[Any, Any], Any], left: Step, right: Step) -> Step:
    """A function of what two steps give."""
    return lambda names: function(left(names), right(names))


def logical(left: Step, right: Step, *, decides: bool) -> Step:
    """``||`` where True decides, ``&&`` where False does."""
    return lambda names: decided((left, right), lambda side: side(names), decides=decides)


def decided(items: Iterable[Item], test: Callable[[Item], Result], *, decides: bool) -> bool:
    """Whether any item's test gives ``decides``: that outweighs an error of any other."""
    errors: list[Failed] = []
    for item in items:
        try:
            value: object = test(item)
            if value is decides:
                return decides
            if not isinstance(value, bool):
                overload()
        except Failed as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return not decides


def choice(condition: Step, yes: Step, no: Step) -> Step:
    """``?:``, of which one side alone is evaluated."""

    def choose(names: Names) -> Result:
        which = condition(names)
        return (yes if which else no)(names) if isinstance(which, bool) else fail("no condition")

    return choose


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _equal(one: object, other: object) -> bool:
    if isinstance(one, Amount | Version):
        return bool(key(one) == key(other)) if type(one) is type(other) else overload()
    if isinstance(one, Maybe) or isinstance(other, Maybe):
        raise NotUnderstood("comparison of optional values")
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return (type(one) is type(other) or (_number(one) and _number(other))) and one == other


def _unequal(one: object, other: object) -> bool:
    try:
        return not _equal(one, other)
    except Failed:
        return True


def key(value: object) -> Result:
    """What quantities and versions are compared by."""
    return value.key if isinstance(value, Version) else value.number if isinstance(value, Amount) else None


def _ordered(sign: str) -> Callable[[Any, Any], bool]:
    compare = _ORDERS[sign]

    def order(one: object, other: object) -> bool:
        if (_number(one) and _number(other)) or (type(one) is type(other) and isinstance(one, str | bool)):
            return compare(one, other)
        overload()

    return order


def _contained(value: object, container: object) -> bool:
    if isinstance(container, Mapping):
        return value in container if isinstance(value, str) else False
    if not isinstance(container, list):
        overload()
    for item in container:
        try:
            if _equal(value, item):
                return True
        except Failed:
            continue
    return False


RELATIONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": _equal,
    "!=": _unequal,
    "in": _contained,
    **{sign: _ordered(sign) for sign in _ORDERS},
}


def _summed(sign: str) -> Callable[[Any, Any], Any]:
    compute = _SUMS[sign]

    def combine(one: object, other: object) -> object:
        if type(one) is not type(other) or isinstance(one, bool):
            overload()
        if isinstance(one, str | list) and isinstance(other, str | list) and sign == "+":
            if len(one) + len(other) > _LONGEST:
                raise NotUnderstood(f"a text or list of more than {_LONGEST}")
            return compute(one, other)
        if isinstance(one, float):
            return compute(one, other)
        return integer(compute(one, other)) if isinstance(one, int) else overload()

    return combine


def _quotient(one: object, other: object) -> object:
    """``/``: of integers towards zero."""
    if isinstance(one, float) and isinstance(other, float):
        if not other:
            raise NotUnderstood("division by 0.0")
        return one / other
    left, right = _integers(one, other)
    return integer(abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1))


def _remainder(one: object, other: object) -> int:
    """``%``: its sign is that of the left side."""
    left, right = _integers(one, other)
    return abs(left) % abs(right) * (-1 if left < 0 else 1)


def _integers(one: object, other: object) -> tuple[int, int]:
    for value in (one, other):
        if not isinstance(value, int) or isinstance(value, bool):
            overload()
    assert isinstance(one, int)
    assert isinstance(other, int)
    return (one, other) if other else fail("division by zero")


ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    **{sign: _summed(sign) for sign in _SUMS},
    "/": _quotient,
    "%": _remainder,
}


def integer(number: int) -> int:
    """An integer of CEL, which has 64 bits."""
    return number if -(2**63) <= number < 2**63 else fail("integer overflow")


def negation(value: object) -> bool:
    """``!``."""
    return not value if isinstance(value, bool) else overload()


def negative(value: object) -> Result:
    """``-`` before a number."""
    return -value if isinstance(value, int | float) and not isinstance(value, bool) else overload()


def index(container: object, key: object) -> Result:
    """``container[key]``, and ``container.key``."""
    if isinstance(container, Maybe):
        return optional(container, key)
    if isinstance(container, Mapping):
        try:
            return container[key]
        except (KeyError, TypeError):
            raise Failed(f"no such key: {key}") from None
    if isinstance(container, list) and isinstance(key, int) and not isinstance(key, bool):
        return container[key] if 0 <= key < len(container) else fail("index out of bounds")
    overload()


def optional(container: object, key: object) -> Maybe:
    """``container[?key]``, and ``container.?key``."""
    if isinstance(container, Maybe):
        return optional(container.value, key) if container.there else container
    if not isinstance(container, Mapping):
        overload()
    if isinstance(container, Defaulting):
        return Maybe(True, container[str(key)])
    return Maybe(True, container[key]) if key in container else Maybe(False)


def has(container: object, name: str) -> bool:
    """``has(container.name)``."""
    if isinstance(container, Defaulting):
        return True
    return name in container if isinstance(container, Mapping) else overload()
