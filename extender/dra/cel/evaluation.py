"""What happens while an expression is evaluated: errors, the count of steps, and values that Python lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from extender.untrusted.limits import MOST_STEPS, SELECTOR_STEPS

Result: TypeAlias = Any
"""A value of CEL: its type is not known before the evaluation."""


class MatchUnknown(Exception):
    """It is not known whether a device matches."""


class Unsupported(MatchUnknown):
    """The expression uses what is not supported here, or takes too many steps."""


class BudgetExhausted(Unsupported):
    """All expressions together take too many steps: a later try may succeed."""


class EvaluationFailed(MatchUnknown):
    """The evaluation fails in kube-scheduler, too: it places the pod on no node."""


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
    """The characters and list items in these values."""
    length = 0
    for value in values:
        if type(value) is str or type(value) is list:  # maps are small
            length += len(value)
    return length


@dataclass(slots=True)
class Meter:
    """Counts down the steps that are ``left``, for one expression and for all of a forecast.

    ``compile_steps`` are those that only the first forecast with an expression spends.
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
        """Spend steps that do not count for the limit of one expression. Raises ``BudgetExhausted``."""
        self.compile_steps += steps
        self._floor = max(0, self._floor - steps)
        self.spend(steps)

    @contextmanager
    def one_expression(self) -> Iterator[None]:
        """Within this context at most ``SELECTOR_STEPS`` may be spent."""
        self._floor = max(0, self.left - SELECTOR_STEPS)
        try:
            yield
        finally:
            self._floor = 0
