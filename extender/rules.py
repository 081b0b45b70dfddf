"""Where kube-scheduler's own filters let a pod run: node selector, required node affinity, taints, cordons.

The service has no need of this, as it is asked about nodes that have passed these filters. A replay of a
snapshot moves pods by itself, so it must read them. Semantics as in ``k8s.io/component-helpers``
(``scheduling/corev1``), v1.36. Not read: affinity between pods, topology spread, host ports and volumes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import lru_cache

from typing_extensions import TypedDict

from extender.manifests import WireMetadata, WirePod, WirePodSpec, WireText
from extender.objects import Node, Pod
from extender.selectors import Expression, Term
from extender.taints import Taint, Toleration, tolerated

_CORDON = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


@dataclass(frozen=True, slots=True)
class Rules:
    """What a pod demands of its node. ``terms``: one must hold, ``None`` for no affinity. ``owner`` is the
    kind of the object that the pod belongs to, "" for none."""

    terms: tuple[Term, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    owner: str = ""

    @property
    def stays(self) -> bool:
        """Whether the pod cannot run elsewhere: a DaemonSet has one for each node, a Node's are static."""
        return self.owner in ("DaemonSet", "Node")


@dataclass(frozen=True, slots=True)
class RuledPod(Pod):
    """A pod with the rules for its node."""

    rules: Rules = Rules()


def admits(node: Node, pod: Pod) -> bool:
    """Whether kube-scheduler would ask about this node for this pod, as far as these rules go."""
    if any(node.labels.get(key) != value for key, value in pod.spec.node_selector):
        return False
    rules = pod.rules if isinstance(pod, RuledPod) else Rules()
    if rules.terms is not None and not any(term.holds(node.name, node.labels) for term in rules.terms):
        return False
    return tolerated((*node.taints, *([_CORDON] if node.unschedulable else ())), rules.tolerations)


class _Owner(TypedDict, total=False):
    kind: str | None
    controller: bool | None


class _Metadata(WireMetadata, total=False):
    ownerReferences: list[_Owner] | None


class _Expression(TypedDict, total=False):
    key: str | None
    operator: str | None
    values: list[WireText] | None


class _Term(TypedDict, total=False):
    matchExpressions: list[_Expression] | None
    matchFields: list[_Expression] | None


class _Required(TypedDict, total=False):
    nodeSelectorTerms: list[_Term] | None


class _NodeAffinity(TypedDict, total=False):
    requiredDuringSchedulingIgnoredDuringExecution: _Required | None


class _Affinity(TypedDict, total=False):
    nodeAffinity: _NodeAffinity | None


class _Toleration(TypedDict, total=False):
    key: str | None
    operator: str | None
    value: WireText | None
    effect: str | None


class _PodSpec(WirePodSpec, total=False):
    affinity: _Affinity | None
    tolerations: list[_Toleration] | None


class WireRuledPod(WirePod):
    """A Pod of the wire, its rules included."""

    metadata: _Metadata | None = None
    spec: _PodSpec | None = None

    def record(self) -> RuledPod:
        """The pod that this manifest describes."""
        pod = WirePod.record(self)
        metadata, spec = self.metadata or {}, self.spec or {}
        rules = Rules(
            _terms(spec.get("affinity") or {}),
            tuple(_toleration(one) for one in spec.get("tolerations") or ()),
            _owner(metadata.get("ownerReferences") or ()),
        )
        return RuledPod(**{one.name: getattr(pod, one.name) for one in fields(pod)}, rules=_shared(rules))


@lru_cache(maxsize=8192)
def _shared(rules: Rules) -> Rules:
    # As with specs: the first of equal rules stands for all of them.
    return rules


def _terms(affinity: _Affinity) -> tuple[Term, ...] | None:
    of_nodes = affinity.get("nodeAffinity") or {}
    required = of_nodes.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return None
    return tuple(
        Term(_expressions(term.get("matchExpressions") or ()), _expressions(term.get("matchFields") or ()))
        for term in required.get("nodeSelectorTerms") or ()
    )


def _expressions(found: Iterable[_Expression]) -> tuple[Expression, ...]:
    return tuple(
        Expression(one.get("key") or "", one.get("operator") or "", tuple(one.get("values") or ()))
        for one in found
    )


def _toleration(found: _Toleration) -> Toleration:
    return Toleration(*(str(found.get(key) or "") for key in ("key", "operator", "value", "effect")))


def _owner(owners: Iterable[_Owner]) -> str:
    """The kind of the controller, or of the one owner where none is marked as such."""
    kinds = [(one.get("controller") is True, one.get("kind") or "") for one in owners]
    return sys.intern(max(kinds, default=(False, ""))[1])
