"""kube-scheduler's own filters for one pod: node selector, required node affinity, taints, cordons; and the
requirements that pods share.

``filter`` does not need them: kube-scheduler only sends nodes that passed. ``explain`` and the replay of a
snapshot consider all nodes, so they apply the filters here. Not implemented: affinity between pods
(``PodConflicts`` of ``cluster/other_resources.py`` has a part), topology spread and host ports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from extender.k8s.admission_objects import PersistentVolume
from extender.k8s.affinity import NodeSelectorTerm, Taint, Toleration, tolerated
from extender.k8s.manifest import Pairs, is_relevant
from extender.k8s.objects import Node, Pod
from extender.untrusted.limits import TAUGHT_LABELS


class Rule(StrEnum):
    """A rule by which kube-scheduler does not ask about a node, with its text."""

    CORDONED = "node is cordoned"
    OTHER_SELECTOR = "node selector does not match"
    OTHER_AFFINITY = "node affinity does not match"
    NO_DOMAIN = "node lacks the label of the pod's topology spread"
    OTHER_VOLUME = "a volume of the pod is on other nodes"
    NOT_TOLERATED = "node has a taint that the pod does not tolerate"
    TOO_LONG = "the pod's rules are too large to be read"
    ANTI_AFFINITY = "a pod there and this one exclude each other (anti-affinity)"
    NOT_NEAR = "the pods that this one must be near are elsewhere (affinity)"
    OTHER_NODE = "the pod's nodeName is another node"
    NOT_OFFERED = "node does not offer"
    NO_CLAIM = "a PersistentVolumeClaim of the pod does not exist"
    CLAIM_LOST = "a PersistentVolumeClaim of the pod has lost its volume"
    CLAIM_DELETED = "a PersistentVolumeClaim of the pod is being deleted"
    CLAIM_NOT_BOUND = "a PersistentVolumeClaim of the pod is not bound"
    CLAIM_IN_USE = "another pod uses a PersistentVolumeClaim of the pod (ReadWriteOncePod)"


class UnusableClaim(NamedTuple):
    """A claim that keeps its pods off all nodes by this rule."""

    rule: Rule
    name: str


_PLACED_BY = frozenset({"cpu", "memory"})
"""Resources without a domain that Stowage considers in placement."""
HOSTNAME = "kubernetes.io/hostname"
_CONDITIONS = "node.kubernetes.io/"
"""Kubernetes adds tolerations of these taints to pods, and the taints follow the node's conditions."""
CORDON = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


def has_unknown_filters(pod: Pod) -> bool:
    """Whether kube-scheduler may reject a node because of filters that Stowage does not implement: affinity
    between pods, topology spread, host ports, volumes, or resources other than CPU, memory and GPUs."""
    return pod.has_other_constraints or bool(other_resources(pod))


def other_resources(pod: Pod) -> set[str]:
    """The resources that the pod requests and Stowage ignores in placement."""
    names = {name for name, _ in (*pod.spec.container_requests, *pod.spec.overhead)}
    return {name for name in names if name not in _PLACED_BY and not is_relevant(name)}


