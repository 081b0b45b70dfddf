"""What a Pod of the wire demands of its node: the types of its fields, and the ``Rules`` made from them.

Past ``SELECTOR_ITEMS`` nothing is kept of the rules but that they are too large.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict

from extender.k8s.scheduling_rules import NO_RULES, Rules
from extender.k8s.selectors import Expression, Term
from extender.k8s.taints import Toleration
from extender.untrusted.bounded_cache import bounded_cache
from extender.untrusted.limits import KEY, SELECTOR_ITEMS

_Text: TypeAlias = Annotated[str, Field(coerce_numbers_to_str=True)]


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


_RawExpression: TypeAlias = tuple[str, str, tuple[str, ...]]
_RawTerm: TypeAlias = tuple[tuple[_RawExpression, ...], tuple[_RawExpression, ...]]
_RawToleration: TypeAlias = tuple[str, str, str, str]


_LARGE_AFFINITY = "node affinity is too large to be read"
_LARGE_TOLERATIONS = "tolerations are too large to be read"


def rules_of(
    affinity: WireAffinity | None,
    tolerations: list[WireToleration] | None,
    owners: list[WireOwner] | None,
    selector_items: int,
) -> Rules:
    """The rules of a pod; equal ones are one object. ``selector_items``: the entries of its node selector."""
    owner = _owner(owners or ())
    if selector_items > SELECTOR_ITEMS:
        return Rules(owner=owner, problem="node selector is too large to be read")
    of_nodes = (affinity or {}).get("nodeAffinity") or {}
    required = of_nodes.get("requiredDuringSchedulingIgnoredDuringExecution")
    found = (required or {}).get("nodeSelectorTerms") or ()
    if len(found) > SELECTOR_ITEMS:
        return Rules(owner=owner, problem=_LARGE_AFFINITY)
    if len(tolerations or ()) > SELECTOR_ITEMS:
        return Rules(owner=owner, problem=_LARGE_TOLERATIONS)
    terms = None if required is None else tuple(map(_term, found))
    return _rules(terms, tuple(map(_toleration, tolerations or ())), owner)


def _term(term: _Term) -> _RawTerm:
    return _expressions(term.get("matchExpressions")), _expressions(term.get("matchFields"))


def _expressions(found: list[_Expression] | None) -> tuple[_RawExpression, ...]:
    return tuple(
        [
            (one.get("key") or "", one.get("operator") or "", tuple(one.get("values") or ()))
            for one in found or ()
        ]
    )


def _toleration(one: WireToleration) -> _RawToleration:
    return one.get("key") or "", one.get("operator") or "", one.get("value") or "", one.get("effect") or ""


def _owner(owners: Iterable[WireOwner]) -> str:
    """The kind of the controller, or of the one owner where none is marked as such."""
    kinds = [(one.get("controller") is True, one.get("kind") or "") for one in owners]
    return sys.intern(max(kinds, default=(False, ""))[1][:KEY])


def _texts(term: _RawTerm) -> Iterator[str]:
    return (text for part in term for key, operator, values in part for text in (key, operator, *values))


def _size(terms: tuple[_RawTerm, ...] | None, tolerations: tuple[_RawToleration, ...], owner: str) -> int:
    """Characters of the texts, and some more for each of them."""
    texts = [text for term in terms or () for text in _texts(term)]
    texts += [text for one in tolerations for text in one]
    return 16 + sum(map(len, texts)) + 16 * (len(texts) + len(terms or ()))


@bounded_cache(8192, weigh=_size)
def _rules(terms: tuple[_RawTerm, ...] | None, tolerations: tuple[_RawToleration, ...], owner: str) -> Rules:
    # 30,000 pods come from a few hundred templates, so most of this is asked again.
    if _items(terms or ()) > SELECTOR_ITEMS or _longest(t for one in terms or () for t in _texts(one)) > KEY:
        return Rules(owner=owner, problem=_LARGE_AFFINITY)
    if len(tolerations) > SELECTOR_ITEMS or _longest(t for one in tolerations for t in one) > KEY:
        return Rules(owner=owner, problem=_LARGE_TOLERATIONS)
    read = None if terms is None else tuple(Term(*[_read(part) for part in term]) for term in terms)
    rules = Rules(read, tuple(Toleration(*one) for one in tolerations), owner)
    return NO_RULES if rules == NO_RULES else rules


def _read(expressions: tuple[_RawExpression, ...]) -> tuple[Expression, ...]:
    return tuple(Expression(*one) for one in expressions)


def _items(terms: tuple[_RawTerm, ...]) -> int:
    """The values of all terms; a term counts, too, and an expression without values."""
    return sum(1 + sum(max(1, len(values)) for part in term for _, _, values in part) for term in terms)


def _longest(texts: Iterable[str]) -> int:
    return max(map(len, texts), default=0)
