"""Reads a pod's scheduling constraints from its manifest: node affinity, tolerations and owner.

Constraints beyond ``SELECTOR_ITEMS`` are not kept, only the problem that they are too large.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from typing_extensions import TypedDict

from extender.k8s.affinity import (
    NO_CONSTRAINTS,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    SchedulingConstraints,
    Toleration,
)
from extender.k8s.metadata import OwnerManifest, Text
from extender.untrusted.bounded_cache import bounded_cache
from extender.untrusted.limits import KEY, SELECTOR_ITEMS


class _RequirementManifest(TypedDict, total=False):
    key: str | None
    operator: str | None
    values: list[Text] | None


class _TermManifest(TypedDict, total=False):
    matchExpressions: list[_RequirementManifest] | None
    matchFields: list[_RequirementManifest] | None


class _NodeSelectorManifest(TypedDict, total=False):
    nodeSelectorTerms: list[_TermManifest] | None


class _NodeAffinityManifest(TypedDict, total=False):
    requiredDuringSchedulingIgnoredDuringExecution: _NodeSelectorManifest | None


class AffinityManifest(TypedDict, total=False):
    nodeAffinity: _NodeAffinityManifest | None


class TolerationManifest(TypedDict, total=False):
    key: str | None
    operator: str | None
    value: Text | None
    effect: str | None


# The values of a manifest as tuples: hashable, so that equal constraints are parsed once.
_RawRequirement: TypeAlias = tuple[str, str, tuple[str, ...]]
_RawTerm: TypeAlias = tuple[tuple[_RawRequirement, ...], tuple[_RawRequirement, ...]]
_RawToleration: TypeAlias = tuple[str, str, str, str]


_LARGE_SELECTOR = "node selector is too large to be read"
_LARGE_AFFINITY = "node affinity is too large to be read"
_LARGE_TOLERATIONS = "tolerations are too large to be read"


def scheduling_constraints(
    affinity: AffinityManifest | None,
    tolerations: list[TolerationManifest] | None,
    owners: list[OwnerManifest] | None,
    selector_items: int,
) -> SchedulingConstraints:
    """The constraints of a pod; equal ones are one object. ``selector_items``: size of its node selector."""
    owner = _owner_kind(owners or ())
    if selector_items > SELECTOR_ITEMS:
        return SchedulingConstraints(owner_kind=owner, problem=_LARGE_SELECTOR)
    node_affinity = (affinity or {}).get("nodeAffinity") or {}
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = (required or {}).get("nodeSelectorTerms") or ()
    if len(terms) > SELECTOR_ITEMS:
        return SchedulingConstraints(owner_kind=owner, problem=_LARGE_AFFINITY)
    if len(tolerations or ()) > SELECTOR_ITEMS:
        return SchedulingConstraints(owner_kind=owner, problem=_LARGE_TOLERATIONS)
    raw_terms = None if required is None else tuple(map(_raw_term, terms))
    return _constraints(raw_terms, tuple(map(_raw_toleration, tolerations or ())), owner)


def _raw_term(term: _TermManifest) -> _RawTerm:
    return _raw_requirements(term.get("matchExpressions")), _raw_requirements(term.get("matchFields"))


def _raw_requirements(requirements: list[_RequirementManifest] | None) -> tuple[_RawRequirement, ...]:
    return tuple(
        [
            (r.get("key") or "", r.get("operator") or "", tuple(r.get("values") or ()))
            for r in requirements or ()
        ]
    )


def _raw_toleration(toleration: TolerationManifest) -> _RawToleration:
    key, operator = toleration.get("key") or "", toleration.get("operator") or ""
    return key, operator, toleration.get("value") or "", toleration.get("effect") or ""


def _owner_kind(owners: Iterable[OwnerManifest]) -> str:
    """The kind of the controller; without a controller, the kind that is last in the alphabet."""
    kinds = [(owner.get("controller") is True, owner.get("kind") or "") for owner in owners]
    return sys.intern(max(kinds, default=(False, ""))[1][:KEY])


def _texts(term: _RawTerm) -> Iterator[str]:
    return (text for part in term for key, operator, values in part for text in (key, operator, *values))


def _size(terms: tuple[_RawTerm, ...] | None, tolerations: tuple[_RawToleration, ...], owner: str) -> int:
    """Characters of all texts, plus 16 for each text and term."""
    texts = [text for term in terms or () for text in _texts(term)]
    texts += [text for toleration in tolerations for text in toleration]
    return 16 + sum(map(len, texts)) + 16 * (len(texts) + len(terms or ()))


@bounded_cache(8192, weigh=_size)
def _constraints(
    terms: tuple[_RawTerm, ...] | None, tolerations: tuple[_RawToleration, ...], owner: str
) -> SchedulingConstraints:
    # Cached because a cluster with 30,000 pods has a few hundred templates.
    longest_of_terms = _longest(text for term in terms or () for text in _texts(term))
    if _items(terms or ()) > SELECTOR_ITEMS or longest_of_terms > KEY:
        return SchedulingConstraints(owner_kind=owner, problem=_LARGE_AFFINITY)
    if _longest(text for toleration in tolerations for text in toleration) > KEY:
        return SchedulingConstraints(owner_kind=owner, problem=_LARGE_TOLERATIONS)
    node_affinity = (
        None if terms is None else tuple(NodeSelectorTerm(*map(_requirements, term)) for term in terms)
    )
    constraints = SchedulingConstraints(node_affinity, tuple(Toleration(*raw) for raw in tolerations), owner)
    return NO_CONSTRAINTS if constraints == NO_CONSTRAINTS else constraints


def _requirements(raw: tuple[_RawRequirement, ...]) -> tuple[NodeSelectorRequirement, ...]:
    return tuple(NodeSelectorRequirement(*one) for one in raw)


def _items(terms: tuple[_RawTerm, ...]) -> int:
    """How many values all terms have; each term, and each requirement without values, counts as one more."""
    return sum(1 + sum(max(1, len(values)) for part in term for _, _, values in part) for term in terms)


def _longest(texts: Iterable[str]) -> int:
    return max(map(len, texts), default=0)
