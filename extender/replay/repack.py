"""``stowage replay --snapshot``: the GPU pods that run in a cluster, packed again from empty.

What cannot move stays and keeps what it holds: pods without GPU, pods of DaemonSets, static pods, pods with
ResourceClaims (kube-scheduler gives them their devices, which are not in the fleet), and all pods on nodes
that take nothing now (cordoned, being re-partitioned, not readable). The others are taken off their nodes and
placed again one by one, in the order in which they started, by the policy under its own rules of learning and
pricing, as the service does it. Nothing is invented: a pod goes where its node selector, its required node
affinity and its tolerations allow, or back to the node that it came from.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from extender.cluster.factory import prior_of, state_of
from extender.cluster.policy_refresh import LEARNT, MOVED
from extender.dialects.pod_request import RequestError, request_of
from extender.k8s.objects import Pod
from extender.k8s.scheduling_rules import NodeFilter
from extender.replay.traces import BadTrace
from extender.settings import Settings
from extender.source.snapshot import SnapshotSource, read
from packing.fleet.feasibility import reasons_for
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import allocation_of
from packing.model.request import Request
from packing.policies.registry import POLICIES, Policy, known_mix
from packing.replay.pick_node import Pick

Progress = Callable[[str, float], None]
Flags = npt.NDArray[np.bool_]
_TODAY = "today"


@dataclass(frozen=True, slots=True)
class _Moved:
    """A pod that is placed again: the rows (N,) that its rules admit, shared with its like, and its own row,
    where it may always go back to."""

    key: str
    request: Request
    rows: Flags
    home: int


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """How a cluster is packed again; ``sample`` 0 looks at every node."""

    settings: Settings = field(default_factory=Settings)
    sample: int = 0
    known_mix: bool = False


class _Cluster:
    """A snapshot as it stands: its state, the nodes that count, and the pods that can be placed again."""

    def __init__(self, paths: Sequence[Path], settings: Settings) -> None:
        self.name = paths[0].stem
        self.state = state_of(settings)
        SnapshotSource(read(paths), self.name).start(self.state.apply)
        fleet = self.state.fleet
        cordoned = [fleet.rows[node.name] for node in self.state.nodes.values() if node.unschedulable]
        self.open: Flags = fleet.arrays.blocked == 0
        self.open[cordoned] = False
        self.gpus: Flags = (fleet.arrays.compute_capacity > 0) & self.open
        if not self.gpus.any():
            raise BadTrace(f"{', '.join(map(str, paths))}: no node that takes pods has a GPU")
        self._admitted: dict[object, Flags] = {}
        self.moved = self._movable()

    def _movable(self) -> list[_Moved]:
        """The pods that move, in the order in which they started."""
        pods = sorted(self.state.pods.values(), key=lambda pod: (pod.started or pod.created, pod.key))
        requests = ((pod, self._request(pod)) for pod in pods)
        rows = self.state.fleet.rows
        return [
            _Moved(pod.key, request, self._rows(pod), rows[pod.node_name])
            for pod, request in requests
            if request
        ]

    def _request(self, pod: Pod) -> Request | None:
        """What a pod that can move asks for."""
        row = self.state.fleet.rows.get(pod.node_name, -1)
        if row < 0 or not self.open[row] or pod.rules.stays or pod.spec.claims:
            return None
        try:
            request = request_of(pod)
        except RequestError:
            return None
        return request if request.wants_gpu else None

    def _rows(self, pod: Pod) -> Flags:
        """(N,) the rows that the pod's rules admit."""
        rules = (pod.spec.node_selector, pod.rules)
        admitted = self._admitted.get(rules)
        if admitted is None:
            admitted = np.zeros(self.state.fleet.arrays.capacity, bool)
            admits = NodeFilter(pod.rules, pod.spec.node_selector)
            for node in self.state.nodes.values():
                obstacle = admits.obstacle(node.name, node.labels, node.taints, node.unschedulable)
                admitted[self.state.fleet.rows[node.name]] = not obstacle
            admitted &= self.open
            self._admitted[rules] = admitted
        return admitted

    @contextmanager
    def emptied(self) -> Iterator[Fleet]:
        """The fleet without the pods that move; the exact old state after the block."""
        taken = (self.state.allocations.taken(pod.key) for pod in self.moved)
        with self.state.fleet.without([held for held in taken if held is not None]):
            yield self.state.fleet


