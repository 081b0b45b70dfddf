"""Rows where a pod may run by its rules: node selector, required node affinity and tolerations, and, with
volume claims, only its own zone."""

from __future__ import annotations

import numpy as np

from extender.cluster.census import closed_rows
from extender.cluster.state import State
from extender.k8s.objects import Pod
from packing.fleet.arrays import Flags
from packing.model.reasons import Reason

ZONE = "topology.kubernetes.io/zone"


class PermittedRows:
    """Rows where the pods of a state may run by their rules, among the ``open`` (N,) nodes, which accept
    pods."""

    def __init__(self, state: State) -> None:
        self._state, blocked = state, state.fleet.arrays.blocked
        self.open: Flags = (blocked == Reason.FITS) | (blocked == Reason.PLUGIN_BUSY)
        self.open[closed_rows(state)] = False
        self._by_rules: dict[object, Flags] = {}

    def rows_that_accept(self, pod: Pod) -> Flags:
        """(N,) whether each row accepts the pod. Pods with equal rules share the array."""
        zone = self._zone(pod.node_name) if pod.volume_claims and pod.node_name else None
        volumes = tuple(filter(None, self._state.admission.volumes_of(pod)))
        rules = (pod.spec.node_selector, pod.scheduling_constraints, zone, volumes)
        permitted = self._by_rules.get(rules)
        if permitted is None:
            fleet, node_filter = self._state.fleet, self._state.node_filter(pod)
            permitted = np.zeros(fleet.arrays.capacity, bool)
            for node in self._state.nodes.values():
                fits = not node_filter.rejection(node) and zone in (None, self._zone(node.name))
                permitted[fleet.rows[node.name]] = fits
            permitted &= self.open
            self._by_rules[rules] = permitted
        return permitted

    def _zone(self, node: str) -> str:
        return self._state.nodes[node].labels.get(ZONE, "")
