"""The operators of CEL on values, with the errors that they raise in cel-go."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from extender.dra.cel.evaluation import (
    DefaultingMap,
    EvaluationFailed,
    Meter,
    OptionalValue,
    Result,
    Unsupported,
    fail,
    no_overload,
)
from extender.k8s.resource_api.fields import Amount, Version
from extender.untrusted.limits import quoted

Item = TypeVar("Item")
_MAX_LENGTH = 1024
"""Characters or items of a sum: with ``cel.bind`` a short expression could double a value many times."""


def decide(items: Iterable[Item], test: Callable[[Item], Result], *, decisive: bool) -> bool:
    """``decisive`` if any item's test returns it, whatever error the test of another item raises."""
    errors: list[EvaluationFailed] = []
    for item in items:
        try:
            value: object = test(item)
            if value is decisive:
                return decisive
            if not isinstance(value, bool):
                no_overload()
        except EvaluationFailed as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return not decisive


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _equal(meter: Meter, one: object, other: object) -> bool:
    if isinstance(one, Amount | Version):
        if type(one) is not type(other):
            no_overload()
        return bool(comparison_key(one) == comparison_key(other))
    if isinstance(one, OptionalValue) or isinstance(other, OptionalValue):
        raise Unsupported("comparison of optional values")
    if isinstance(one, list) and isinstance(other, list):
        meter.spend(len(one))  # nested lists may be much longer than the expression
        return len(one) == len(other) and all(_equal(meter, *pair) for pair in zip(one, other, strict=True))
    return (type(one) is type(other) or (_is_number(one) and _is_number(other))) and one == other


def _unequal(meter: Meter, one: object, other: object) -> bool:
    try:
        return not _equal(meter, one, other)
    except EvaluationFailed:
        return True


def comparison_key(value: object) -> Result:
    """What a quantity or a version is compared by, None for other values."""
    return value.key if isinstance(value, Version) else value.number if isinstance(value, Amount) else None


def _comparison(compare: Callable[[Any, Any], bool]) -> Callable[[Meter, Any, Any], bool]:
    def order(meter: Meter, one: object, other: object) -> bool:
        numbers = _is_number(one) and _is_number(other)
        if numbers or (type(one) is type(other) and isinstance(one, str | bool)):
            return compare(one, other)
        no_overload()

    return order


def _is_in(meter: Meter, value: object, container: object) -> bool:
    if isinstance(container, Mapping):
        return value in container if isinstance(value, str) else False
    if not isinstance(container, list):
        no_overload()
    for item in container:
        meter.spend()
        try:
            if _equal(meter, value, item):
                return True
        except EvaluationFailed:
            continue
    return False


RELATIONS: Mapping[str, Callable[[Meter, Any, Any], bool]] = {
    "==": _equal,
    "!=": _unequal,
    "in": _is_in,
    "<": _comparison(operator.lt),
    "<=": _comparison(operator.le),
    ">": _comparison(operator.gt),
    ">=": _comparison(operator.ge),
}


def _arithmetic(compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def combine(one: object, other: object) -> object:
        if type(one) is not type(other) or isinstance(one, bool):
            no_overload()
        if isinstance(one, str | list) and isinstance(other, str | list) and compute is operator.add:
            if len(one) + len(other) > _MAX_LENGTH:
                raise Unsupported(f"a text or list of more than {_MAX_LENGTH}")
            return compute(one, other)
        if isinstance(one, float):
            return compute(one, other)
        return int64(compute(one, other)) if isinstance(one, int) else no_overload()

    return combine


def _quotient(one: object, other: object) -> object:
    """``/``. Integers are rounded towards zero."""
    if isinstance(one, float) and isinstance(other, float):
        if not other:
            raise Unsupported("division by 0.0")
        return one / other
    left, right = _operands(one, other)
    return int64(abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1))


def _remainder(one: object, other: object) -> int:
    """``%``. The sign is that of the left side."""
    left, right = _operands(one, other)
    return abs(left) % abs(right) * (-1 if left < 0 else 1)


def _operands(one: object, other: object) -> tuple[int, int]:
    if type(one) is not int or type(other) is not int:
        no_overload()
    return (one, other) if other else fail("division by zero")


ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": _arithmetic(operator.add),
    "-": _arithmetic(operator.sub),
    "*": _arithmetic(operator.mul),
    "/": _quotient,
    "%": _remainder,
}


def int64(number: int) -> int:
    """The number, if it fits into the 64 bits of a CEL integer. Raises ``EvaluationFailed``."""
    return number if -(2**63) <= number < 2**63 else fail("integer overflow")


def logical_not(value: object) -> bool:
    return not value if isinstance(value, bool) else no_overload()


def negate(value: object) -> Result:
    return -value if isinstance(value, int | float) and not isinstance(value, bool) else no_overload()


def index(container: object, key: object) -> Result:
    """``container[key]``, and ``container.key``."""
    if isinstance(container, OptionalValue):
        return optional(container, key)
    if isinstance(container, Mapping):
        if not isinstance(key, str):
            no_overload()
        return container[key] if has(container, key) else fail(f"no such key: {quoted(key)}")
    if isinstance(container, list) and isinstance(key, float):
        raise Unsupported("an index that is not an integer")
    if isinstance(container, list) and isinstance(key, int) and not isinstance(key, bool):
        return container[key] if 0 <= key < len(container) else fail("index out of bounds")
    no_overload()


def optional(container: object, key: object) -> OptionalValue:
    """``container[?key]``, and ``container.?key``."""
    if isinstance(container, OptionalValue):
        return optional(container.value, key) if container.present else container
    if isinstance(container, list):
        raise Unsupported("an optional item of a list")
    if not isinstance(container, Mapping) or not isinstance(key, str):
        no_overload()
    present = has(container, key)
    return OptionalValue(present, container[key] if present else None)


def has(container: object, name: str) -> bool:
    """``has(container.name)``."""
    if not isinstance(container, Mapping):
        no_overload()
    return isinstance(container, DefaultingMap) or name in container