class NodeFilter:
    """The filters for one pod and its known ``volumes``. Results are cached by the labels and taints on which
    they depend."""

    def __init__(self, pod: Pod, volumes: Iterable[PersistentVolume | UnusableClaim | None] = ()) -> None:
        self._volumes = [volume for volume in volumes if volume]
        self._constraints, self._selector = pod.scheduling_constraints, pod.spec.node_selector
        terms = self._constraints.node_affinity or ()
        self._label_keys = tuple({requirement.key: None for term in terms for requirement in term.labels})
        self._needs_name = any(term.fields for term in terms)
        self._affinity: dict[tuple[str | None, ...], bool] = {}
        self._tolerated: dict[tuple[Taint, ...], bool] = {}

    def rejection(self, node: Node) -> Rule | None:
        """The rule by which kube-scheduler would reject the node, None if these filters accept it."""
        if self._constraints.problem:
            return Rule.TOO_LONG
        if node.unschedulable and not self._tolerates((CORDON,)):
            return Rule.CORDONED
        if any(node.labels.get(key) != value for key, value in self._selector):
            return Rule.OTHER_SELECTOR
        if not self._matches_affinity(node.name, node.labels):
            return Rule.OTHER_AFFINITY
        if not self._tolerates(node.taints):
            return Rule.NOT_TOLERATED
        if any(key not in node.labels for key in self._constraints.spread_keys):
            return Rule.NO_DOMAIN
        for volume in self._volumes:
            if isinstance(volume, UnusableClaim):
                return volume.rule
            if not volume.accepts(node.name, node.labels):
                return Rule.OTHER_VOLUME
        return None

    def _tolerates(self, taints: tuple[Taint, ...]) -> bool:
        known = self._tolerated.get(taints)
        if known is None:
            known = self._tolerated[taints] = tolerated(taints, self._constraints.tolerations)
        return known

    def _matches_affinity(self, name: str, labels: Mapping[str, str]) -> bool:
        terms = self._constraints.node_affinity
        if terms is None:
            return True
        key = tuple([labels.get(label) for label in self._label_keys])
        known = None if self._needs_name else self._affinity.get(key)
        if known is None:
            known = any(term.matches(name, labels) for term in terms)
            if not self._needs_name:
                self._affinity[key] = known
        return known


@dataclass(frozen=True, slots=True)
class NodeRequirement:
    """A pod's requirements on its node: the labels of ``selector``, one of ``terms`` if there are any
    (without fields), and no taints except those of ``tolerations``. Pods of one template share them."""

    selector: Pairs = ()
    terms: tuple[NodeSelectorTerm, ...] = ()
    tolerations: tuple[Toleration, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        of_terms = (requirement.key for term in self.terms for requirement in term.labels)
        return tuple(dict.fromkeys((*(key for key, _ in self.selector), *of_terms)))

    def matches(self, labels: Mapping[str, str], taints: Sequence[Taint] = ()) -> bool:
        """Whether a node with these labels and taints meets the requirements."""
        if any(labels.get(key) != value for key, value in self.selector):
            return False
        if taints and not tolerated(taints, self.tolerations):
            return False
        return not self.terms or any(term.matches("", labels) for term in self.terms)

    def only(self, counts: Callable[[str], bool]) -> NodeRequirement:
        """The part about labels that ``counts`` accepts, and about taints."""
        selector = tuple(pair for pair in self.selector if counts(pair[0]))
        terms = tuple(
            NodeSelectorTerm(tuple(requirement for requirement in term.labels if counts(requirement.key)))
            for term in self.terms
        )
        if not all(term.labels for term in terms):
            terms = ()  # one term requires none of these labels
        return NodeRequirement(selector, terms, self.tolerations)


NO_REQUIREMENT = NodeRequirement()
"""The requirements of pods without selectors and tolerations."""


def node_requirement(pod: Pod) -> NodeRequirement | None:
    """The pod's requirements on the labels and taints of its node; None for ``NO_REQUIREMENT``.

    Requirements that name a single node are ignored, as are those on more than ``TAUGHT_LABELS`` values:
    other pods are unlikely to share them.
    """
    terms = pod.scheduling_constraints.node_affinity or ()
    tolerations = {
        toleration
        for toleration in pod.scheduling_constraints.tolerations
        if not toleration.key.startswith(_CONDITIONS)
    }
    size = len(pod.spec.node_selector) + len(tolerations)
    size += sum(1 + len(requirement.values) for term in terms for requirement in term.labels)
    if not size or size > TAUGHT_LABELS or any(term.fields for term in terms):
        return None
    ordered = tuple(sorted(tolerations, key=lambda toleration: toleration.texts))
    whole = NodeRequirement(pod.spec.node_selector, terms, ordered)
    required = whole.only(lambda key: key != HOSTNAME)
    return None if required == NO_REQUIREMENT else required
