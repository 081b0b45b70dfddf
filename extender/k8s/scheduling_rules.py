"""Where kube-scheduler's own filters let a pod run: node selector, required node affinity, taints, cordons.

``filter`` has no need of this: it is asked about nodes that have passed these filters. ``explain`` and a
replay of a snapshot ask about all nodes, so they must check them. Semantics as in
``k8s.io/component-helpers`` (``scheduling/corev1``), v1.36.
Not read: affinity between pods, topology spread, host ports and volumes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from extender.k8s.selectors import Term
from extender.k8s.taints import Taint, Toleration, tolerated

CORDONED = "node is cordoned"
OTHER_SELECTOR = "node selector does not match"
OTHER_AFFINITY = "node affinity does not match"
NOT_TOLERATED = "node has a taint that the pod does not tolerate"

_CORDON = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


@dataclass(frozen=True, slots=True)
class Rules:
    """What a pod demands of its node, beside its node selector.

    ``terms``: one must hold, ``None`` for no affinity. ``owner`` is the kind of the object that the pod
    belongs to, "" for none. ``problem``: what of all this is too large to be read, "" for nothing; then no
    node is admitted.
    """

    terms: tuple[Term, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    owner: str = ""
    problem: str = ""

    @property
    def stays(self) -> bool:
        """Whether the pod cannot run elsewhere: a DaemonSet has one for each node, a Node's are static."""
        return self.owner in ("DaemonSet", "Node")


NO_RULES = Rules()


@dataclass(slots=True)
class NodeFilter:
    """The rules of one pod, for many nodes: what holds for equal labels or taints is worked out once."""

    rules: Rules
    selector: Sequence[tuple[str, str]] = ()
    _labels: tuple[str, ...] = field(init=False)
    _affinity: dict[tuple[str | None, ...], bool] = field(init=False, default_factory=dict)
    _tolerated: dict[tuple[Taint, ...], bool] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        terms = self.rules.terms or ()
        self._labels = tuple({one.key: None for term in terms for one in term.labels})

    def obstacle(
        self, name: str, labels: Mapping[str, str], taints: tuple[Taint, ...], unschedulable: bool
    ) -> str:
        """Why kube-scheduler would not run the pod on this node, "" where these rules admit it."""
        if self.rules.problem:
            return self.rules.problem
        if unschedulable and not self._tolerates((_CORDON,)):
            return CORDONED
        if any(labels.get(key) != value for key, value in self.selector):
            return OTHER_SELECTOR
        if not self._attracted(name, labels):
            return OTHER_AFFINITY
        return "" if self._tolerates(taints) else NOT_TOLERATED

    def _tolerates(self, taints: tuple[Taint, ...]) -> bool:
        known = self._tolerated.get(taints)
        if known is None:
            known = self._tolerated[taints] = tolerated(taints, self.rules.tolerations)
        return known

    def _attracted(self, name: str, labels: Mapping[str, str]) -> bool:
        if self.rules.terms is None:
            return True
        key = tuple([labels.get(label) for label in self._labels])
        by_name = any(term.fields for term in self.rules.terms)
        known = None if by_name else self._affinity.get(key)
        if known is None:
            known = any(term.holds(name, labels) for term in self.rules.terms)
            if not by_name:
                self._affinity[key] = known
        return known
