"""Requirements of a pod or a device on its node: node selector terms, and tolerations of taints.

Semantics of Kubernetes v1.36: node selector terms as in k8s.io/component-helpers
``scheduling/corev1/nodeaffinity``; taints as ``ToleratesTaint`` of k8s.io/api ``core/v1`` and of
k8s.io/dynamic-resource-allocation ``resourceclaim`` (v0.36.3). Manifests are decoded directly into
requirements, taints and tolerations, whose fields have the same names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from msgspec import Struct

from extender.k8s.manifest import Labels
from extender.untrusted.bounded_cache import bounded_cache
from extender.untrusted.limits import BUDGET_SELECTOR, KEY, LABEL, LABEL_SELECTOR, SELECTOR_ITEMS, quoted

_INTEGER = re.compile(r"[-+]?[0-9]{1,63}")
"""Operands of a selector's ``Gt`` and ``Lt``, in the syntax of Go's ``ParseInt``; a label has at most 63
characters."""
_POD_TERMS = 16
"""Maximum number of terms of an anti-affinity, and of namespaces in each."""
_CANONICAL = re.compile(r"0|-?[1-9][0-9]*")


OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")


@dataclass(frozen=True, slots=True)
class NodeSelectorRequirement:
    """A requirement on one label of a node: ``operator`` is one of ``OPERATORS``."""

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


_REQUIREMENT = re.compile(r"(!?)([\w./-]+)(?:\s*(==?|!=)\s*([\w.-]*)|\s+(in|notin)\s*\(([^()]*)\))?")
_MANY = re.compile(r",(?![^(]*\))")


def label_requirements(text: str) -> tuple[NodeSelectorRequirement, ...]:
    """A selector as after ``kubectl -l``: ``a=b,c!=d,e in (f,g),!h`` (``Parse`` of k8s.io/apimachinery,
    pkg/labels). Raises ``ValueError``."""
    requirements = []
    for part in _MANY.split(text) if len(text) <= LABEL_SELECTOR else ("",):
        if not (match := _REQUIREMENT.fullmatch(part.strip())) or (match[1] and (match[3] or match[5])):
            raise ValueError(
                f"invalid label selector {quoted(text)}; expected one such as app=train,tier!=dev"
            )
        absent, key, equals, value, among, values = match.groups()
        if equals or among:
            operator = "NotIn" if (equals or among) in ("!=", "notin") else "In"
            listed = [value] if equals else [word.strip() for word in values.split(",")]
        else:
            operator, listed = "DoesNotExist" if absent else "Exists", []
        requirements.append(NodeSelectorRequirement(key, operator, tuple(listed)))
    return tuple(requirements)


def _compares(value: str, operator: str, bound: str) -> bool:
    """Whether an integer is greater (``Gt``) or less than another; False if one of them is not an integer."""
    number, limit = integer(value), integer(bound)
    if number is None or limit is None:
        return False
    return number > limit if operator == "Gt" else number < limit


def integer(text: str) -> int | None:
    """The number, None if Go's ``ParseInt`` reads none."""
    number = int(text) if _INTEGER.fullmatch(text) else None
    return number if number is not None and -(2**63) <= number < 2**63 else None


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """Requirements that must all match: on labels, and on fields (only ``metadata.name`` exists)."""

    labels: tuple[NodeSelectorRequirement, ...] = ()
    fields: tuple[NodeSelectorRequirement, ...] = ()

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether a node with this name and these labels matches the term. An empty term matches no node."""
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
        """Whether the effect is stronger than a preference."""
        return self.effect in ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class Toleration:
    """Tolerates taints with this key, value and effect. An empty key or effect matches any.

    ``Gt`` and ``Lt`` tolerate taints whose value is an integer greater or less than ``value``, both in
    canonical form, without plus sign or leading zeros (``compareNumericValues`` of k8s.io/api v0.37.1,
    ``core/v1/toleration.go``; since Kubernetes 1.35).
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
    """A required affinity or anti-affinity to pods with these labels: within one domain, which is a value of
    the node's label ``key``, or not. ``namespaces``: () means all."""

    key: str
    selector: tuple[NodeSelectorRequirement, ...]
    namespaces: tuple[str, ...] = ()

    def selects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether the term selects a pod of this namespace with these labels."""
        is_there = not self.namespaces or namespace in self.namespaces
        return is_there and all(requirement.matches(labels) for requirement in self.selector)


PINNED_OWNERS = ("DaemonSet", "Node")
"""Kinds of controllers whose pods are tied to one node; those of a Node are static pods."""


@dataclass(frozen=True, slots=True)
class SchedulingConstraints:
    """Nodes on which kube-scheduler may run a pod, apart from the pod's node selector.

    ``node_affinity``: one of the terms must match; None means no affinity. ``anti_affinity`` and
    ``affinity``: the supported terms to other pods. ``spread_keys``: labels that a node must have because
    the pod's topology spread requires it. ``owner_kind`` is the kind of the pod's controller, ""
    for none. ``problem`` names the part that is too large to read, in which case no node is accepted; ""
    for none.
    """

    node_affinity: tuple[NodeSelectorTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    owner_kind: str = ""
    problem: str = ""
    anti_affinity: tuple[PodTerm, ...] = ()
    affinity: tuple[PodTerm, ...] = ()
    spread_keys: tuple[str, ...] = ()

    @property
    def pinned_to_node(self) -> bool:
        """Whether the pod can run only on its present node."""
        return self.owner_kind in PINNED_OWNERS


NO_CONSTRAINTS = SchedulingConstraints()


class _Term(Struct, frozen=True, gc=False):
    matchExpressions: tuple[NodeSelectorRequirement, ...] = ()
    matchFields: tuple[NodeSelectorRequirement, ...] = ()

    @property
    def requirements(self) -> tuple[NodeSelectorRequirement, ...]:
        return self.matchExpressions + self.matchFields

    def term(self) -> NodeSelectorTerm:
        """The term. With an invalid label value it matches nothing, whatever the operator
        (``NewRequirement`` of k8s.io/apimachinery, ``pkg/labels/selector.go``)."""
        if not all(_IS_LABEL_VALUE(value) for r in self.matchExpressions for value in r.values):
            return NodeSelectorTerm()
        return NodeSelectorTerm(self.matchExpressions, self.matchFields)


class NodeSelectorManifest(Struct, frozen=True, gc=False):
    nodeSelectorTerms: tuple[_Term, ...] = ()

    @property
    def is_too_large(self) -> bool:
        """Whether it has too many values (each term, and each requirement without values, counts as one
        more), or a text that is too long."""
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
        """The requirements, None if one is invalid: then the selector matches nothing.

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
        """The term of a pod of this namespace; None if it is not supported."""
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
        """The supported terms, for a pod of this namespace."""
        return tuple([term for m in self.required[:_POD_TERMS] if (term := m.term(namespace))])