def replay_snapshot(
    paths: Sequence[Path], policies: Sequence[str], options: SnapshotOptions, progress: Progress
) -> list[dict[str, Any]]:
    """Rows, one for the cluster as it is and one per policy: whole GPUs and whole nodes free, and the pods
    that found no place. Raises ``BadTrace``, ``Unavailable`` and ``SettingsError``."""
    cluster = _Cluster(paths, options.settings)
    rows = [_row(cluster, _TODAY, [], 0.0)]
    counts = Counter(pod.request for pod in cluster.moved)
    prior, minimum = prior_of(options.settings.demand), options.settings.minimum_slice_milli
    for name in policies:
        mix = known_mix(name, counts) if options.known_mix else None
        policy, started = POLICIES[name](mix, prior=prior, minimum_milli=minimum), time.perf_counter()
        pick = Pick(np.argsort(cluster.state.fleet.arrays.order, kind="stable"), sample=options.sample)
        report = lambda part, name=name: progress(f"{cluster.name} {name}", part)  # noqa: E731
        with cluster.emptied() as fleet:
            placed, left = _pack(fleet, policy, cluster.moved, pick, report)
            seconds = time.perf_counter() - started
            rows.append(_row(cluster, name, left, seconds))
            for held in placed:
                fleet.give_back(held)
    return rows


def _pack(
    fleet: Fleet, policy: Policy, pods: Sequence[_Moved], pick: Pick, report: Callable[[float], None]
) -> tuple[list[Allocation], list[str]]:
    """Place each pod in turn: what was taken, and the keys of the pods that found no place."""
    placed: list[Allocation] = []
    left: list[str] = []
    priced, moved = fleet.changes, MOVED * np.count_nonzero(fleet.arrays.compute_capacity)
    policy.adopt(fleet, policy.plan(fleet)())
    for i, pod in enumerate(pods, 1):
        policy.observe(pod.request)
        if i & (i - 1) == 0 or i % LEARNT == 0:  # a young mix changes fast
            policy.adopt(fleet, policy.plan(fleet)())
        elif fleet.changes - priced > moved:
            policy.refresh(fleet)
            priced = fleet.changes
        free = reasons_for(fleet, pod.request) == 0
        fits = pod.rows & free
        fits[pod.home] = free[pod.home]
        row = pick(np.where(fits, policy.cost(fleet, pod.request), np.inf).astype(np.float32))
        if row < 0:
            left.append(pod.key)
            continue
        placed.append(allocation_of(fleet, row, pod.request, policy.choose(fleet, pod.request, row)))
        fleet.take(placed[-1])
        report(i / len(pods))
    report(1.0)
    return placed, left


def _row(cluster: _Cluster, policy: str, left: list[str], seconds: float) -> dict[str, Any]:
    """The figures of the fleet as it stands at this moment."""
    fleet, exists = cluster.state.fleet, cluster.gpus
    whole = (
        (fleet.arrays.compute == fleet.arrays.compute_capacity)
        & (fleet.arrays.memory == fleet.arrays.memory_capacity)
        & exists
    )
    has = exists.any(axis=0)
    return {
        "trace": cluster.name,
        "policy": policy,
        "nodes": int(has.sum()),
        "gpus": int(exists.sum()),
        "whole_gpus_free": int(whole.sum()),
        "whole_nodes_free": int((has & (whole == exists).all(axis=0)).sum()),
        "pods": len(cluster.moved),
        "failed_pods": len(left),
        "no_place": left,
        "seconds": round(seconds, 3),
    }
