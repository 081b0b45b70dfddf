"""What a Pod of the wire demands of its node: the types of its fields, and the ``Rules`` made from them.

Past ``SELECTOR_ITEMS`` nothing is kept of the rules but that they are too large.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict

from extender.bounded import bounded_cache
from extender.limits import KEY, SELECTOR_ITEMS
from extender.rules import NO_RULES, Rules
from extender.selectors import Expression, Term
from extender.taints import Toleration

_Text: TypeAlias = Annotated[str, Field(coerce_numbers_to_str=True)]
_FIELDS = ("key", "operator", "value", "effect")


class WireOwner(TypedDict, total=False):
    kind: str | None
    controller: bool | None


class _Expression(TypedDict, total=False):
    key: str | None
    operator: str | None
    values: list[_Text] | None


class _Term(TypedDict, total=False):
    matchExpressions: list[_Expression] | None
    matchFields: list[_Expression] | None


class _Required(TypedDict, total=False):
    nodeSelectorTerms: list[_Term] | None


class _NodeAffinity(TypedDict, total=False):
    requiredDuringSchedulingIgnoredDuringExecution: _Required | None


class WireAffinity(TypedDict, total=False):
    nodeAffinity: _NodeAffinity | None


class WireToleration(TypedDict, total=False):
    key: str | None
    operator: str | None
    value: _Text | None
    effect: str | None


def rules_of(
    affinity: WireAffinity | None,
    tolerations: list[WireToleration] | None,
    owners: list[WireOwner] | None,
    selector_items: int,
) -> Rules:
    """The rules of a pod; equal ones are one object. ``selector_items``: the entries of its node selector."""
    if not (affinity or tolerations or owners) and selector_items <= SELECTOR_ITEMS:
        return NO_RULES
    owner = _owner(owners or ())
    of_nodes = (affinity or {}).get("nodeAffinity") or {}
    required = of_nodes.get("requiredDuringSchedulingIgnoredDuringExecution")
    wanted = None if required is None else required.get("nodeSelectorTerms") or []
    problem = (
        ("node selector is too large to be read" if selector_items > SELECTOR_ITEMS else "")
        or ("node affinity is too large to be read" if _too_large(wanted or ()) else "")
        or ("tolerations are too large to be read" if _too_many(tolerations or ()) else "")
    )
    if problem:
        return _shared(Rules(owner=owner, problem=problem))
    terms = None if wanted is None else tuple(map(_term, wanted))
    return _shared(Rules(terms, tuple(map(_toleration, tolerations or ())), owner))


def _too_large(terms: Iterable[_Term]) -> bool:
    """Whether there are more values than are read (each term and expression counts, too), or a longer one."""
    items = 0
    for term in terms:
        items += 1
        for one in (*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())):
            values = one.get("values") or ()
            items += max(1, len(values))
            if items > SELECTOR_ITEMS or any(
                len(text) > KEY for text in (one.get("key") or "", one.get("operator") or "", *values)
            ):
                return True
    return items > SELECTOR_ITEMS


def _too_many(tolerations: Iterable[WireToleration]) -> bool:
    return any(
        number >= SELECTOR_ITEMS or any(len(str(one.get(name) or "")) > KEY for name in _FIELDS)
        for number, one in enumerate(tolerations)
    )


def _term(term: _Term) -> Term:
    return Term(_expressions(term.get("matchExpressions") or ()), _expressions(term.get("matchFields") or ()))


def _expressions(found: Iterable[_Expression]) -> tuple[Expression, ...]:
    return tuple(
        [
            Expression(one.get("key") or "", one.get("operator") or "", tuple(one.get("values") or ()))
            for one in found
        ]
    )


def _toleration(found: WireToleration) -> Toleration:
    return Toleration(*[str(found.get(name) or "") for name in _FIELDS])


def _owner(owners: Iterable[WireOwner]) -> str:
    """The kind of the controller, or of the one owner where none is marked as such."""
    kinds = [(one.get("controller") is True, one.get("kind") or "") for one in owners]
    return sys.intern(max(kinds, default=(False, ""))[1][:KEY])


def _size(rules: Rules) -> int:
    """Characters of its texts, and some more for each of them."""
    texts = [text for one in rules.tolerations for text in (one.key, one.operator, one.value, one.effect)]
    for term in rules.terms or ():
        for one in (*term.labels, *term.fields):
            texts += (one.key, one.operator, *one.values)
    return 16 + sum(map(len, texts)) + 16 * len(texts)


@bounded_cache(8192, weigh=_size)
def _shared(rules: Rules) -> Rules:
    # As with specs: the first of equal rules stands for all of them.
    return rules
