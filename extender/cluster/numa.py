"""Nodes where kubelet's Topology Manager would reject a pod, by the free resources in NodeResourceTopologies.

The answers are those of NodeResourceTopologyMatch (kubernetes-sigs/scheduler-plugins at 903da7df,
``pkg/noderesourcetopology/filter.go``), with additions: ``restricted`` and ``best-effort`` are also judged,
sidecars keep their resources, and a resource that no NUMA node lists is bound to none. As in kubelet, only
Guaranteed pods have CPU, memory and huge pages of a NUMA node, and CPUs only if their number is an integer
(kubernetes, ``pkg/kubelet/cm/cpumanager/policy_static.go``, ``memorymanager/policy_static.go``).

A node does not immediately report the resources of a new pod. Until it does, the pod counts in addition to
the report, where kubelet would place it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from extender.cluster.pod_table import PodTable
from extender.k8s.node_topology import NodeTopology, amount_of, is_memory
from extender.k8s.objects import Container, Deleted, Event, Listed, Pod, PodSpec, Upserted, peak_usage
from extender.k8s.quantity import QuantityError
from packing.fleet.arrays import Flags, Longs
from packing.fleet.fleet import Fleet
from packing.model.numa import REFUSING, Aligned, Policy, Wanted
from packing.model.numa_alignment import as_arrays, fit_one_after_the_other

REPORTED = 120.0
"""Seconds after which a report includes a pod's resources: twice the interval of NFD's topology updater."""
_ON_ITS_WAY = 5.0
"""Seconds until a report reaches Stowage, including the difference between the clocks."""
_MOST = 10**18  # value of an unreadable amount
_MOST_WAYS = 64
"""Maximum number of distributions of freed resources over the NUMA nodes that are tried."""
_MOST_ENDED = 64
"""Maximum number of ended pods of a node that its report still includes."""
_KEPT_TABLES = 8
"""Maximum number of sets of resources for which a report is cached as arrays."""


class _Report(NamedTuple):
    """``covers``: pods that started before this time are included; -inf if unknown. ``came``: when it was
    read (Unix seconds). ``ended``: for each included pod that has ended since, the time and its resources.
    ``tables``: the report as arrays, for some sets of resources."""

    topology: NodeTopology
    covers: float
    came: float
    ended: list[tuple[float, Wanted]]
    tables: dict[tuple[tuple[str, ...], int], Longs]

    def has(self, pod: Pod, now: float) -> bool:
        """Whether the report includes the pod's resources."""
        return 0 < pod.started <= max(self.covers, now - REPORTED)

    def table(self, names: tuple[str, ...], size: int) -> Longs:
        if (known := self.tables.get((names, size))) is None:
            if len(self.tables) >= _KEPT_TABLES:
                self.tables.clear()
            known = self.tables[names, size] = as_arrays(self.topology.numa, names, size)
        return known


class _Question(NamedTuple):
    """A question about one node: its index in the answer, its report, the pods that the report does not
    include yet (``lately``), and those of the included ones that have ended (``left``) and that remain
    (``staying``)."""

    at: int
    report: _Report
    lately: Sequence[Wanted] = ()
    left: Sequence[Wanted] = ()
    staying: Sequence[Wanted] = ()


