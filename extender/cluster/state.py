"""The state of the cluster, which applies events and bindings and keeps the fleet up to date.

Only the event loop accesses it: there are no locks, and nothing changes between two awaits. It does not
depend on the source of the events (the API server, a snapshot file).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from extender.background import Failures
from extender.cluster.admission import Admission
from extender.cluster.allocations import Allocations, Placement
from extender.cluster.demand import DemandLearner
from extender.cluster.end_costs import EndCosts
from extender.cluster.gang_domains import DomainSearch, GangDomains
from extender.cluster.gang_placement import FarCosts, GangCosts, GangHolds, WaitingMembers
from extender.cluster.large_jobs import LargeJobs
from extender.cluster.node_table import NodeTable, blocked_because, offered_twice
from extender.cluster.numa import NumaTable
from extender.cluster.pod_table import PodTable
from extender.cluster.reservations import TIME_TO_LIVE, AssumedPod
from extender.dialects.pod_request import as_whole, bound_request, request_of
from extender.dialects.pod_resources import RequestError
from extender.dra.device_cache import DeviceCache
from extender.dra.forecast import AllocationSimulator
from extender.k8s.admission_objects import AdmissionKind
from extender.k8s.node_filter import NodeFilter
from extender.k8s.objects import (
    REQUIRED_KINDS,
    Deleted,
    Event,
    Kind,
    KoordinatorDevice,
    KubernetesObject,
    Listed,
    MigLayouts,
    Node,
    Pod,
    PodGroupKind,
    RequiredDomain,
    Unlisted,
    Upserted,
)
from extender.k8s.resource_claims import DeviceRecord
from extender.protocol.node_names import NameTable, NodeNames
from extender.queues.disruptions import DisruptionBudgets, DisruptionLog, note_disruptions
from extender.queues.gangs import GangTable
from extender.queues.rights import EvictionRules, Rights
from extender.settings import Plain
from extender.untrusted.bounded_cache import BoundedMap
from packing.fleet.arrays import Flags
from packing.fleet.feasibility import gpu_sizes
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.model.reasons import Reason
from packing.model.request import Request
from packing.policies.interface import Policy

log = logging.getLogger(__name__)
VERSION = re.compile(r"v?(\d+)\.(\d+)")

Rows = npt.NDArray[np.int64]
_USABLE_ROWS = 64


class State:
    """All that Stowage knows of the cluster, in one table for each group of objects: ``nodes``, ``pods`` and
    ``devices`` (of Dynamic Resource Allocation). ``allocations``: the resources of the ``fleet`` that each
    pod holds.

    ``assumed_pods``: bindings made by ``bind`` that the watch does not show yet. ``simulator`` forecasts the
    devices that claims are allocated. ``overcommitted``: nodes whose pods hold more GPU than the node has.
    ``rights``: the rules for evicting pods in favor of others. ``budgets``: the evictions that disrupt too
    many pods. ``gangs``: the pods that belong together. ``disruptions``: the jobs that lost pods recently.
    ``reservations``: places reserved for pods; ``gang_holds`` makes those of gangs. ``gang_costs``: the cost
    of nodes far from the other members, ``gang_domains`` the topology domains that they require.
    ``end_costs``: the cost of keeping a node busy for longer. ``large_jobs``: the nodes that are reserved for
    them.
    ``gang_check``: no member of a gang is placed before all fit. ``synced``: the kinds whose first list has
    arrived or that count as unknown, which are ``unlisted``. ``failures`` counts errors in comparing nodes
    that fit, which reject no pod. ``kept_by_node``: data that verbs cache about the pods of a node, until the
    node or its pods change. ``spot``, ``plain_gpu``, ``plain_gpu_by_namespace``: the settings. ``any_whole``:
    some pods that do not specify a kind of GPU are allocated whole GPUs. ``revision`` counts events, new
    prices and new sets of nodes. ``binds``: Stowage writes the GPU assignment of pods, so a node accepts no
    pods while its device plugin is busy. ``assigns_all``: shared GPUs can be assigned on all nodes, as in
    simulations. ``unknown_node``: the reason unknown nodes accept no pods. ``eviction_helps_extenders``:
    kube-scheduler looks for victims even where only an extender rejected the pod (1.38 and later).
    """

    def __init__(
        self, policy: Policy, rights: Rights | None = None, disruptions: DisruptionLog | None = None
    ) -> None:
        self.policy, self.rights = policy, rights or Rights()
        self.budgets, self.gangs = DisruptionBudgets(), GangTable()
        self.disruptions = disruptions or DisruptionLog()
        self.fleet = Fleet()
        self.allocations = Allocations(self.fleet)
        self.nodes = NodeTable(self.allocations, self.fleet)
        self.pods = PodTable(self.allocations)
        self.reservations, self.assumed_pods = self.pods.reservations, self.pods.assumed
        self.gang_costs = GangCosts(self.gangs, self.pods, self.fleet, self.nodes.network)
        self.gang_domains = GangDomains(self.gangs, self.pods, self.nodes, self.fleet, self.wants_gpu)
        self.end_costs = EndCosts(
            self.fleet, self.allocations, self.rights.queue_name, self.gangs.longest_run
        )
        self.large_jobs = LargeJobs(
            self.fleet, self.gangs, self.end_costs, self.pods.by_uid, self.reservations, self._may_evict
        )
        self.numa = NumaTable(self.pods)
        self.admission = Admission(self.pods, self.nodes, self.rights.queues.classes)
        self.unlisted = self.rights.unlisted
        self.devices = devices = DeviceCache(self.unlisted.keys())
        self.simulator = AllocationSimulator(devices)
        self.learner = DemandLearner(policy, self.fleet)
        self.gang_check, self.binds, self.revision = False, False, 0
        self.assigns_all = False
        at = self.reservations, self.gangs, self.pods.is_bound, self.fleet.rows.__contains__
        self.gang_holds = GangHolds(*at, self._place_together)
        self.gang_answers: tuple[object, dict[object, bool]] = None, {}
        self.usable_rows: BoundedMap[object, npt.NDArray[np.bool_]] = BoundedMap(_USABLE_ROWS)
        self.kept_by_node: dict[str, object] = {}
        self.synced: set[Kind] = set()
        self.overcommitted: set[str] = set()
        self.spot: Literal["ignore", "prefer", "require"] = "prefer"
        self.any_whole = False
        self.plain_gpu: Plain = "least"
        self.plain_gpu_by_namespace: Mapping[str, Plain] = {}
        self.eviction_helps_extenders, self.unknown_node = False, Reason.UNKNOWN_NODE
        self._appliers: dict[Kind, Callable[[Event], None]] = {  # of kinds that do not change nodes
            "PriorityClass": self.rights.queues.classes.apply,
            "PodDisruptionBudget": self.budgets.apply,
            "NodeResourceTopology": self.numa.apply,
            **dict.fromkeys(get_args(PodGroupKind), self.gangs.apply),
            **dict.fromkeys(get_args(AdmissionKind), self.admission.apply),
        }
        self.failures, self._row_table = Failures(), (-1, NameTable({}))

    def apply(self, events: Sequence[Event]) -> None:
        """Apply events. An unreadable object is recorded as a problem, and raises nothing."""
        self.revision += len(events)
        for event in events:
            match event.kind:
                case "Pod":
                    self.gangs.apply(event)
                    queues = self.rights.queues
                    note_disruptions(event, self.disruptions, queues, self.pods, self.nodes, self._gpus_of)
                    self.sync_nodes(self._apply(event))
                    self.end_costs.apply(event)
                case "Job" | "ReplicaSet":
                    self.end_costs.apply_job(event)
                case kind if (apply := self._appliers.get(kind)) is not None:
                    apply(event)
                case _:
                    self.sync_nodes(self._apply(event))
            if isinstance(event, Listed | Unlisted):
                self._note_listed(event)
                if event.kind == "Node":
                    self.learner.start(self.pods)
                if self.synced >= REQUIRED_KINDS and self.allocations.settle():
                    self.sync_nodes(self.nodes)
                    for pod in self.pods.values():  # what they hold is known only now
                        self.end_costs.apply(Upserted(pod))
        if self.synced >= REQUIRED_KINDS:
            self.gang_holds.update()

    def _note_listed(self, event: Listed | Unlisted) -> None:
        if event.kind not in self.synced or event.kind in self.unlisted:  # else the list was faster
            self.synced.add(event.kind)
            self.unlisted.pop(event.kind, None)
            if isinstance(event, Unlisted):
                self.unlisted[event.kind] = event
            self.rights.queues.classes.revision = object()

    def set_version(self, version: str) -> None:
        """``version``: of kube-scheduler. Since 1.38, it looks for victims on nodes that only an extender
        refused. An unknown version counts as 1.37."""
        numbers = VERSION.match(version)
        known = (int(numbers[1]), int(numbers[2])) if numbers else (1, 37)
        self.eviction_helps_extenders = known >= (1, 38)
        self.devices.set_version(since_1_37=known >= (1, 37))

    def request_of(self, pod: Pod) -> Request:
        """The pod's request, completed by the settings where it is not specific. Raises ``RequestError``."""
        request = request_of(pod)
        if not self.any_whole:
            return request
        wanted = self.rights.queue_of(pod).plain_gpu
        wanted = wanted or self.plain_gpu_by_namespace.get(pod.namespace, self.plain_gpu)
        return request if wanted == "least" else as_whole(request)

    def request_or_none(self, pod: Pod) -> Request | None:
        """As ``request_of``; None if the request is unreadable."""
        with suppress(RequestError):
            return self.request_of(pod)
        return None

    def wants_gpu(self, pod: Pod) -> bool:
        """Whether the pod requests a GPU, or its request cannot be read."""
        request = self.request_or_none(pod)
        return request is None or request.wants_gpu

    def _gpus_of(self, pod: Pod) -> float:
        """Number of GPUs that a bound pod holds; 0 if its node is unknown."""
        row = self.fleet.rows.get(pod.node_name)
        return 0.0 if row is None else float(gpu_sizes(self.fleet, bound_request(pod).request)[row])

    def _may_evict(self, preemptor: Pod, victim: Pod, at: float) -> bool:
        """Whether the victim may be evicted for the preemptor then (Unix seconds)."""
        rules = self.rules_for(preemptor, at, to_equals=self.large_jobs.evicts_equals)
        return rules.may_ever_leave([victim])[0]

    def rules_for(
        self, pod: Pod, now: float, *, to_equals: bool = False, moved_within: float | None = None
    ) -> EvictionRules:
        """The rules for evictions for the pod at this time (Unix seconds)."""
        rights, gangs, known = self.rights, self.gangs, self.disruptions
        return EvictionRules(rights, gangs, known, pod, now, to_equals=to_equals, moved_within=moved_within)

    def _place_together(
        self, members: Sequence[WaitingMembers], own: Sequence[Placement]
    ) -> list[Placement] | None:
        """Places for members of a gang that already has its ``own`` places, given the places of others."""
        members = [replace(member, request=self.request_of(member.pod)) for member in members]
        known = (place for place in own if place.node in self.fleet.rows)
        with (
            self.fleet_view_for(members[0].pod) as fleet,
            fleet.holding(map(self.allocations.allocation_if_bound, known)),
        ):
            far = partial(self.gang_costs, members[0].pod)
            return self.domain_search(members[0].pod, fleet, far=far).place(members)

    def domain_search(
        self,
        pod: Pod,
        fleet: Fleet,
        nodes: Mapping[str, Node] | None = None,
        allowed: Callable[[WaitingMembers], Flags] | None = None,
        among: Mapping[RequiredDomain, Flags] | None = None,
        left: Sequence[Allocation] = (),
        far: FarCosts = lambda request: None,
    ) -> DomainSearch:
        """A search for places of members of the pod's gang on this view of the fleet."""
        taken, hoped = self.gang_domains.taken(pod)
        policy, allocation = self.policy, self.allocations.allocation_if_bound
        nodes, at = self.nodes if nodes is None else nodes, (self.gang_domains, allocation, taken, hoped)
        return DomainSearch(fleet, policy, nodes, *at, allowed, among or {}, left, far)

    def _apply(self, event: Event) -> Iterable[str]:
        """Pass an event to the table of its kind. Returns the nodes that it changed."""
        match event:
            case Upserted(Pod() as pod):
                self.learner.learn_from(pod, before=self.pods.get(pod.key))
                return self.pods.put(pod)
            case Deleted("Pod", key):
                self.learner.forget(key)
                return self.pods.remove(key)
            case Listed("Pod", keys, began=began):
                self.learner.keep(keys)
                return self.pods.keep(keys, began)
            case Upserted(Node() | KoordinatorDevice() | MigLayouts() as record):
                return self.nodes.put(record)
            case Deleted(("Node" | "Device" | "ConfigMap") as kind, key):
                return self.nodes.remove(kind, key)
            case Listed(("Node" | "Device" | "ConfigMap") as kind, keys):
                return self.nodes.keep(kind, keys)
            case Upserted(record) if isinstance(record, DeviceRecord):
                self.devices.put(record)
            case Deleted(kind, key):
                self.devices.remove(kind, key)
            case Listed(kind, keys):
                self.devices.keep(kind, keys)
        return self.devices.pop_changed()

    def sync_nodes(self, names: Iterable[str]) -> None:
        """Update what depends on the pods of these nodes: whether the node is closed because its device
        plugin is busy, and whether it is over-committed. Unknown names are not, or no longer, names of
        nodes."""
        for name in () if self.allocations.deferred else names:
            self.kept_by_node.pop(name, None)
            row = self.fleet.rows.get(name)
            if row is None:
                self.devices.forget(name)
            else:
                self.devices.two_ways.pop(name, None)
                if self.devices.slices and (spec := self.fleet.spec_of(name)):
                    labels = self.nodes.labels_of(name)
                    if text := offered_twice(spec, labels, self.devices.on_node(name, labels)):
                        self.devices.two_ways[name] = text
                self.fleet.block(row, self._blocked_because(row))
            if row is None or not self.fleet.arrays.overcommitted[row]:
                self.overcommitted.discard(name)
            elif name not in self.overcommitted:
                self.overcommitted.add(name)
                log.warning("%s: node is over-committed: its pods hold more GPU than is allocatable", name)

    def _blocked_because(self, row: int, ignored_uid: str = "") -> Reason:
        """Why a node accepts no pods, ignoring the pod with ``ignored_uid``."""
        spec = self.fleet.specs[row]
        assert spec is not None
        if spec.name in self.pods.obscure.values():
            return Reason.UNREADABLE
        if spec.name in self.devices.two_ways and not spec.blocked:
            on_node = self.devices.on_node(spec.name, self.nodes.labels_of(spec.name))
            if any(map(self.devices.holders, map(on_node.device_id, on_node.gpus()))):
                return Reason.OTHER_WAY
        if not self.binds:
            return spec.blocked
        others = (pod for pod in self.pods.on_node(spec.name) if pod.uid != ignored_uid)
        return blocked_because(spec, self.nodes[spec.name], others)

    @property
    def room_version(self) -> object:
        """Changes when free resources, rules of nodes, gangs or devices may have changed."""
        changes = self.allocations.changes, self.nodes.changes, self.gangs.changes, self.devices.changes
        return changes, self.numa.changes, self.reservations.version, self.large_jobs.changes

    @property
    def problems(self) -> Mapping[str, str]:
        """Unreadable or contradictory data, by the name of a node or the key of a pod or another object. An
        unreadable node accepts no pods; a pod counts with the larger use."""
        pods = self.allocations.problems | self.pods.problems
        nodes = self.nodes.problems | dict(self.nodes.layouts.problems(self.nodes))
        return pods | nodes | self.numa.problems | self.object_problems

    def unlisted_texts(self) -> list[str]:
        """For each kind that counts as unknown: why, and what follows."""
        return [f"{k.resource} cannot be listed ({k.why}): {k.effect}" for k in self.unlisted.values()]

    @property
    def object_problems(self) -> dict[str, str]:
        """Problems of objects that are neither nodes nor pods, by kind and key."""
        groups = {f"PodGroup {g.key}": g.problem for g in self.gangs.pod_groups() if g.problem}
        others: list[KubernetesObject] = [*self.rights.queues.classes.by_name.values()]
        others += [*self.budgets.records(), *self.admission.records(), *self.end_costs.jobs.values()]
        rules = {f"{r.kind} {r.key}": r.problem for r in others if r.problem}
        return {**self.devices.problems, **rules, **groups}

    def rows(self, names: NodeNames) -> Rows:
        """The fleet row of each name, -1 for an unknown node: (len(names),) int64."""
        if self._row_table[0] != self.fleet.replaced:
            self._row_table = self.fleet.replaced, NameTable(self.fleet.rows)
        return self._row_table[1].find(names)

    def node_filter(self, pod: Pod) -> NodeFilter:
        """kube-scheduler's own filters for the pod, as far as they are known."""
        return NodeFilter(pod, self.admission.volumes_of(pod))

    def records(self) -> list[KubernetesObject]:
        """All known objects, for a dump; nodes first, pods last."""
        found: list[KubernetesObject] = [*self.nodes.records(), *self.devices.records()]
        found += [
            *self.gangs.pod_groups(),
            *self.end_costs.jobs.values(),
            *self.rights.queues.classes.by_name.values(),
            *self.budgets.records(),
            *self.numa.records(),
            *self.admission.records(),
        ]
        return found + self.pods.records()

    @contextmanager
    def fleet_view_for(self, pod: Pod, without: Collection[str] = ()) -> Iterator[Fleet]:
        """The fleet from the view of this pod: with the ``reservations`` of others that it must not take, and
        without its own allocation. ``without``: the keys of pods whose reservations do not count. The block
        ends with the exact previous state."""
        own, placements = self.pods.allocations_of(pod), []
        if not self.reservations.is_empty:
            gang, cycle = self.gangs.gang_of(pod), self.gangs.cycle_of(pod)
            hidden = self.reservations.hidden_from(pod, gang.key if gang else "", cycle, without)
            placements = [place for place in hidden if place.node in self.fleet.rows]
        if not own and not placements:  # as for most pending pods
            yield self.fleet
            return
        blocked = {held.row: self._blocked_because(held.row, ignored_uid=pod.uid) for held in own}
        applied = map(self.allocations.allocation_if_bound, placements)
        with self.fleet.blocked_as(blocked), self.fleet.without(own), self.fleet.holding(applied):
            yield self.fleet

    def assume(self, pod: Pod, node: str, assignment: Mapping[str, str], now: float) -> AssumedPod:
        """Count the pod as bound to a node with these annotations, before the request to the API server.

        Exactly one of ``binding_succeeded`` and ``binding_failed`` must follow each call.
        """
        assumed = self.assumed_pods.on_node(pod.uid, node)
        if assumed is None:
            placed = replace(pod, node_name=node, annotations={**pod.annotations, **assignment})
            assumed = AssumedPod(placed, now, assignment)
            self.sync_nodes(self.pods.assume(assumed))
        assumed.in_flight += 1
        assumed.since = now
        return assumed

    def binding_succeeded(self, pod: Pod, now: float) -> None:
        """Record that the API server has made this binding: no other binding of the pod has happened or
        will."""
        for assumed in self.assumed_pods.of_pod(pod.uid):
            if assumed.pod.node_name == pod.node_name:
                assumed.in_flight, assumed.confirmed, assumed.since = assumed.in_flight - 1, True, now
            else:
                self.sync_nodes(self.pods.forget(assumed))

    def binding_failed(self, pod: Pod, now: float, *, outcome_unknown: bool) -> None:
        """Record that the API server has rejected this binding or, with ``outcome_unknown``, has not
        answered, so that the binding may have happened."""
        assumed = self.assumed_pods.on_node(pod.uid, pod.node_name)
        if assumed is None:  # the watch has already shown the outcome
            return
        assumed.in_flight -= 1
        assumed.since = now
        assumed.outcome_unknown |= outcome_unknown
        if not (assumed.in_flight or assumed.outcome_unknown or assumed.confirmed):
            self.sync_nodes(self.pods.forget(assumed))

    def reconcile(self, pod: Pod, truth: Pod | None, now: float) -> None:
        """Adopt the pod's state at the API server, ``truth`` (None: the pod is gone).

        Earlier assumptions about it end, unless it is pending and a binding may still happen.
        """
        assumed_pods = self.assumed_pods.of_pod(pod.uid)
        if not assumed_pods:  # the watch was faster, and may be more recent
            return
        if truth is None or truth.uid != pod.uid or truth.terminated:
            self.sync_nodes(self.pods.forget_all(pod.uid))
        elif truth.node_name:
            self._assume_bound(truth, now)
        else:
            for assumed in assumed_pods:
                if not assumed.in_flight and now - assumed.since >= TIME_TO_LIVE:
                    self.sync_nodes(self.pods.forget(assumed))

    def observe_bound(self, truth: Pod, now: float) -> None:
        """Adopt a pod's state at the API server: others may have bound it before the watch shows that."""
        known = self.pods.get(truth.key)
        shown = known is not None and known.uid == truth.uid and known.node_name
        if truth.node_name and not (shown or truth.terminated):
            self._assume_bound(truth, now)

    def _assume_bound(self, truth: Pod, now: float) -> None:
        before = self.assumed_pods.on_node(truth.uid, truth.node_name)
        history = self.allocations.history_of(before.key) if before and before.confirmed else None
        in_flight = before.in_flight if before else 0
        changed = self.pods.forget_all(truth.uid)
        assumed = AssumedPod(truth, now, in_flight=in_flight, confirmed=True)
        self.sync_nodes(changed | self.pods.assume(assumed, history))
