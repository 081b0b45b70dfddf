"""The GPU pods that run on a cluster: those that can be placed again, and why the others stay.

A pod goes where its node selector, its required node affinity and its tolerations allow, with volume claims
only within its zone, or back to its own node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from extender.cluster.factory import state_of
from extender.cluster.policy_refresh import choose_node_sets_now
from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.node_filter import NodeFilter, node_requirement
from extender.k8s.objects import Pod
from extender.replay.movable import Stays, moment_of, why_it_stays
from extender.replay.traces import BadInput
from extender.settings import Settings
from extender.source.snapshot import SnapshotSource, read
from packing.fleet.node_usage import Allocation
from packing.model.request import Request

Flags = npt.NDArray[np.bool_]
ZONE = "topology.kubernetes.io/zone"


@dataclass(frozen=True, slots=True)
class MovablePod:
    """A pod that can be placed again: its request, what it adds to the demand mix, the rows (N,) that its
    rules allow, and what it holds today on the row ``home``."""

    key: str
    started: float
    request: Request
    demand: Request
    rows: Flags
    held: Allocation

    @property
    def home(self) -> int:
        return self.held.row

    def allowed(self) -> Flags:
        """(N,) the rows where it may go."""
        allowed = self.rows.copy()
        allowed[self.home] = True
        return allowed


class RunningPods:
    """The GPU pods of a state: ``movable`` in the order in which they started (the largest first of those
    that started in the same second), and ``staying``, why each of the others stays, by key.

    ``open`` (N,): the nodes that take pods now; ``gpus`` (G, N): the GPUs of these nodes. Raises ``BadInput``
    if there are none. ``real_moves``: pods are evicted, so that those without a controller stay.
    ``without_gpu``: also the pods without a GPU.
    """

    def __init__(
        self,
        state: State,
        name: str,
        *,
        real_moves: bool = False,
        without_gpu: bool = False,
        now: float = 0.0,
    ) -> None:
        self.name, self.state, self._real_moves, self._all = name, state, real_moves, without_gpu
        fleet = state.fleet
        cordoned = [fleet.rows[node.name] for node in state.nodes.values() if node.unschedulable]
        self.open: Flags = fleet.arrays.blocked == 0
        self.open[cordoned] = False
        self.gpus: Flags = (fleet.arrays.compute_capacity > 0) & self.open
        if not self.gpus.any():
            raise BadInput(f"{name}: no node that accepts pods has a GPU")
        choose_node_sets_now(state)
        self._now = now or moment_of(state.pods.values())
        self._rows_by_constraints: dict[object, Flags] = {}
        self.movable: list[MovablePod] = []
        self.staying: dict[str, str] = {}
        for pod in state.pods.values():
            self._sort_in(pod)
        self.movable.sort(key=lambda one: (one.started, -one.request.gpus, one.key))

    @classmethod
    def of_files(cls, paths: Sequence[Path], settings: Settings) -> Self:
        """Those of a snapshot. Raises ``BadInput``, ``Unavailable`` and ``SettingsError``."""
        state = state_of(settings)
        SnapshotSource(read(paths), paths[0].stem).start(state.apply)
        try:
            return cls(state, paths[0].stem)
        except BadInput as error:
            _, _, problem = str(error).partition(": ")
            raise BadInput(f"{', '.join(map(str, paths))}: {problem}") from None

    def _sort_in(self, pod: Pod) -> None:
        held = self.state.allocations.allocation_of(pod.key)
        if held is None:
            return
        request = _request(pod)
        has_gpu = request.wants_gpu if request else bool(held.devices or held.shares or held.slices)
        if not (has_gpu or pod.spec.claims or self._all):
            return
        if why := self._why_it_stays(pod, request, held.row):
            self.staying[pod.key] = str(why)
        elif request:
            demand = replace(request, node_set=node_requirement(pod))
            started = pod.started or pod.created
            self.movable.append(
                MovablePod(pod.key, started, request, demand, self.rows_that_accept(pod), held)
            )

    def _why_it_stays(self, pod: Pod, request: Request | None, row: int) -> str | None:
        if not self.open[row]:
            return Stays.CLOSED_NODE
        why = why_it_stays(pod, self._now, must_be_created_again=self._real_moves)
        return why or (None if request else Stays.UNREADABLE)

    def rows_that_accept(self, pod: Pod) -> Flags:
        """(N,) the rows that the pod's rules allow; pods with equal rules share the array."""
        zone = self._zone(pod.node_name) if pod.has_volume_claims and pod.node_name else None
        rules = (pod.spec.node_selector, pod.scheduling_constraints, zone)
        allowed = self._rows_by_constraints.get(rules)
        if allowed is None:
            fleet, node_filter = self.state.fleet, NodeFilter(pod)
            allowed = np.zeros(fleet.arrays.capacity, bool)
            for node in self.state.nodes.values():
                fits = not node_filter.rejection(node) and zone in (None, self._zone(node.name))
                allowed[fleet.rows[node.name]] = fits
            allowed &= self.open
            self._rows_by_constraints[rules] = allowed
        return allowed

    def _zone(self, node: str) -> str:
        return self.state.nodes[node].labels.get(ZONE, "")


def _request(pod: Pod) -> Request | None:
    """What the pod asks for, None if that cannot be read."""
    try:
        return request_of(pod)
    except RequestError:
        return None
