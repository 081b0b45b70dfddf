"""``stowage replay --snapshot``: the running GPU pods of a cluster, placed again on the same nodes.

The GPU pods are taken off their nodes and placed one by one, in the order in which they started; the policy
learns and updates its prices as in the service. A pod goes where its node selector, its required node
affinity and its tolerations allow, or back to its own node.

Some pods stay and keep what they hold: pods without GPU, pods of DaemonSets, static pods, pods with
ResourceClaims (kube-scheduler allocates their devices, which are not in the fleet), and all pods on nodes
that accept no pods now (cordoned, MIG reconfiguration in progress, not readable).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from extender.cluster.factory import prior_of, state_of
from extender.cluster.policy_refresh import choose_node_sets_now
from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.node_filter import NodeFilter
from extender.k8s.node_requirement import node_requirement
from extender.k8s.objects import Pod
from extender.replay.runs import Progress
from extender.replay.traces import BadInput
from extender.settings import Settings
from extender.source.snapshot import SnapshotSource, read
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.stranded import whole_gpus, whole_nodes
from packing.model.request import Request
from packing.policies.registry import POLICIES
from packing.replay.pick_node import NodePicker
from packing.replay.placer import Placer

Flags = npt.NDArray[np.bool_]
_TODAY = "today"


@dataclass(frozen=True, slots=True)
class _MovablePod:
    """A pod that is placed again: its request, what it adds to the demand mix, the rows (N,) that its rules
    allow, and the row where it runs."""

    key: str
    request: Request
    demand: Request
    rows: Flags
    home: int

    def allowed(self) -> Flags:
        """(N,) the rows where it may go."""
        allowed = self.rows.copy()
        allowed[self.home] = True
        return allowed


class _Cluster:
    """The state of a snapshot, the GPUs that count, and the pods that can be placed again."""

    def __init__(self, paths: Sequence[Path], settings: Settings) -> None:
        self.name = paths[0].stem
        self.state = state_of(settings)
        SnapshotSource(read(paths), self.name).start(self.state.apply)
        fleet = self.state.fleet
        cordoned = [fleet.rows[node.name] for node in self.state.nodes.values() if node.unschedulable]
        self.open: Flags = fleet.arrays.blocked == 0  # (N,): takes pods
        self.open[cordoned] = False
        self.gpus: Flags = (fleet.arrays.compute_capacity > 0) & self.open  # (G, N)
        if not self.gpus.any():
            raise BadInput(f"{', '.join(map(str, paths))}: no node that accepts pods has a GPU")
        choose_node_sets_now(self.state)
        self._rows_by_constraints: dict[object, Flags] = {}
        self.pods = self._movable_pods()

    def _movable_pods(self) -> list[_MovablePod]:
        """In the order in which they started."""
        pods = sorted(self.state.pods.values(), key=lambda pod: (pod.started or pod.created, pod.key))
        requests = ((pod, self._request(pod)) for pod in pods)
        rows = self.state.fleet.rows
        return [
            _MovablePod(
                pod.key,
                request,
                replace(request, node_set=node_requirement(pod)),
                self._allowed_rows(pod),
                rows[pod.node_name],
            )
            for pod, request in requests
            if request
        ]

    def _request(self, pod: Pod) -> Request | None:
        """The request of a pod that can be placed again, None for one that stays."""
        row = self.state.fleet.rows.get(pod.node_name, -1)
        if row < 0 or not self.open[row] or pod.scheduling_constraints.pinned_to_node or pod.spec.claims:
            return None
        try:
            request = request_of(pod)
        except RequestError:
            return None
        return request if request.wants_gpu else None

    def _allowed_rows(self, pod: Pod) -> Flags:
        """(N,) the rows that the pod's constraints allow; pods with equal constraints share the array."""
        constraints = (pod.spec.node_selector, pod.scheduling_constraints)
        allowed = self._rows_by_constraints.get(constraints)
        if allowed is None:
            allowed = np.zeros(self.state.fleet.arrays.capacity, bool)
            node_filter = NodeFilter(pod)
            for node in self.state.nodes.values():
                allowed[self.state.fleet.rows[node.name]] = not node_filter.rejection(node)
            allowed &= self.open
            self._rows_by_constraints[constraints] = allowed
        return allowed

    @contextmanager
    def emptied(self) -> Iterator[Fleet]:
        """The fleet without the pods that are placed again; afterwards it is exactly as before."""
        held = (self.state.allocations.allocation_of(pod.key) for pod in self.pods)
        with self.state.fleet.without([*filter(None, held)]):
            yield self.state.fleet


def replay_snapshot(
    paths: Sequence[Path], policies: Sequence[str], settings: Settings, sample: int, progress: Progress
) -> list[dict[str, Any]]:
    """Rows, one for the cluster as it is and one per policy: whole GPUs and whole nodes free, and the pods
    that fit nowhere. ``sample`` is the number of fitting nodes that are looked at, 0 for all.

    Raises ``BadInput``, ``Unavailable`` and ``SettingsError``.
    """
    cluster = _Cluster(paths, settings)
    order = np.argsort(cluster.state.fleet.arrays.order, kind="stable")
    rows = [_row(cluster, _TODAY, [], 0.0)]
    prior, minimum = prior_of(settings.demand), settings.minimum_slice_milli
    for name in policies:
        started = time.perf_counter()
        policy = POLICIES[name](prior=prior, minimum_milli=minimum)
        with cluster.emptied() as fleet:
            placer = Placer(fleet, policy, NodePicker(order, sample=sample))
            report = partial(progress, f"{cluster.name} {name}")
            allocations, failed = _place_all(placer, cluster.pods, report)
            rows.append(_row(cluster, name, failed, time.perf_counter() - started))
            for allocation in allocations:
                fleet.give_back(allocation)
    return rows


def _place_all(
    placer: Placer, pods: Sequence[_MovablePod], report: Callable[[float], None]
) -> tuple[list[Allocation], list[str]]:
    """Place each pod in turn: what they hold now, and the keys of the pods that fit nowhere."""
    allocations: list[Allocation] = []
    failed: list[str] = []
    for i, pod in enumerate(pods):
        placer.arrive(pod.demand)
        if allocation := placer.place(pod.request, pod.allowed()):
            allocations.append(allocation)
        else:
            failed.append(pod.key)
        report(i / len(pods))
    report(1.0)
    return allocations, failed


def _row(cluster: _Cluster, policy: str, failed: list[str], seconds: float) -> dict[str, Any]:
    """The figures of the fleet as it is now."""
    arrays, counted = cluster.state.fleet.arrays, cluster.gpus
    whole = whole_gpus(arrays) & cluster.open
    return {
        "trace": cluster.name,
        "policy": policy,
        "nodes": int(counted.any(axis=0).sum()),
        "gpus": int(counted.sum()),
        "whole_gpus_free": int(whole.sum()),
        "whole_nodes_free": int(whole_nodes(arrays, whole).sum()),
        "pods": len(cluster.pods),
        "failed_pods": len(failed),
        "no_place": failed,
        "seconds": round(seconds, 3),
    }
