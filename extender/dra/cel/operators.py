"""The operators of CEL on values, and steps that are made of other steps."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from extender.dra.cel.terms import (
    Defaulting,
    Failed,
    Maybe,
    Meter,
    Names,
    NotUnderstood,
    Result,
    Step,
    fail,
    length_of,
    overload,
)
from extender.k8s.resource_api.values import Amount, Version
from extender.untrusted.limits import STEP_TEXT, quoted

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

    def give(names: Names) -> object:
        names.meter.spend()
        return value

    return Step(give)


def variable(name: str) -> Step:
    """The value of a variable."""

    def look_up(names: Names) -> Result:
        names.meter.spend()
        return names.values[name] if name in names.values else fail(f"{quoted(name)} is not known")

    return Step(look_up)


def applied(function: Callable[..., Any], *arguments: Step, cost: Callable[..., int] | None = None) -> Step:
    """A function of what the steps give. It takes two steps, and as many more as the values are long, or as
    the ``cost`` of (meter, values) says."""
    runs = [argument.run for argument in arguments]

    def apply(names: Names) -> Result:
        values = [run(names) for run in runs]
        long = cost(names.meter, *values) if cost else length_of(*values) // STEP_TEXT
        names.meter.spend(2 + long)
        return function(*values)

    return Step.of(apply, *arguments)


def member(function: Callable[[Any, str], Any], target: Step, name: str) -> Step:
    """A function of what a step gives and of a name that is written in the expression."""
    run = target.run

    def look_up(names: Names) -> Result:
        names.meter.spend()
        return function(run(names), name)

    return Step.of(look_up, target)


def related(sign: str, left: Step, right: Step) -> Step:
    """A relation between what two steps give."""
    relation, of_left, of_right = _RELATIONS[sign], left.run, right.run

    def relate(names: Names) -> bool:
        one, other = of_left(names), of_right(names)
        names.meter.spend(1 + length_of(one, other) // STEP_TEXT)
        return relation(names.meter, one, other)

    return Step.of(relate, left, right)


def listed(items: Sequence[Step]) -> Step:
    """A list of what the steps give."""

    def collect(names: Names) -> list[Result]:
        names.meter.spend()
        return [item.run(names) for item in items]

    return Step.of(collect, *items)


def logical(sides: Sequence[Step], *, decides: bool) -> Step:
    """``||`` where True decides, ``&&`` where False does."""

    def decide(names: Names) -> bool:
        names.meter.spend()
        return decided(sides, lambda side: side.run(names), decides=decides)

    return Step.of(decide, *sides)


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
        names.meter.spend()
        which = condition.run(names)
        return (yes if which else no).run(names) if isinstance(which, bool) else fail("no condition")

    return Step.of(choose, condition, yes, no)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _equal(meter: Meter, one: object, other: object) -> bool:
    if isinstance(one, Amount | Version):
        return bool(key(one) == key(other)) if type(one) is type(other) else overload()
    if isinstance(one, Maybe) or isinstance(other, Maybe):
        raise NotUnderstood("comparison of optional values")
    if isinstance(one, list) and isinstance(other, list):
        meter.spend(len(one))  # lists that contain each other may be much longer than the expression
        return len(one) == len(other) and all(_equal(meter, *pair) for pair in zip(one, other, strict=True))
    return (type(one) is type(other) or (_number(one) and _number(other))) and one == other


def _unequal(meter: Meter, one: object, other: object) -> bool:
    try:
        return not _equal(meter, one, other)
    except Failed:
        return True


def key(value: object) -> Result:
    """What quantities and versions are compared by."""
    return value.key if isinstance(value, Version) else value.number if isinstance(value, Amount) else None


def _ordered(sign: str) -> Callable[[Meter, Any, Any], bool]:
    compare = _ORDERS[sign]

    def order(meter: Meter, one: object, other: object) -> bool:
        if (_number(one) and _number(other)) or (type(one) is type(other) and isinstance(one, str | bool)):
            return compare(one, other)
        overload()

    return order


def _contained(meter: Meter, value: object, container: object) -> bool:
    if isinstance(container, Mapping):
        return value in container if isinstance(value, str) else False
    if not isinstance(container, list):
        overload()
    for item in container:
        meter.spend()
        try:
            if _equal(meter, value, item):
                return True
        except Failed:
            continue
    return False


_RELATIONS: Mapping[str, Callable[[Meter, Any, Any], bool]] = {
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


def nothing(*_: object) -> int:
    """The cost of what does not depend on how long its arguments are."""
    return 0


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
        if not isinstance(key, str):
            overload()
        try:
            return container[key]
        except KeyError:
            raise Failed(f"no such key: {quoted(key)}") from None
    if isinstance(container, list) and isinstance(key, float):
        raise NotUnderstood("an index that is no integer")
    if isinstance(container, list) and isinstance(key, int) and not isinstance(key, bool):
        return container[key] if 0 <= key < len(container) else fail("index out of bounds")
    overload()


def optional(container: object, key: object) -> Maybe:
    """``container[?key]``, and ``container.?key``."""
    if isinstance(container, Maybe):
        return optional(container.value, key) if container.there else container
    if isinstance(container, list):
        raise NotUnderstood("an optional item of a list")
    if not isinstance(container, Mapping) or not isinstance(key, str):
        overload()
    if isinstance(container, Defaulting):
        return Maybe(True, container[key])
    return Maybe(True, container[key]) if key in container else Maybe(False)


def has(container: object, name: str) -> bool:
    """``has(container.name)``."""
    if isinstance(container, Defaulting):
        return True
    return name in container if isinstance(container, Mapping) else overload()
