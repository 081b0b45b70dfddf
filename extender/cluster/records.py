"""The objects that a state has taken in, for a dump of it."""

from __future__ import annotations

from extender.cluster.state import State
from extender.k8s.objects import KubernetesObject


def records_of(state: State) -> list[KubernetesObject]:
    """All objects that are known, as they are at this moment; nodes first, pods last."""
    found: list[KubernetesObject] = [*state.nodes.records()]
    found += state.devices.records()
    found += state.gangs.pod_groups()
    found += state.rights.queues.classes.by_name.values()
    found += state.budgets.records()
    found += state.pods.records()
    return found
