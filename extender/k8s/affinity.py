"""What a pod or a device requires of a node: node selector terms, and tolerations of taints.

Semantics of Kubernetes v1.36: node selector terms as in k8s.io/component-helpers
``scheduling/corev1/nodeaffinity``; taints as ``ToleratesTaint`` of k8s.io/api ``core/v1`` and of
k8s.io/dynamic-resource-allocation ``resourceclaim`` (v0.36.3). What a manifest has under the same names is
decoded right into requirements, taints and tolerations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

from msgspec import Struct

from extender.k8s.manifest import Labels
from extender.untrusted.bounded_cache import bounded_cache
from extender.untrusted.limits import BUDGET_SELECTOR, KEY, LABEL, SELECTOR_ITEMS

_INTEGER = re.compile(r"[-+]?[0-9]{1,63}")
"""What ``Gt`` and ``Lt`` of a selector compare, as Go's ``ParseInt`` reads it; a label has at most 63
characters."""
_POD_TERMS = 16
"""Terms of an anti-affinity that are read, and namespaces of each."""
_CANONICAL = re.compile(r"0|-?[1-9][0-9]*")


@dataclass(frozen=True, slots=True)
class NodeSelectorRequirement:
    """A requirement on one label of a node: ``operator`` is In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet the requirement. An unknown operator matches nothing."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return len(self.values) == 1 and _compares(value or "", self.operator, self.values[0])
        return False


def _compares(value: str, operator: str, bound: str) -> bool:
    """Whether a whole number is larger (``Gt``) or smaller than another; False if one of them is none."""
    number, limit = _integer(value), _integer(bound)
    if number is None or limit is None:
        return False
    return number > limit if operator == "Gt" else number < limit


def _integer(text: str) -> int | None:
    number = int(text) if _INTEGER.fullmatch(text) else None
    return number if number is not None and -(2**63) <= number < 2**63 else None


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """Requirements that must all match: on labels, and on fields (only ``metadata.name`` exists)."""

    labels: tuple[NodeSelectorRequirement, ...] = ()
    fields: tuple[NodeSelectorRequirement, ...] = ()

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether the node with this name and these labels meets the term. An empty term matches no node."""
        fields = {"metadata.name": name}
        return bool(self.labels or self.fields) and (
            all(requirement.matches(labels) for requirement in self.labels)
            and all(requirement.matches(fields) for requirement in self.fields)
        )


@dataclass(frozen=True, slots=True)
class Taint:
    """Keeps pods off a node, or claims off a device, unless they tolerate it."""

    key: str = ""
    value: str = ""
    effect: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        return self.key, self.value, self.effect

    @property
    def blocks_scheduling(self) -> bool:
        """Whether the effect is more than a preference."""
        return self.effect in ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class Toleration:
    """Tolerates taints with this key, value and effect. An empty key or effect matches every one.

    ``Gt`` and ``Lt`` tolerate taints whose value is a larger or smaller whole number than ``value``, both in
    canonical form, without plus sign and leading zeros (``compareNumericValues`` of k8s.io/api v0.37.1,
    ``core/v1/toleration.go``; in Kubernetes from 1.35 on).
    """

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        return self.key, self.operator, self.value, self.effect

    def tolerates(self, taint: Taint) -> bool:
        """Whether this toleration matches the taint."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        match self.operator:
            case "Exists":
                return True
            case "" | "Equal":
                return self.value == taint.value
            case "Gt" | "Lt":
                canonical = all(map(_CANONICAL.fullmatch, (taint.value, self.value)))
                return canonical and _compares(taint.value, self.operator, self.value)
        return False


def tolerated(taints: Sequence[Taint], tolerations: Sequence[Toleration]) -> bool:
    """Whether each taint that blocks scheduling is tolerated."""
    return all(
        any(toleration.tolerates(taint) for toleration in tolerations)
        for taint in taints
        if taint.blocks_scheduling
    )


