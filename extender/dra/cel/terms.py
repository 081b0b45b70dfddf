"""How an evaluation goes wrong, what a compiled step is, and values that Python does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from extender.untrusted.limits import MOST_STEPS, SELECTOR_DEPTH, SELECTOR_STEPS


class Unclear(Exception):
    """Nothing can be said about the device.

    Unclear
    +-- NotUnderstood   the expression uses what is not known here, or takes too many steps
    |   +-- Exhausted   all expressions together take too many: another time it may be known
    +-- Failed          the evaluation ends in an error, also kube-scheduler's: it places the pod nowhere
    """


class NotUnderstood(Unclear):
    """See ``Unclear``."""


class Exhausted(NotUnderstood):
    """See ``Unclear``."""


class Failed(Unclear):
    """See ``Unclear``."""


@dataclass(frozen=True, slots=True)
class Maybe:
    """An optional value of CEL."""

    there: bool
    value: object = None


class Defaulting(dict[str, Any]):
    """A map in which an absent key is an empty map: ``device.attributes`` and ``device.capacity``."""

    def __missing__(self, key: str) -> Mapping[str, Any]:
        return {}


class Meter:
    """Counts down the steps that are ``left``, for one expression and for all of a forecast. ``beside`` are
    those that only the first who asks has to take."""

    __slots__ = ("_floor", "beside", "left")

    def __init__(self, steps: int = MOST_STEPS) -> None:
        self.left = steps
        self.beside = 0
        self._floor = 0

    def spend(self, steps: int = 1) -> None:
        """Take steps. Raises ``Exhausted``, and beyond the limit of one expression ``NotUnderstood``."""
        self.left -= steps
        if self.left < self._floor:
            self.left = self._floor
            if not self._floor:
                raise Exhausted("there is too much to search at once")
            raise NotUnderstood(f"a selector takes more than {SELECTOR_STEPS} steps")

    def spend_beside(self, steps: int) -> None:
        """Take so many steps that do not count for the limit of one expression. Raises ``Exhausted``."""
        self.beside += steps
        self._floor = max(0, self._floor - steps)
        self.spend(steps)

    @contextmanager
    def one_expression(self) -> Iterator[None]:
        """What is spent here may be ``SELECTOR_STEPS`` at most."""
        self._floor = max(0, self.left - SELECTOR_STEPS)
        try:
            yield
        finally:
            self._floor = 0


Variables: TypeAlias = Mapping[str, Any]


class Names:
    """The variables that a step sees, and the meter that it spends from."""

    __slots__ = ("meter", "values")

    def __init__(self, values: Variables, meter: Meter) -> None:
        self.values, self.meter = values, meter

    def also(self, name: str, value: object) -> Names:
        """These, and one more."""
        self.meter.spend(2)
        return Names({**self.values, name: value}, self.meter)


Result: TypeAlias = Any
"""A value of CEL: what it is shows only when it is there."""


@dataclass(frozen=True, slots=True)
class Step:
    """A part of an expression that is compiled. ``height``: the most steps inside each other that it is."""

    run: Callable[[Names], Result]
    height: int = 1

    @classmethod
    def of(cls, run: Callable[[Names], Result], *parts: Step) -> Step:
        """A step that is made of others. Raises ``NotUnderstood`` for too many inside each other."""
        height = 1 + max([part.height for part in parts], default=0)
        if height > SELECTOR_DEPTH:
            raise NotUnderstood("nested too deeply")
        return cls(run, height)


def length_of(*values: object) -> int:
    """Characters or items that there are to go through."""
    length = 0
    for value in values:
        if type(value) is str or type(value) is list:  # maps are small
            length += len(value)
    return length


def fail(why: str) -> NoReturn:
    """The evaluation ends in an error."""
    raise Failed(why)


def overload(*_: object) -> NoReturn:
    """CEL has no such operation for values of these types."""
    raise Failed("no such overload")
