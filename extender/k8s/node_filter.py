"""kube-scheduler's own filters for one pod: node selector, required node affinity, taints, cordons.

``filter`` does not need them: kube-scheduler only asks about nodes that passed. ``explain`` and the replay of
a snapshot look at all nodes, so they apply the filters here. Not implemented: affinity between pods, topology
spread, host ports and volumes.
"""

from __future__ import annotations

from collections.abc import Mapping

from extender.k8s.affinity import Taint, tolerated
from extender.k8s.metadata import is_relevant
from extender.k8s.objects import Node, Pod

CORDONED = "node is cordoned"
OTHER_SELECTOR = "node selector does not match"
OTHER_AFFINITY = "node affinity does not match"
NOT_TOLERATED = "node has a taint that the pod does not tolerate"

_PLACED_BY = frozenset({"cpu", "memory"})
"""Resources without a domain that Stowage places by."""
_CORDON = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


def has_unknown_filters(pod: Pod) -> bool:
    """Whether kube-scheduler may reject a node for something that Stowage does not compute: affinity between
    pods, topology spread, host ports, volumes, or resources other than CPU, memory and GPUs."""
    return pod.has_other_constraints or bool(other_resources(pod))


def other_resources(pod: Pod) -> set[str]:
    """The resources that the pod requests and Stowage does not place by."""
    names = {name for container in pod.spec.all_containers for name, _ in container.requests}
    names |= {name for name, _ in pod.spec.overhead}
    return {name for name in names if name not in _PLACED_BY and not is_relevant(name)}


class NodeFilter:
    """The filters for one pod. Results are cached by the labels and taints that they depend on."""

    def __init__(self, pod: Pod) -> None:
        self._constraints, self._selector = pod.scheduling_constraints, pod.spec.node_selector
        terms = self._constraints.node_affinity or ()
        self._label_keys = tuple({requirement.key: None for term in terms for requirement in term.labels})
        self._needs_name = any(term.fields for term in terms)
        self._affinity: dict[tuple[str | None, ...], bool] = {}
        self._tolerated: dict[tuple[Taint, ...], bool] = {}

    def rejection(self, node: Node) -> str:
        """Why kube-scheduler would reject the node, "" if these filters accept it."""
        if self._constraints.problem:
            return self._constraints.problem
        if node.unschedulable and not self._tolerates((_CORDON,)):
            return CORDONED
        if any(node.labels.get(key) != value for key, value in self._selector):
            return OTHER_SELECTOR
        if not self._matches_affinity(node.name, node.labels):
            return OTHER_AFFINITY
        return "" if self._tolerates(node.taints) else NOT_TOLERATED

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
