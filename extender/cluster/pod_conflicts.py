"""Running pods that keep a pod out of their topology domains or that it must be near (required affinity,
kube-scheduler's ``InterPodAffinity``), or off all nodes because they use its claim
(``VolumeRestrictions``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from extender.cluster.state import State
from extender.k8s.objects import Node, Pod


class PodConflicts:
    """Running pods with which a pod must not share a domain, because of its own anti-affinity or theirs, and
    those of which it needs the claim. ``gone``: the UIDs of pods that do not count."""

    def __init__(self, state: State, pod: Pod, gone: Collection[str] = ()) -> None:
        self._by_domain: defaultdict[tuple[str, str], list[Pod]] = defaultdict(list)
        own, pods = pod.scheduling_constraints.anti_affinity, state.pods
        others = pods.values() if own else (pods[key] for key in pods.anti_affine)
        for other in (other for other in others if other.node_name and other.uid not in (pod.uid, *gone)):
            labels, theirs = state.nodes.labels_of(other.node_name), other.scheduling_constraints
            keys = [term.key for term in own if term.selects(other.namespace, other.labels)]
            keys += [t.key for t in theirs.anti_affinity if t.selects(pod.namespace, pod.labels)]
            for key in keys:
                if key in labels:
                    self._by_domain[key, labels[key]].append(other)
        self._keys = {key for key, _ in self._by_domain}
        names = pod.volume_claims
        self._users = [user for name in names for user in state.admission.users_of_one(pod, name)]
        self._users = [user for user in self._users if user.uid not in gone]

        self._near = dict(self._domains_near(state, pod, gone))

    def _domains_near(
        self, state: State, pod: Pod, gone: Collection[str]
    ) -> Iterator[tuple[str, frozenset[str] | None]]:
        """The domains in which the pods are that this one requires, by key; None: in any, for the first of
        pods that require each other."""
        terms = pod.scheduling_constraints.affinity

        def meets(other: Pod) -> bool:
            return all(term.selects(other.namespace, other.labels) for term in terms)

        bound = (other for other in state.pods.values() if other.node_name and other.uid not in gone)
        nodes = [state.nodes.labels_of(other.node_name) for other in bound if meets(other)] if terms else []
        for term in terms:
            domains = frozenset(labels[term.key] for labels in nodes if term.key in labels)
            yield term.key, None if not nodes and meets(pod) else domains

    def far(self, node: Node) -> str:
        """The key of the domain that is not one of the pods that this one requires, "" for none."""
        far = (
            key
            for key, domains in self._near.items()
            if key not in node.labels or (domains is not None and node.labels[key] not in domains)
        )
        return next(far, "")

    def on(self, node: Node) -> list[Pod]:
        domains = ((key, node.labels.get(key, "")) for key in self._keys)
        return [pod for domain in domains for pod in self._by_domain.get(domain, ())] + self._users
