"""Where kubelet's Topology Manager would refuse a pod, by what NodeResourceTopologies say is free.

The answers are those of NodeResourceTopologyMatch (kubernetes-sigs/scheduler-plugins at 903da7df,
``pkg/noderesourcetopology/filter.go``), and go on where it stops: ``restricted`` and ``best-effort`` are
judged, too, sidecars keep what they have, and a resource that no NUMA node lists is bound to none. As in
kubelet, only Guaranteed pods have CPU, memory and huge pages of a NUMA node, and CPUs only if they are whole
(kubernetes, ``pkg/kubelet/cm/cpumanager/policy_static.go``, ``memorymanager/policy_static.go``).

The node does not report at once what a new pod takes. Until it does, the pod counts beside the report, where
kubelet would put it.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from extender.cluster.pod_table import PodTable
from extender.k8s.node_topology import NodeTopology, amount_of, is_memory
from extender.k8s.objects import Container, Deleted, Event, Listed, Pod, PodSpec, Upserted, peak_usage
from extender.k8s.quantity import QuantityError
from packing.fleet.fleet import Fleet
from packing.model.numa import REFUSING, Aligned, NumaNode, Policy, aligned

Flags = npt.NDArray[np.bool_]
Wanted: TypeAlias = tuple[Aligned, ...]

REPORTED = 120.0
"""Seconds after which a report has what a pod takes: twice the interval of NFD's topology updater."""
_ON_ITS_WAY = 5.0
"""Seconds in which a report reaches Stowage, with the difference between both clocks."""
_MOST = 10**18  # of an amount that cannot be read


class _Report(NamedTuple):
    """``covers``: pods that started before this time are in it; -inf if that is not known. ``came``: when it
    was read (Unix seconds)."""

    topology: NodeTopology
    covers: float
    came: float


class NumaTable:
    """The NodeResourceTopologies of the cluster. False if there are none."""

    def __init__(self, pods: PodTable) -> None:
        self._pods = pods
        self._reports: dict[str, _Report] = {}
        self.changes = 0

    def __bool__(self) -> bool:
        return bool(self._reports)

    def records(self) -> list[NodeTopology]:
        return [report.topology for report in self._reports.values()]

    @property
    def problems(self) -> dict[str, str]:
        """By the name of the node."""
        found = ((one.name, one.problem) for one in self.records() if one.problem)
        return {name: f"NodeResourceTopology: {problem}" for name, problem in found}

    def apply(self, event: Event) -> None:
        """Take in an event about a NodeResourceTopology."""
        match event:
            case Upserted(NodeTopology() as topology):
                self._put(topology)
            case Deleted(_, key):
                self._keep(self._reports.keys() - {key})
            case Listed(_, keys):
                self._keep(keys)

    def clear(self) -> None:
        """Forget all: what they say is free is not so where pods are moved in thought."""
        self._keep(())

    def _put(self, topology: NodeTopology) -> None:
        known = self._reports.get(topology.name)
        if known and known.topology == topology:
            return  # from another list
        if known and topology.problem and not topology.numa:  # what it said last counts
            topology = replace(known.topology, problem=topology.problem)
        now = self._pods.now()
        self._reports[topology.name] = _Report(topology, now - _ON_ITS_WAY if known else -math.inf, now)
        self.changes += 1

    def _keep(self, names: Collection[str]) -> None:
        for name in self._reports.keys() - names:
            del self._reports[name]
            self.changes += 1

    def misaligned(
        self, fleet: Fleet, pod: Pod, rows: npt.NDArray[np.int64], policies: Collection[Policy], *, idle: bool
    ) -> Flags:
        """Where kubelet has one of these policies, and cannot give the pod what it prefers: (len(rows),).
        ``idle``: not even if nothing else ran there. Row -1 is a node that is not known."""
        found = np.zeros(rows.size, np.bool_)
        wanted = _wanted(pod.spec, False), _wanted(pod.spec, True)
        if not any(one.amounts for one in wanted[0]):
            return found
        now = self._pods.now()
        refused_at = {} if idle else self._refused_at(pod, now)
        for at, row in enumerate(rows.tolist()):
            spec = fleet.specs[row] if row >= 0 else None
            report = self._reports.get(spec.name) if spec else None
            if report and report.topology.policy in policies:
                lately = () if idle else self._lately(report, pod, now)
                fits = _fits(report.topology, lately, wanted[report.topology.whole_pods], idle)
                found[at] = not fits or refused_at.get(report.topology.name, -math.inf) > report.covers
        return found

    def doubt(self, pod: Pod, node: str) -> str:
        """Why kubelet's verdict on the pod is not known there, in words; "" if it is, and if there are no
        reports at all."""
        report = self._reports.get(node)
        if not self._reports or not any(one.amounts for one in _wanted(pod.spec, False)):
            return ""
        if report is None:
            return "the node has no NodeResourceTopology"
        if report.topology.problem:
            return f"NodeResourceTopology: {report.topology.problem}"
        known = {name for one in report.topology.numa for name, _ in one.total}
        until = self._pods.now() - REPORTED
        for other in self._pods.on_node(node) if report.topology.policy in REFUSING else ():
            bound = any(known & dict(one.amounts).keys() for one in _wanted(other.spec, False))
            if bound and report.came < other.started < until:
                return f"its NodeResourceTopology has not changed since {other.key} started there"
        return ""

    def free(self, pod: Pod, node: str) -> str:
        """What the report says is free of the devices that the pod asks for, NUMA node by NUMA node; "" if
        nothing is known."""
        report = self._reports.get(node)
        numa = [dict(one.free) for one in report.topology.numa] if report else []
        asked = {name for one in _wanted(pod.spec, True) for name, amount in one.amounts if amount}
        shown = {name: [one.get(name, 0) for one in numa] for name in sorted(asked) if "/" in name}
        texts = (f"{' + '.join(map(str, free))} {name}" for name, free in shown.items() if any(free))
        return ", ".join(texts)

    def _refused_at(self, pod: Pod, now: float) -> dict[str, float]:
        """When kubelet last refused a pod that wants the same, by node, though the report had room for it. A
        Job would otherwise spend all its attempts there before the next report."""
        return {
            other.node_name: other.started
            for other in self._pods.misaligned.values()
            if other.started > now - REPORTED
            and other.uid != pod.uid
            and _wanted(other.spec, False) == _wanted(pod.spec, False)
        }

    def _lately(self, report: _Report, pod: Pod, now: float) -> tuple[Wanted, ...]:
        """What the pods of the node want that may not be in the report yet."""
        topology, since = report.topology, max(report.covers, now - REPORTED)
        return tuple(
            _wanted(other.spec, topology.whole_pods)
            for other in self._pods.on_node(topology.name)
            if other.uid != pod.uid and (not other.started or other.started > since)
        )