@dataclass(frozen=True, slots=True)
class PodTerm:
    """A required anti-affinity to pods with such labels: not within one domain, which is a value of the
    node's label ``key``. ``namespaces``: () is all."""

    key: str
    selector: tuple[NodeSelectorRequirement, ...]
    namespaces: tuple[str, ...] = ()

    def selects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether it is about a pod of this namespace with these labels."""
        is_there = not self.namespaces or namespace in self.namespaces
        return is_there and all(requirement.matches(labels) for requirement in self.selector)


PINNED_OWNERS = ("DaemonSet", "Node")
"""Kinds of controllers whose pods belong to one node; those of a Node are static pods."""


@dataclass(frozen=True, slots=True)
class SchedulingConstraints:
    """Where kube-scheduler may run a pod, apart from the pod's node selector.

    ``node_affinity``: one of the terms must match; None means no affinity. ``anti_affinity``: to other pods,
    as far as it is read. ``owner_kind`` is the kind of the pod's controller, "" for none. ``problem`` says
    which part is too large to read, "" for none: then no node
    is accepted.
    """

    node_affinity: tuple[NodeSelectorTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    owner_kind: str = ""
    problem: str = ""
    anti_affinity: tuple[PodTerm, ...] = ()

    @property
    def pinned_to_node(self) -> bool:
        """Whether no other node can run the pod."""
        return self.owner_kind in PINNED_OWNERS


NO_CONSTRAINTS = SchedulingConstraints()


class _Term(Struct, frozen=True, gc=False):
    matchExpressions: tuple[NodeSelectorRequirement, ...] = ()
    matchFields: tuple[NodeSelectorRequirement, ...] = ()

    @property
    def requirements(self) -> tuple[NodeSelectorRequirement, ...]:
        return self.matchExpressions + self.matchFields

    def term(self) -> NodeSelectorTerm:
        """The term. With a value that no label can have it matches nothing, whatever the operator, as
        ``NewRequirement`` of k8s.io/apimachinery (``pkg/labels/selector.go``) says."""
        if not all(_IS_LABEL_VALUE(value) for r in self.matchExpressions for value in r.values):
            return NodeSelectorTerm()
        return NodeSelectorTerm(self.matchExpressions, self.matchFields)


class NodeSelectorManifest(Struct, frozen=True, gc=False):
    nodeSelectorTerms: tuple[_Term, ...] = ()

    @property
    def is_too_large(self) -> bool:
        """Whether it has too many values (each term, and each requirement without values, counts as one
        more) or a too long text."""
        terms = self.nodeSelectorTerms
        if len(terms) > SELECTOR_ITEMS:
            return True
        items = sum(1 + sum(max(1, len(r.values)) for r in term.requirements) for term in terms)
        return items > SELECTOR_ITEMS or longest(self.texts()) > KEY

    def texts(self) -> Iterator[str]:
        requirements = (r for term in self.nodeSelectorTerms for r in term.requirements)
        return (text for r in requirements for text in (r.key, r.operator, *r.values))

    def terms(self) -> tuple[NodeSelectorTerm, ...]:
        return tuple(term.term() for term in self.nodeSelectorTerms)


_EMPTY = NodeSelectorManifest()


class LabelSelectorManifest(Struct, frozen=True, gc=False):
    matchLabels: Labels = {}
    matchExpressions: tuple[NodeSelectorRequirement, ...] = ()

    @property
    def is_too_large(self) -> bool:
        labels, expressions = self.matchLabels, self.matchExpressions
        if len(labels) + len(expressions) > BUDGET_SELECTOR:
            return True
        values = [text for requirement in expressions for text in requirement.values]
        keys = (text for requirement in expressions for text in (requirement.key, requirement.operator))
        texts = chain(labels, labels.values(), values, keys)
        return len(labels) + len(values) > BUDGET_SELECTOR or max(map(len, texts), default=0) > KEY

    def requirements(self) -> tuple[NodeSelectorRequirement, ...] | None:
        """The requirements, None if one is invalid: such a selector matches nothing.

        Source: ``LabelSelectorAsSelector`` and ``NewRequirement`` in k8s.io/apimachinery, pkg/apis/meta/v1
        and pkg/labels.
        """
        for requirement in self.matchExpressions:
            if requirement.operator not in ("In", "NotIn", "Exists", "DoesNotExist"):
                return None
            if bool(requirement.values) != (requirement.operator in ("In", "NotIn")):
                return None
        labels = sorted(self.matchLabels.items())
        return (
            *[NodeSelectorRequirement(key, "In", (value,)) for key, value in labels],
            *self.matchExpressions,
        )


class _PodTermManifest(Struct, frozen=True, gc=False):
    labelSelector: LabelSelectorManifest | None = None
    namespaces: tuple[str, ...] = ()
    namespaceSelector: LabelSelectorManifest | None = None
    topologyKey: str = ""
    matchLabelKeys: tuple[str, ...] = ()
    mismatchLabelKeys: tuple[str, ...] = ()

    def term(self, namespace: str) -> PodTerm | None:
        """The term of a pod of this namespace; None if it is not computed here."""
        selector, spaces = self.labelSelector, self.namespaceSelector
        by_more = self.matchLabelKeys or self.mismatchLabelKeys or (spaces and spaces.requirements())
        texts = (self.topologyKey, *self.namespaces[: _POD_TERMS + 1])
        if by_more or selector is None or selector.is_too_large or longest(texts) > KEY:
            return None
        if (required := selector.requirements()) is None or len(self.namespaces) > _POD_TERMS:
            return None
        return PodTerm(self.topologyKey, required, () if spaces else self.namespaces or (namespace,))


class PodAffinityManifest(Struct, frozen=True, gc=False):
    requiredDuringSchedulingIgnoredDuringExecution: tuple[_PodTermManifest, ...] = ()
    preferredDuringSchedulingIgnoredDuringExecution: Any = None

    @property
    def required(self) -> tuple[_PodTermManifest, ...]:
        return self.requiredDuringSchedulingIgnoredDuringExecution

    def terms(self, namespace: str) -> tuple[PodTerm, ...]:
        """Those that are computed here, for a pod of this namespace."""
        return tuple([term for m in self.required[:_POD_TERMS] if (term := m.term(namespace))])


class _NodeAffinity(Struct, frozen=True, gc=False):
    requiredDuringSchedulingIgnoredDuringExecution: NodeSelectorManifest | None = None


class AffinityManifest(Struct, frozen=True, gc=False):
    nodeAffinity: _NodeAffinity = _NodeAffinity()
    podAffinity: PodAffinityManifest | None = None
    podAntiAffinity: PodAffinityManifest | None = None


_IS_LABEL_VALUE = re.compile(rf"({LABEL})?").fullmatch
_Tolerations: TypeAlias = tuple[Toleration, ...]


def parse_constraints(
    node_selector: Mapping[str, str],
    affinity: AffinityManifest,
    tolerations: _Tolerations,
    owner_kind: str,
    namespace: str,
) -> SchedulingConstraints:
    """The constraints of a pod; equal ones are one object. Beyond a limit of ``limits.py`` they have only a
    problem."""
    required = affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution
    if len(node_selector) > SELECTOR_ITEMS:
        return SchedulingConstraints(owner_kind=owner_kind, problem="node selector is too large to be read")
    if max(len((required or _EMPTY).nodeSelectorTerms), len(tolerations)) > SELECTOR_ITEMS:
        return _too_large(required, owner_kind)  # not even as the key of a cache
    anti = affinity.podAntiAffinity
    return _constraints(required, tolerations, owner_kind, anti.terms(namespace) if anti else ())


def _too_large(required: NodeSelectorManifest | None, owner: str) -> SchedulingConstraints:
    what = "node affinity is" if required and required.is_too_large else "tolerations are"
    return SchedulingConstraints(owner_kind=owner, problem=f"{what} too large to be read")


_PodTerms: TypeAlias = tuple[PodTerm, ...]


def _size(
    required: NodeSelectorManifest | None, tolerations: _Tolerations, owner: str, anti: _PodTerms
) -> int:
    """Characters of all texts, plus 16 for each text and term."""
    selector = required or _EMPTY
    texts = [*selector.texts(), *(text for toleration in tolerations for text in toleration.texts)]
    texts += [text for term in anti for r in term.selector for text in (term.key, r.key, *r.values)]
    texts += [name for term in anti for name in term.namespaces]
    return 16 + sum(map(len, texts)) + 16 * (len(texts) + len(selector.nodeSelectorTerms))


@bounded_cache(8192, weigh=_size)
def _constraints(
    required: NodeSelectorManifest | None, tolerations: _Tolerations, owner: str, anti: _PodTerms
) -> SchedulingConstraints:
    # Cached because a cluster with 30,000 pods has a few hundred templates.
    if (required or _EMPTY).is_too_large or longest_text(tolerations) > KEY:
        return _too_large(required, owner)
    constraints = SchedulingConstraints(required.terms() if required else None, tolerations, owner, "", anti)
    return NO_CONSTRAINTS if constraints == NO_CONSTRAINTS else constraints


def longest_text(parts: Iterable[Taint | Toleration]) -> int:
    """The characters of the longest text in them."""
    return longest(text for part in parts for text in part.texts)


def longest(texts: Iterable[str]) -> int:
    return max(map(len, texts), default=0)
