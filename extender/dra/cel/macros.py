"""The macros of CEL over the items of a list or the keys of a map."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from extender.dra.cel.evaluation import Result, Unsupported, no_overload
from extender.dra.cel.operators import decide

MAX_NESTING = 2
"""Macros inside each other: the work of nested macros multiplies."""
_MAX_ITEMS = 64
"""Items of one macro, for the same reason."""

Macro: TypeAlias = Callable[[list[Any], Callable[[Any], Result]], Result]
"""A function of the items and of the expression to evaluate for one item."""


def items_of(container: object) -> list[Any]:
    """The items that a macro visits. Raises ``EvaluationProblem``."""
    if not isinstance(container, list | Mapping):
        no_overload()
    if len(container) > _MAX_ITEMS:
        raise Unsupported(f"a macro over more than {_MAX_ITEMS} items")
    return list(container)


def _exists_one(items: list[Any], test: Callable[[Any], Result]) -> bool:
    return len(_filter(items, test)) == 1


def _filter(items: list[Any], test: Callable[[Any], Result]) -> list[Any]:
    return [item for item in items if _boolean(test(item))]


def _boolean(value: object) -> bool:
    return value if isinstance(value, bool) else no_overload()


MACROS: Mapping[str, Macro] = {
    "all": lambda items, test: decide(items, test, decisive=False),
    "exists": lambda items, test: decide(items, test, decisive=True),
    "exists_one": _exists_one,
    "existsOne": _exists_one,
    "filter": _filter,
    "map": lambda items, test: [test(item) for item in items],
}