def _fits(topology: NodeTopology, lately: tuple[Wanted, ...], wanted: Wanted, idle: bool) -> bool:
    numa = tuple(NumaNode(one.total, one.total) for one in topology.numa) if idle else topology.numa
    return _fit(topology.policy == "single-numa-node", numa, lately, wanted)


@lru_cache(maxsize=4096)
def _fit(single: bool, numa: tuple[NumaNode, ...], lately: tuple[Wanted, ...], wanted: Wanted) -> bool:
    """Most nodes of a pool are alike, and pods come in numbers. Where there is no room for one of the pods
    that came lately, it is in the report already."""
    for pod in lately:
        numa = aligned(single, numa, [one for one in pod if one.stays]) or numa
    return aligned(single, numa, wanted) is not None


@lru_cache(maxsize=4096)
def _wanted(spec: PodSpec, whole_pods: bool) -> Wanted:
    """What kubelet aligns, in the order in which containers start."""
    # Kubelet does not align CPU and memory of pods with resources of their own.
    guaranteed = not (spec.requests or spec.limits) and all(map(_is_guaranteed, spec.all_containers))

    def amounts(container: Container) -> dict[str, int]:
        found = {name: _amount(name, text) for name, text in container.requests}
        if found.get("cpu", 0) % 1000:
            del found["cpu"]
        if guaranteed:
            return found
        return {name: n for name, n in found.items() if name != "cpu" and not is_memory(name)}

    if whole_pods:
        return (Aligned(tuple(sorted(peak_usage(spec, amounts).items()))),)
    ending = {id(one) for one in spec.init_containers if not one.sidecar}
    return tuple(
        Aligned(tuple(sorted(amounts(one).items())), stays=id(one) not in ending)
        for one in spec.all_containers
    )


def _amount(name: str, text: str) -> int:
    try:
        return amount_of(name, text)
    except QuantityError:
        return _MOST


def _is_guaranteed(container: Container) -> bool:
    """Whether it has limits of CPU and memory that are its requests (``ComputePodQOS`` of k8s.io/kubernetes,
    pkg/apis/core/v1/helper/qos)."""
    requests, limits = dict(container.requests), dict(container.limits)
    return all(
        0 < _amount(name, limits.get(name, "0")) == _amount(name, requests.get(name, "0"))
        for name in ("cpu", "memory")
    )
