"""Compiled CEL expressions: functions composed of those of their parts, which meter their steps.

The operators raise the same errors as in cel-go.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias, TypeVar

from extender.k8s.resource_slices import Amount, Unread, Version
from extender.untrusted.limits import MOST_STEPS, SELECTOR_STEPS, STEP_TEXT, quoted

Result: TypeAlias = Any
"""A CEL value, whose type is unknown before evaluation."""


class MatchUnknown(Exception):
    """Whether a device matches is unknown."""


class Unsupported(MatchUnknown):
    """The expression uses an unsupported feature, or takes too many steps."""


class BudgetExhausted(Unsupported):
    """All expressions together take too many steps; a later attempt may succeed."""


class EvaluationFailed(MatchUnknown):
    """The evaluation fails in kube-scheduler, too, so it rejects all nodes for the pod."""


def fail(problem: str) -> NoReturn:
    raise EvaluationFailed(problem)


def no_overload(*_: object) -> NoReturn:
    """CEL has no such operation for values of these types. Raises ``EvaluationFailed``."""
    raise EvaluationFailed("no such overload")


@dataclass(frozen=True, slots=True)
class OptionalValue:
    present: bool
    value: object = None


class DefaultingMap(dict[str, Any]):
    """A map in which an absent key is an empty map: ``device.attributes`` and ``device.capacity``."""

    def __missing__(self, key: str) -> Mapping[str, Any]:
        return {}


def length_of(*values: object) -> int:
    """Total characters and list items in these values."""
    length = 0
    for value in values:
        if type(value) is str or type(value) is list:  # maps are small
            length += len(value)
    return length


@dataclass(slots=True)
class Meter:
    """Counts down the steps ``left``, for one expression and for all of a forecast.

    ``compile_steps`` are spent only by the first forecast with an expression.
    """

    left: int = MOST_STEPS
    compile_steps: int = 0
    _floor: int = 0

    def spend(self, steps: int = 1) -> None:
        """Raises ``BudgetExhausted``, or ``Unsupported`` beyond the limit of one expression."""
        self.left -= steps
        if self.left < self._floor:
            self.left = self._floor
            if not self._floor:
                raise BudgetExhausted("there is too much to search at once")
            raise Unsupported(f"a selector takes more than {SELECTOR_STEPS} steps")

    def spend_compiling(self, steps: int) -> None:
        """Spend steps that do not count toward the limit of one expression. Raises ``BudgetExhausted``."""
        self.compile_steps += steps
        self._floor = max(0, self._floor - steps)
        self.spend(steps)

    @contextmanager
    def one_expression(self) -> Iterator[None]:
        """Limit the steps within this context to ``SELECTOR_STEPS``."""
        self._floor = max(0, self.left - SELECTOR_STEPS)
        try:
            yield
        finally:
            self._floor = 0


Item = TypeVar("Item")
_MAX_LENGTH = 1024
"""Maximum characters or items of a sum: with ``cel.bind``, a short expression could double a value many
times."""


def decide(items: Iterable[Item], test: Callable[[Item], Result], *, decisive: bool) -> bool:
    """``decisive`` if any item's test returns it, even if the test of another item raises an error."""
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


def _equal(meter: Meter, first: object, other: object) -> bool:
    if isinstance(first, Amount | Version):
        if type(first) is not type(other):
            no_overload()
        return bool(comparison_key(first) == comparison_key(other))
    if isinstance(first, OptionalValue) or isinstance(other, OptionalValue):
        raise Unsupported("comparison of optional values")
    if isinstance(first, list) and isinstance(other, list):
        meter.spend(len(first) + length_of(*first) // STEP_TEXT)  # far longer than the expression, if nested
        return len(first) == len(other) and all(
            _equal(meter, *pair) for pair in zip(first, other, strict=True)
        )
    return (type(first) is type(other) or (_is_number(first) and _is_number(other))) and first == other


def _unequal(meter: Meter, first: object, other: object) -> bool:
    try:
        return not _equal(meter, first, other)
    except EvaluationFailed:
        return True


def comparison_key(value: object) -> Result:
    """The sort key of a quantity or a version, None for other values."""
    return value.key if isinstance(value, Version) else value.number if isinstance(value, Amount) else None


def _comparison(compare: Callable[[Any, Any], bool]) -> Callable[[Meter, Any, Any], bool]:
    def order(meter: Meter, first: object, other: object) -> bool:
        numbers = _is_number(first) and _is_number(other)
        if numbers or (type(first) is type(other) and isinstance(first, str | bool)):
            return compare(first, other)
        no_overload()

    return order


def _is_in(meter: Meter, value: object, container: object) -> bool:
    if isinstance(container, Mapping):
        return value in container if isinstance(value, str) else False
    if not isinstance(container, list):
        no_overload()
    meter.spend(len(container) + length_of(*container) // STEP_TEXT)
    for item in container:
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
    def combine(first: object, other: object) -> object:
        if type(first) is not type(other) or isinstance(first, bool):
            no_overload()
        if isinstance(first, str | list) and isinstance(other, str | list) and compute is operator.add:
            if len(first) + len(other) > _MAX_LENGTH:
                raise Unsupported(f"a text or list of more than {_MAX_LENGTH}")
            return compute(first, other)
        if isinstance(first, float):
            return compute(first, other)
        return int64(compute(first, other)) if isinstance(first, int) else no_overload()

    return combine


def _quotient(first: object, other: object) -> object:
    """``/``. Integers are rounded toward zero."""
    if isinstance(first, float) and isinstance(other, float):
        if not other:
            raise Unsupported("division by 0.0")
        return first / other
    left, right = _operands(first, other)
    return int64(abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1))


def _remainder(first: object, other: object) -> int:
    """``%``. The result has the sign of the left operand."""
    left, right = _operands(first, other)
    return abs(left) % abs(right) * (-1 if left < 0 else 1)


def _operands(first: object, other: object) -> tuple[int, int]:
    if type(first) is not int or type(other) is not int:
        no_overload()
    return (first, other) if other else fail("division by zero")


ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": _arithmetic(operator.add),
    "-": _arithmetic(operator.sub),
    "*": _arithmetic(operator.mul),
    "/": _quotient,
    "%": _remainder,
}


