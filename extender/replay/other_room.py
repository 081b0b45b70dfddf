"""What nodes have left beside what the engine counts, while pods go and come: see ``other_resources``."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from extender.cluster.other_resources import PODS, asked_by, lack_reason, left_on
from extender.cluster.state import State
from extender.k8s.objects import Pod

Flags = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]
_ONE_POD = {PODS: 1}
_LEAST = -(1 << 62)


class OtherRoom:
    """``left``: (N,) of each resource that pods ask for and nodes offer, and of ``pods``."""

    def __init__(self, rows: int, left: Mapping[str, Counts] | None = None) -> None:
        self._none = np.zeros(rows, np.int64)
        self._left = left or {PODS: np.full(rows, 1 << 30, np.int64)}

    @classmethod
    def of(cls, state: State) -> OtherRoom:
        """What the nodes of a state have left now."""
        asked = {PODS}.union(*(asked_by(pod) for pod in state.pods.values()))
        rows = state.fleet.arrays.capacity
        left = {PODS: np.zeros(rows, np.int64)}
        for node in state.nodes.values():
            offered = asked & {PODS, *node.allocatable}
            for name, amount in left_on(state, node, offered).items():
                of_nodes = left.setdefault(name, np.zeros(rows, np.int64))
                of_nodes[state.fleet.rows[node.name]] = max(amount, _LEAST)
        return cls(rows, left)

    def pods_left(self, row: int) -> int:
        """How many more pods the node takes."""
        return int(self._left[PODS][row])

    def fits(self, pod: Pod | None) -> Flags:
        """(N,) where the node has enough for the pod; one of a trace (None) is only one of its pods."""
        enough = [self._left.get(name, self._none) >= amount for name, amount in _asked(pod).items()]
        fits: Flags = np.logical_and.reduce(enough)
        return fits

    def why_not(self, pod: Pod | None, rows: Flags) -> str:
        """What most of these rows (N,) have too little of, "" if none has."""
        lacking = {
            name: int((rows & (self._left.get(name, self._none) < amount)).sum())
            for name, amount in _asked(pod).items()
        }
        name = max(lacking, key=lambda one: lacking[one])
        return lack_reason(name, offered=name in self._left) if lacking[name] else ""

    def take(self, pod: Pod | None, row: int, times: int = 1) -> None:
        """The pod takes what it asks for; with ``times`` -1 it gives that back."""
        for name, amount in _asked(pod).items():
            if name in self._left:
                self._left[name][row] -= times * amount


def _asked(pod: Pod | None) -> Mapping[str, int]:
    return asked_by(pod) if pod else _ONE_POD
