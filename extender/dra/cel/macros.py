"""The macros of CEL: what a list says item by item. Of a map they see the keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from extender.dra.cel.operators import decided
from extender.dra.cel.terms import NotUnderstood, Result, overload

DEEPEST = 2
"""Macros within each other; more would multiply to too much work."""
_MOST = 64  # items, for the same reason

Macro: TypeAlias = Callable[[list[Any], Callable[[Any], Result]], Result]
"""A function of the items and of what is said of one."""


def items(container: object) -> list[Any]:
    """What a macro goes through."""
    if not isinstance(container, list | Mapping):
        overload()
    if len(container) > _MOST:
        raise NotUnderstood(f"a macro over more than {_MOST} items")
    return list(container)


def _one(found: list[Any], test: Callable[[Any], Result]) -> bool:
    return len(_filtered(found, test)) == 1


def _filtered(found: list[Any], test: Callable[[Any], Result]) -> list[Any]:
    return [item for item in found if _true(test(item))]


def _true(value: object) -> bool:
    return value if isinstance(value, bool) else overload()


MACROS: Mapping[str, Macro] = {
    "all": lambda found, test: decided(found, test, decides=False),
    "exists": lambda found, test: decided(found, test, decides=True),
    "exists_one": _one,
    "existsOne": _one,
    "filter": _filtered,
    "map": lambda found, test: [test(item) for item in found],
}