def int64(number: int) -> int:
    """The number, if it fits into a 64-bit CEL integer. Raises ``EvaluationFailed``."""
    return number if -(2**63) <= number < 2**63 else fail("integer overflow")


def logical_not(value: object) -> bool:
    return not value if isinstance(value, bool) else no_overload()


def negate(value: object) -> Result:
    return -value if isinstance(value, int | float) and not isinstance(value, bool) else no_overload()


def index_member(container: object, key: object) -> Result:
    """``container[key]``, and ``container.key``."""
    if isinstance(container, OptionalValue):
        return optional_member(container, key)
    if isinstance(container, Mapping):
        if not isinstance(key, str):
            no_overload()
        return container[key] if has_member(container, key) else fail(f"no such key: {quoted(key)}")
    if isinstance(container, list) and isinstance(key, float):
        raise Unsupported("an index that is not an integer")
    if isinstance(container, list) and isinstance(key, int) and not isinstance(key, bool):
        return container[key] if 0 <= key < len(container) else fail("index out of bounds")
    no_overload()


def optional_member(container: object, key: object) -> OptionalValue:
    """``container[?key]``, and ``container.?key``."""
    if isinstance(container, OptionalValue):
        return optional_member(container.value, key) if container.present else container
    if isinstance(container, list):
        raise Unsupported("an optional item of a list")
    if not isinstance(container, Mapping) or not isinstance(key, str):
        no_overload()
    present = has_member(container, key)
    return OptionalValue(present, container[key] if present else None)


def has_member(container: object, name: str) -> bool:
    """Raises ``Unsupported`` for an attribute that cannot be read."""
    if not isinstance(container, Mapping):
        no_overload()
    if isinstance(container, DefaultingMap):
        return True
    if isinstance(member := container.get(name), Unread):
        raise Unsupported(member.problem)
    return name in container


Variables: TypeAlias = Mapping[str, Any]


@dataclass(slots=True)
class Scope:
    """The variables visible to a program, and the meter of its steps."""

    variables: Variables
    meter: Meter

    def with_variable(self, name: str, value: object) -> Scope:
        """A scope with one more variable. Spends two steps."""
        self.meter.spend(2)
        return Scope({**self.variables, name: value}, self.meter)


Program: TypeAlias = Callable[[Scope], Result]
"""A compiled expression or a part of one."""


def metered(evaluate: Program) -> Program:
    """The program, at the cost of one more step."""

    def run(scope: Scope) -> Result:
        scope.meter.spend()
        return evaluate(scope)

    return run


def variable(name: str) -> Program:
    unknown = f"{quoted(name)} is not known"
    return metered(lambda scope: scope.variables[name] if name in scope.variables else fail(unknown))


def call(
    function: Callable[..., Any], *arguments: Program, cost: Callable[..., int] | None = None
) -> Program:
    """A function of the arguments' values. Spends two steps, plus ``cost`` of (meter, values), by default
    more for long values."""

    def run(scope: Scope) -> Result:
        values = [argument(scope) for argument in arguments]
        extra = cost(scope.meter, *values) if cost else length_of(*values) // STEP_TEXT
        scope.meter.spend(2 + extra)
        return function(*values)

    return run


def member(function: Callable[[Any, str], Any], target: Program, name: str) -> Program:
    """A function of the target's value and of a literal name in the expression."""
    return metered(lambda scope: function(target(scope), name))


def relation(sign: str, left: Program, right: Program) -> Program:
    relate = RELATIONS[sign]

    def run(scope: Scope) -> bool:
        first, other = left(scope), right(scope)
        scope.meter.spend(1 + length_of(first, other) // STEP_TEXT)
        return relate(scope.meter, first, other)

    return run


def conditional(condition: Program, yes: Program, no: Program) -> Program:
    """``?:``. Only one side is evaluated."""

    def evaluate(scope: Scope) -> Result:
        value = condition(scope)
        return (yes if value else no)(scope) if isinstance(value, bool) else fail("no condition")

    return metered(evaluate)
