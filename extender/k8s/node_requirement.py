"""Which labels a pod requires of its node: its node selector and its required node affinity as one value.

Pods of one template require the same, so the value tells which pods insist on the same nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from extender.k8s.affinity import NodeSelectorTerm
from extender.k8s.objects import Pairs, Pod
from extender.untrusted.limits import TAUGHT_LABELS

_NAMES_ONE_NODE = "kubernetes.io/hostname"


@dataclass(frozen=True, slots=True)
class NodeRequirement:
    """The labels of ``selector``, and one of ``terms`` if there are any (without fields)."""

    selector: Pairs = ()
    terms: tuple[NodeSelectorTerm, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The labels that it depends on."""
        of_terms = (requirement.key for term in self.terms for requirement in term.labels)
        return tuple(dict.fromkeys((*(key for key, _ in self.selector), *of_terms)))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels meets it."""
        if any(labels.get(key) != value for key, value in self.selector):
            return False
        return not self.terms or any(term.matches("", labels) for term in self.terms)

    def only(self, counts: Callable[[str], bool]) -> NodeRequirement | None:
        """The part that is about these labels; None if nothing is left."""
        selector = tuple(pair for pair in self.selector if counts(pair[0]))
        terms = tuple(
            NodeSelectorTerm(tuple(requirement for requirement in term.labels if counts(requirement.key)))
            for term in self.terms
        )
        if not all(term.labels for term in terms):
            terms = ()  # one of them requires nothing of these labels
        return NodeRequirement(selector, terms) if selector or terms else None


def node_requirement(pod: Pod) -> NodeRequirement | None:
    """What the pod requires of the labels of its node; None for nothing.

    What names a single node does not count, nor does a requirement on more than ``TAUGHT_LABELS`` values: no
    other pod can be expected to share it.
    """
    terms = pod.scheduling_constraints.node_affinity or ()
    if not (pod.spec.node_selector or terms) or any(term.fields for term in terms):
        return None
    size = len(pod.spec.node_selector)
    size += sum(1 + len(requirement.values) for term in terms for requirement in term.labels)
    if size > TAUGHT_LABELS:
        return None
    whole = NodeRequirement(pod.spec.node_selector, terms)
    return whole.only(lambda key: key != _NAMES_ONE_NODE)
