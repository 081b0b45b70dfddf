"""How an evaluation goes wrong, what a compiled step is, and values that Python does not have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias


class Unclear(Exception):
    """Nothing can be said about the device.

    Unclear
    +-- NotUnderstood   the expression uses what is not known here
    +-- Failed          the evaluation ends in an error, also kube-scheduler's: it places the pod nowhere
    """


class NotUnderstood(Unclear):
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


Names: TypeAlias = Mapping[str, Any]
Result: TypeAlias = Any
"""A value of CEL: what it is shows only when it is there."""
Step: TypeAlias = Callable[[Names], Result]


def fail(why: str) -> NoReturn:
    """The evaluation ends in an error."""
    raise Failed(why)


def overload(*_: object) -> NoReturn:
    """CEL has no such operation for values of these types."""
    raise Failed("no such overload")