class NumaTable:
    """The NodeResourceTopologies of the cluster. False if there are none."""

    def __init__(self, pods: PodTable) -> None:
        self._pods = pods
        pods.on_end = self._note_end
        self._reports: dict[str, _Report] = {}
        self.changes = 0

    def __bool__(self) -> bool:
        return bool(self._reports)

    def records(self) -> list[NodeTopology]:
        return [report.topology for report in self._reports.values()]

    @property
    def problems(self) -> dict[str, str]:
        """Problems by node name."""
        found = ((report.name, report.problem) for report in self.records() if report.problem)
        return {name: f"NodeResourceTopology: {problem}" for name, problem in found}

    def apply(self, event: Event) -> None:
        """Apply an event of a NodeResourceTopology."""
        match event:
            case Upserted(NodeTopology() as topology):
                self._put(topology)
            case Deleted(_, key):
                self._keep(self._reports.keys() - {key})
            case Listed(_, keys):
                self._keep(keys)

    def clear(self) -> None:
        """Forget all reports: their free resources do not hold when moves of pods are simulated."""
        self._keep(())

    def _put(self, topology: NodeTopology) -> None:
        known = self._reports.get(topology.name)
        if known and known.topology == topology:
            return  # from another list
        if known and topology.problem and not topology.numa:  # the last readable report counts
            topology = replace(known.topology, problem=topology.problem)
        now = self._pods.now()
        covers = now - _ON_ITS_WAY if known else -math.inf
        self._reports[topology.name] = _Report(topology, covers, now, [], {})
        self.changes += 1

    def _keep(self, names: Collection[str]) -> None:
        for name in self._reports.keys() - names:
            del self._reports[name]
            self.changes += 1

    def misaligned(
        self, fleet: Fleet, pod: Pod, rows: npt.NDArray[np.int64], policies: Collection[Policy], *, idle: bool
    ) -> Flags:
        """(len(rows),) where kubelet has one of these policies and cannot align the pod as it prefers.
        ``idle``: not even if nothing else ran there. Row -1 is an unknown node.

        Pods that are excluded from the fleet count as ended. Their NUMA nodes are unknown, so kubelet must
        admit the pod wherever they may have been.
        """
        found = np.zeros(rows.size, np.bool_)
        wanted = _wanted(pod.spec, False), _wanted(pod.spec, True)
        if not any(container.amounts for container in wanted[0]):
            return found
        asked = [
            (at, report)
            for at, row in enumerate(rows.tolist())
            if row >= 0
            and (spec := fleet.specs[row])
            and (report := self._reports.get(spec.name))
            and report.topology.policy in policies
        ]
        if idle:
            questions = [_Question(at, report, left=((),)) for at, report in asked]
        else:
            questions = list(self._questions(fleet, pod, asked, rows))
        if questions:
            found[[question.at for question in questions]] = ~_admitted(questions, wanted)
        now = self._pods.now()
        refused_at = {} if idle else self._refused_at(pod, now)
        for at, report in asked if refused_at else ():
            found[at] |= refused_at.get(report.topology.name, -math.inf) > report.covers
        return found

    def _questions(
        self, fleet: Fleet, pod: Pod, asked: Iterable[tuple[int, _Report]], rows: npt.NDArray[np.int64]
    ) -> Iterable[_Question]:
        now, pods = self._pods.now(), self._pods
        starting = pods.starting(now - REPORTED)
        for at, report in asked:
            name, whole = report.topology.name, report.topology.whole_pods
            left = [wanted for ended, wanted in report.ended if ended > now - REPORTED]
            gone, staying = set[str](), list[Wanted]()
            if left or fleet.absent.get(int(rows[at])):
                absent = {*map(id, fleet.absent[int(rows[at])])}
                for other in pods.on_node(name):
                    if not absent.isdisjoint(map(id, pods.allocations_of(other))):
                        gone.add(other.uid)
                    if report.has(other, now):
                        (left if other.uid in gone else staying).append(_wanted(other.spec, whole))
            lately = [
                _wanted(other.spec, whole)
                for other in starting.get(name, ())
                if other.uid not in gone and other.uid != pod.uid and not report.has(other, now)
            ]
            yield _Question(at, report, lately, left, staying)

    def _note_end(self, pod: Pod) -> None:
        """Count the resources of an ended pod as free, although the report of its node shows that only
        later."""
        report, now = self._reports.get(pod.node_name), self._pods.now()
        if report and report.has(pod, now) and len(report.ended) < _MOST_ENDED:
            report.ended.append((now, _wanted(pod.spec, report.topology.whole_pods)))

    def doubt(self, pod: Pod, node: str) -> str:
        """Why kubelet's verdict on the pod is unknown there; "" if it is known, and if there are no reports
        at all."""
        report = self._reports.get(node)
        if not self._reports or not any(container.amounts for container in _wanted(pod.spec, False)):
            return ""
        if report is None:
            return "the node has no NodeResourceTopology"
        if report.topology.problem:
            return f"NodeResourceTopology: {report.topology.problem}"
        known = {name for zone in report.topology.numa for name, _ in zone.total}
        until = self._pods.now() - REPORTED
        for other in self._pods.on_node(node) if report.topology.policy in REFUSING else ():
            bound = any(known & dict(c.amounts).keys() for c in _wanted(other.spec, False))
            if bound and report.came < other.started < until:
                return f"its NodeResourceTopology has not changed since {other.key} started there"
        return ""

    def free(self, pod: Pod, node: str) -> str:
        """Free devices of the kinds that the pod requests, by NUMA node, according to the report; "" if
        unknown."""
        report = self._reports.get(node)
        numa = [dict(zone.free) for zone in report.topology.numa] if report else []
        asked = {name for c in _wanted(pod.spec, True) for name, amount in c.amounts if amount}
        shown = {name: [zone.get(name, 0) for zone in numa] for name in sorted(asked) if "/" in name}
        texts = (f"{' + '.join(map(str, free))} {name}" for name, free in shown.items() if any(free))
        return ", ".join(texts)

    def _refused_at(self, pod: Pod, now: float) -> dict[str, float]:
        """By node, when kubelet last rejected a pod with the same requests although the report had room for
        it. Otherwise a Job would spend all its retries there before the next report."""
        return {
            other.node_name: other.started
            for other in self._pods.misaligned.values()
            if other.started > now - REPORTED
            and other.uid != pod.uid
            and _wanted(other.spec, False) == _wanted(pod.spec, False)
        }


