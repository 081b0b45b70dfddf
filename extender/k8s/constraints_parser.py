"""Reads the node affinity and the tolerations of a pod. Pods of one template share one object.

Beyond a limit of ``limits.py`` the constraints have only a problem.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from typing_extensions import TypedDict

from extender.k8s.affinity import (
    NO_CONSTRAINTS,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    SchedulingConstraints,
    Toleration,
)
from extender.k8s.metadata import Text
from extender.untrusted.bounded_cache import bounded_cache
from extender.untrusted.limits import KEY, LABEL, SELECTOR_ITEMS


class _Requirement(TypedDict, total=False):
    key: str | None
    operator: str | None
    values: list[Text] | None


class _Term(TypedDict, total=False):
    matchExpressions: list[_Requirement] | None
    matchFields: list[_Requirement] | None


class _NodeSelector(TypedDict, total=False):
    nodeSelectorTerms: list[_Term] | None


class _NodeAffinity(TypedDict, total=False):
    requiredDuringSchedulingIgnoredDuringExecution: _NodeSelector | None


class AffinityManifest(TypedDict, total=False):
    nodeAffinity: _NodeAffinity | None
    podAffinity: Any
    podAntiAffinity: Any


class TolerationManifest(TypedDict, total=False):
    key: str | None
    operator: str | None
    value: Text | None
    effect: str | None


# Node affinity and tolerations of a manifest as tuples: hashable, so that equal constraints are parsed once.
_RawRequirement: TypeAlias = tuple[str, str, tuple[str, ...]]
_RawTerm: TypeAlias = tuple[tuple[_RawRequirement, ...], tuple[_RawRequirement, ...]]
_RawToleration: TypeAlias = tuple[str, str, str, str]

_IS_LABEL_VALUE = re.compile(f"({LABEL})?").fullmatch
_LARGE_SELECTOR = "node selector is too large to be read"
_LARGE_AFFINITY = "node affinity is too large to be read"
_LARGE_TOLERATIONS = "tolerations are too large to be read"


def parse_constraints(
    node_selector: Mapping[str, Any] | None,
    affinity: AffinityManifest | None,
    tolerations: Sequence[TolerationManifest] | None,
    owner_kind: str,
) -> SchedulingConstraints:
    """The constraints of a pod; equal ones are one object."""
    if not (node_selector or affinity) and len(tolerations or ()) <= SELECTOR_ITEMS:  # most pods
        return _constraints(None, tuple([_raw_toleration(one) for one in tolerations or ()]), owner_kind)
    required = ((affinity or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    terms = (required or {}).get("nodeSelectorTerms") or ()
    for entries, problem in (
        (node_selector or (), _LARGE_SELECTOR),
        (terms, _LARGE_AFFINITY),
        (tolerations or (), _LARGE_TOLERATIONS),
    ):
        if len(entries) > SELECTOR_ITEMS:
            return SchedulingConstraints(owner_kind=owner_kind, problem=problem)
    raw_terms = None if required is None else tuple(map(_raw_term, terms))
    return _constraints(raw_terms, tuple(map(_raw_toleration, tolerations or ())), owner_kind)


def _raw_term(term: _Term) -> _RawTerm:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    return tuple(map(_raw_requirement, expressions)), tuple(map(_raw_requirement, fields))


def _raw_requirement(requirement: _Requirement) -> _RawRequirement:
    key, operator = requirement.get("key") or "", requirement.get("operator") or ""
    return key, operator, tuple(requirement.get("values") or ())


def _raw_toleration(toleration: TolerationManifest) -> _RawToleration:
    key, operator = toleration.get("key") or "", toleration.get("operator") or ""
    return key, operator, toleration.get("value") or "", toleration.get("effect") or ""


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
    node_affinity = None if terms is None else tuple(_term(*term) for term in terms)
    constraints = SchedulingConstraints(node_affinity, tuple(Toleration(*raw) for raw in tolerations), owner)
    return NO_CONSTRAINTS if constraints == NO_CONSTRAINTS else constraints


def _term(labels: tuple[_RawRequirement, ...], fields: tuple[_RawRequirement, ...]) -> NodeSelectorTerm:
    """The term. With a value that no label can have it matches nothing, whatever the operator, as
    ``NewRequirement`` of k8s.io/apimachinery (``pkg/labels/selector.go``) says."""
    if not all(_IS_LABEL_VALUE(value) for _, _, values in labels for value in values):
        return NodeSelectorTerm()
    return NodeSelectorTerm(_requirements(labels), _requirements(fields))


def _requirements(raw: tuple[_RawRequirement, ...]) -> tuple[NodeSelectorRequirement, ...]:
    return tuple(NodeSelectorRequirement(*one) for one in raw)


def _items(terms: tuple[_RawTerm, ...]) -> int:
    """How many values all terms have; each term, and each requirement without values, counts as one more."""
    return sum(1 + sum(max(1, len(values)) for part in term for _, _, values in part) for term in terms)


def _longest(texts: Iterable[str]) -> int:
    return max(map(len, texts), default=0)