class _NodeAffinity(Struct, frozen=True, gc=False):
    requiredDuringSchedulingIgnoredDuringExecution: NodeSelectorManifest | None = None


class AffinityManifest(Struct, frozen=True, gc=False):
    nodeAffinity: _NodeAffinity = _NodeAffinity()
    podAffinity: PodAffinityManifest | None = None
    podAntiAffinity: PodAffinityManifest | None = None


_IS_LABEL_VALUE = re.compile(rf"({LABEL})?").fullmatch


def parse_constraints(
    node_selector: Mapping[str, str],
    affinity: AffinityManifest,
    tolerations: tuple[Toleration, ...],
    owner_kind: str,
    namespace: str,
    spread_keys: tuple[str, ...] = (),
) -> SchedulingConstraints:
    """The constraints of a pod; equal ones are one object. If they exceed a limit of ``limits.py``, they have
    only a problem."""
    required = affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution
    if len(node_selector) > SELECTOR_ITEMS:
        return SchedulingConstraints(owner_kind=owner_kind, problem="node selector is too large to be read")
    if max(len((required or _EMPTY).nodeSelectorTerms), len(tolerations)) > SELECTOR_ITEMS:
        return _too_large(required, owner_kind)  # too large even for the key of a cache
    anti = affinity.podAntiAffinity.terms(namespace) if affinity.podAntiAffinity else ()
    near = affinity.podAffinity.terms(namespace) if affinity.podAffinity else ()
    return _constraints(_Parts(required, tolerations, owner_kind, anti, near, spread_keys))


def _too_large(required: NodeSelectorManifest | None, owner: str) -> SchedulingConstraints:
    what = "node affinity is" if required and required.is_too_large else "tolerations are"
    return SchedulingConstraints(owner_kind=owner, problem=f"{what} too large to be read")


class _Parts(NamedTuple):
    required: NodeSelectorManifest | None
    tolerations: tuple[Toleration, ...]
    owner: str
    anti: tuple[PodTerm, ...]
    near: tuple[PodTerm, ...]
    spread_keys: tuple[str, ...]

    def size(self) -> int:
        """Total characters of all texts, plus 16 for each text and term."""
        selector, terms = self.required or _EMPTY, self.anti + self.near
        texts = [*selector.texts(), *(text for toleration in self.tolerations for text in toleration.texts)]
        texts += [text for term in terms for r in term.selector for text in (term.key, r.key, *r.values)]
        texts += [*(name for term in terms for name in term.namespaces), *self.spread_keys]
        return 16 + sum(map(len, texts)) + 16 * (len(texts) + len(selector.nodeSelectorTerms))


@bounded_cache(8192, weigh=lambda parts: parts.size())
def _constraints(parts: _Parts) -> SchedulingConstraints:
    # Cached because a cluster with 30,000 pods has a few hundred templates.
    required, tolerations, owner = parts[:3]
    if (required or _EMPTY).is_too_large or longest_text(tolerations) > KEY:
        return _too_large(required, owner)
    terms = required.terms() if required else None
    constraints = SchedulingConstraints(
        terms, tolerations, owner, "", parts.anti, parts.near, parts.spread_keys
    )
    return NO_CONSTRAINTS if constraints == NO_CONSTRAINTS else constraints


def longest_text(parts: Iterable[Taint | Toleration]) -> int:
    """Characters of the longest text in them."""
    return longest(text for part in parts for text in part.texts)


def longest(texts: Iterable[str]) -> int:
    return max(map(len, texts), default=0)