def _admitted(questions: Sequence[_Question], wanted: tuple[Wanted, Wanted]) -> Flags:
    """Whether the kubelet of each node admits the pod; ``wanted``: as single containers, and as a whole. If
    one of the pods in ``lately`` has no room, the report already includes it."""
    pods = {id(pod): pod for q in questions for pod in (*q.lately, *q.left, *q.staying)}.values()
    names = tuple(sorted({name for pod in (*pods, wanted[0]) for c in pod for name, _ in c.amounts}))
    size = max(len(question.report.topology.numa) for question in questions)
    tables = np.stack([question.report.table(names, size) for question in questions])
    free, total = tables[:, 0], tables[:, 1]
    given = {n: _ways(q, free[n], total[n], names) for n, q in enumerate(questions) if q.left}
    more = [(n, way) for n, ways in given.items() for way in ways]
    of = np.array([*range(len(questions)), *(n for n, _ in more)])
    free = free[of]
    for at, (_, way) in enumerate(more, len(questions)):
        free[at] += way
    single = np.array([q.report.topology.policy == "single-numa-node" for q in questions])[of]
    queues = [(*question.lately, wanted[question.report.topology.whole_pods]) for question in questions]
    fits = fit_one_after_the_other(single, free, total[of], names, [queues[n] for n in of.tolist()])
    found = fits[: len(questions)].copy()
    for n, ways in given.items():  # as reported, or wherever the freed resources are
        found[n] |= bool(ways) and fits[of == n][1:].all()
    return found


def _ways(asked: _Question, free: Longs, total: Longs, names: Sequence[str]) -> list[Longs]:
    """The possible distributions of freed resources over the NUMA nodes, (K, R) each; none if there are too
    many, or if the report already counts some of them as free."""
    total = np.maximum(total, 0)
    if not any(container.amounts for pod in asked.staying for container in pod):
        return [total - free]
    each, staying = _amounts(asked.left, names), _amounts(asked.staying, names)
    each[:, total.sum(axis=0) == 0] = 0  # bound to none
    devices = ["/" in name for name in names]
    if (each.sum(axis=0) + staying.sum(axis=0) + free.sum(axis=0) > total.sum(axis=0))[devices].any():
        return []
    return _spread(tuple(sorted(map(tuple, each.tolist()))), tuple(map(tuple, (total - free).tolist())))


def _amounts(pods: Iterable[Wanted], names: Sequence[str]) -> Longs:
    """(C, R) amounts that the containers of these pods keep."""
    each = [dict(container.amounts) for pod in pods for container in pod if container.stays]
    return np.array([[a.get(name, 0) for name in names] for a in each], np.int64).reshape(-1, len(names))


@lru_cache(maxsize=1024)
def _spread(each: tuple[tuple[int, ...], ...], taken: tuple[tuple[int, ...], ...]) -> list[Longs]:
    """All ways to assign these amounts, each to one NUMA node, within what is ``taken`` there; none if there
    are more than ``_MOST_WAYS``. Amounts that are too large for any single NUMA node are left out."""
    ways = {tuple(tuple(0 for _ in row) for row in taken)}
    for amounts in each:
        found = set()
        for way in ways:
            for k, on_node in enumerate(way):
                more = tuple(a + b for a, b in zip(on_node, amounts, strict=True))
                if all(a <= b for a, b in zip(more, taken[k], strict=True)):
                    found.add((*way[:k], more, *way[k + 1 :]))
        ways = found or ways
        if len(ways) > _MOST_WAYS:
            return []
    return [np.array(way, np.int64) for way in ways]


@lru_cache(maxsize=4096)
def _wanted(spec: PodSpec, whole_pods: bool) -> Wanted:
    """Amounts that kubelet aligns, in the order in which containers start."""
    # kubelet does not align CPU and memory of pods with pod-level resources.
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
    ending = {id(container) for container in spec.init_containers if not container.sidecar}
    return tuple(
        Aligned(tuple(sorted(amounts(container).items())), stays=id(container) not in ending)
        for container in spec.all_containers
    )


def _amount(name: str, text: str) -> int:
    try:
        return amount_of(name, text)
    except QuantityError:
        return _MOST


def _is_guaranteed(container: Container) -> bool:
    """Whether its limits of CPU and memory equal its requests (``ComputePodQOS`` of k8s.io/kubernetes,
    pkg/apis/core/v1/helper/qos)."""
    requests, limits = dict(container.requests), dict(container.limits)
    return all(
        0 < _amount(name, limits.get(name, "0")) == _amount(name, requests.get(name, "0"))
        for name in ("cpu", "memory")
    )
