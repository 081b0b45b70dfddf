"""The cluster as Stowage knows it: events in, fleet and ledger kept right.

Only the event loop touches it: no locks, and between two awaits nothing moves. Where events come from
(the API, a snapshot file) is not known here.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from extender.cluster.allocations import Allocations, Hold
from extender.cluster.assumed_pods import TIME_TO_LIVE, AssumedPod, AssumedPods
from extender.cluster.claim_check import Seen
from extender.cluster.guarded_policy import Failures
from extender.dialects.pod_request import WRITERS, RequestError, claims_of, held_by, request_of
from extender.dra.device_cache import DeviceCache
from extender.dra.forecast import AllocationSimulator
from extender.inventory.mig_manager import LAYOUT, named
from extender.inventory.node_inventory import InventoryError, inventory_of, is_gpu_resource
from extender.k8s.objects import (
    Deleted,
    Event,
    Kind,
    KoordinatorDevice,
    Listed,
    MigLayout,
    MigLayouts,
    Node,
    Pod,
    Upserted,
)
from extender.k8s.quantity import QuantityError
from extender.k8s.resource_api.objects import DeviceClass, ResourceClaim, ResourceSlice
from extender.protocol.node_names import NameTable, NodeNames
from extender.untrusted.limits import NAME, TAUGHT_NAMES
from packing.fleet.feasibility import could_host
from packing.fleet.fleet import Fleet
from packing.fleet.names import TooMany
from packing.fleet.node_usage import Allocation
from packing.model.node_spec import NodeSpec
from packing.model.reasons import Reason
from packing.model.request import Request
from packing.policies.registry import Policy

log = logging.getLogger(__name__)

Rows = npt.NDArray[np.int64]
PossiblyBound: TypeAlias = Sequence[tuple[Pod, str]]
"""Pods that are not known to be bound, and the nodes where they may have been bound unseen, after the watch
broke: that room nobody else is given."""
_MOST_REQUESTS = 1000
"""Requests for which it is remembered whether any node could host them."""


class State:
    """Nodes, pods that have not ended, and what they hold.

    ``pods`` is what the watch shows, and nothing else changes it; what ``bind`` assumes beside it is in
    ``assumed_pods`` until the watch shows what became of it.
    ``cards`` is what is known of the nodes' GPUs beside the nodes, by node; ``layouts`` what the MIG manager
    knows, by node, "" for those that have nothing of their own.
    ``devices`` is what there is of Dynamic Resource Allocation, ``simulator`` what will be given of it.
    ``problems`` says, by the name of a node, the key of a pod or another object, what could not be read or
    contradicts: a node that cannot be read takes nothing, a pod that contradicts counts with the larger use.
    ``synced`` are the kinds whose first list has arrived.
    ``learnt``: pods that the policy has learnt from.
    ``failures`` counts what failed when nodes that fit were compared, which refuses no pod.
    ``binds``: Stowage writes which GPU a pod has, so nodes whose device plugin is busy are closed meanwhile.
    ``eviction_helps_extenders``: kube-scheduler looks for victims where only an extender refused (1.38 on).
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.fleet = Fleet()
        self.allocations = Allocations(self.fleet)
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.cards: dict[str, KoordinatorDevice] = {}
        self.layouts: dict[str, MigLayouts] = {}
        self.devices = DeviceCache()
        self.simulator = AllocationSimulator(self.devices)
        self.assumed_pods = AssumedPods()
        self._problems: dict[str, str] = {}
        self.synced: set[Kind] = set()
        self.binds = False
        self.eviction_helps_extenders = False
        self.learnt = 0
        self.failures = Failures()
        self._untaught: set[str] = set()
        self._could_host: dict[Request, bool] = {}
        self._table = self.fleet.replaced, NameTable({})
        self._keys_by_uid: dict[str, str] = {}
        self._overcommitted: set[str] = set()

    def apply(self, events: Sequence[Event]) -> None:
        """Take in what happened. Never raises on account of an object: what is broken is a problem."""
        for event in events:
            match event:
                case Upserted(Node() as node):
                    self._put_node(node)
                case Upserted(Pod() as pod):
                    self._put_pod(pod)
                case Upserted(
                    ResourceSlice()
                    | ResourceClaim()
                    | DeviceClass()
                    | KoordinatorDevice()
                    | MigLayouts() as record
                ):
                    self._put_record(record)
                case Deleted("Node", key):
                    self._remove_node(key)
                case Deleted("Pod", key):
                    self._remove_pod(key)
                case Deleted(kind, key):
                    self._remove_record(kind, key)
                case Listed(kind, keys):
                    self._listed(kind, keys)

    def rows(self, names: NodeNames) -> Rows:
        """The fleet row of each name, -1 for a node that is not known: (len(names),) int64."""
        replaced, table = self._table
        if replaced != self.fleet.replaced:
            table = NameTable(self.fleet.rows)
            self._table = self.fleet.replaced, table
        return table.find(names)

    @contextmanager
    def fleet_view_for(self, pod: Pod, possibly_bound: PossiblyBound = ()) -> Iterator[Fleet]:
        """The fleet as it stands for this pod: what pods of the same or a higher priority are promised, and
        what others may have been bound to, is taken; what the pod holds itself is not. The exact old state
        after the block."""
        own = self.taken_by(pod)
        others = [(other, node) for other, node in possibly_bound if other.uid != pod.uid]
        # A pod that may be bound already counts there, and not where it is nominated.
        counted = {pod.key, *(self._keys_by_uid.get(other.uid, "") for other, _ in others)}
        promised = self.allocations.promised(counted, pod.priority)
        promised += [Hold(node, request_of(other)) for other, node in others if node in self.fleet.rows]
        if not own and not promised:  # as for most pods that wait
            yield self.fleet
            return
        closed = {one.row: Reason(int(self.fleet.arrays.blocked[one.row])) for one in own}
        for row in closed:
            self.fleet.block(row, self._closed(row, pod.uid))
        try:
            with self.fleet.without(own), self.fleet.holding(map(self.allocations.promise, promised)):
                yield self.fleet
        finally:
            for row, reason in closed.items():
                self.fleet.block(row, reason)

    def is_bound(self, uid: str) -> bool:
        """Whether the pod of this UID has a node, tentatively or not."""
        known = self.pod_by_uid(uid)
        return bool(known and known.node_name) or bool(self.assumed_pods.of(uid))

    def taken_by(self, pod: Pod) -> list[Allocation]:
        """All that a pod of this name has in the fleet, tentative holds included."""
        keys = [pod.key, *(one.key for one in self.assumed_pods.of(pod.uid))]
        return [taken for key in keys if (taken := self.allocations.taken(key)) is not None]

    @property
    def problems(self) -> dict[str, str]:
        """See the class."""
        return self.allocations.doubts | self._problems | dict(self.devices.problems)

    @property
    def contradictions(self) -> int:
        """How often a pod's claims contradicted its request or its node, since the start."""
        return self.allocations.contradictions

    def labels_of(self, node: str) -> Mapping[str, str]:
        """The labels of a node; none where it is not known."""
        known = self.nodes.get(node)
        return known.labels if known else {}

    def pod_by_uid(self, uid: str) -> Pod | None:
        """A pod that has not ended, by its UID."""
        key = self._keys_by_uid.get(uid)
        return self.pods.get(key) if key else None

    def pods_on(self, node: str) -> Iterator[Pod]:
        """The pods that hold something on a node, tentatively or not."""
        for key in self.allocations.holders(node):
            one = self.assumed_pods.by_key(key)
            yield one.pod if one else self.pods[key]

    @property
    def overcommitted(self) -> frozenset[str]:
        """Nodes that hold more GPU than they have."""
        return frozenset(self._overcommitted)

    def assume(self, pod: Pod, node: str, assignment: Mapping[str, str], now: float) -> AssumedPod:
        """Count the pod as bound to a node, with these annotations: the API server is being asked.

        Exactly one of ``confirm`` and ``refute`` follows for each call.
        """
        one = self.assumed_pods.on(pod.uid, node)
        if one is None:
            placed = replace(pod, node_name=node, annotations={**pod.annotations, **assignment})
            one = self._tentatively(AssumedPod(placed, now, assignment))
        one.in_flight += 1
        one.since = now
        return one

    def confirm(self, pod: Pod, now: float) -> None:
        """The API server has taken this binding: no other one of the pod has happened or will."""
        for one in self.assumed_pods.of(pod.uid):
            if one.pod.node_name == pod.node_name:
                one.in_flight, one.confirmed, one.since = one.in_flight - 1, True, now
            else:
                self._drop(one)

    def refute(self, pod: Pod, now: float, *, outcome_unknown: bool) -> None:
        """The API server has refused this binding, or (``outcome_unknown``) not answered: it may have happened."""
        one = self.assumed_pods.on(pod.uid, pod.node_name)
        if one is None:  # the watch has shown meanwhile what became of the pod
            return
        one.in_flight -= 1
        one.since = now
        one.outcome_unknown |= outcome_unknown
        if not (one.in_flight or one.outcome_unknown or one.confirmed):
            self._drop(one)

    def reconcile(self, pod: Pod, truth: Pod | None, now: float) -> None:
        """The API server, asked for this pod, has ``truth``: None where it is gone.

        Ends its tentative holds, unless it waits and a binding of it may still come through.
        """
        held = self.assumed_pods.of(pod.uid)
        if not held:  # the watch was first, and may know more by now
            return
        if truth is None or truth.uid != pod.uid or truth.terminated:
            self._drop_all(pod.uid)
        elif truth.node_name:
            self._hold_for_sure(truth, now)
        else:
            for one in held:
                if not one.in_flight and now - one.since >= TIME_TO_LIVE:
                    self._drop(one)

    def observe_bound(self, truth: Pod, now: float) -> None:
        """The API server has this pod, which may have been bound by others and not be on the watch yet."""
        known = self.pods.get(truth.key)
        shown = known is not None and known.uid == truth.uid and known.node_name
        if truth.node_name and not (shown or truth.terminated):
            self._hold_for_sure(truth, now)

    def _hold_for_sure(self, truth: Pod, now: float) -> None:
        there = self.assumed_pods.on(truth.uid, truth.node_name)
        seen = self.allocations.seen(there.key) if there and there.confirmed else None
        self._drop_all(truth.uid)
        in_flight = there.in_flight if there else 0
        self._tentatively(AssumedPod(truth, now, in_flight=in_flight, confirmed=True), seen)

    def _tentatively(self, one: AssumedPod, seen: Seen | None = None) -> AssumedPod:
        self.assumed_pods.put(one)
        known = self.pods.get(one.pod.key)
        if known is not None and known.uid == one.pod.uid:
            self.allocations.release(known.key)  # what it was promised
        if hold := self._hold(one.pod, one.pod.node_name):
            self.allocations.hold(one.key, hold, seen)
        self._note(one.pod.node_name)
        return one

    def _drop(self, one: AssumedPod) -> None:
        self.assumed_pods.remove(one)
        self.allocations.release(one.key)
        self._note(one.pod.node_name)
        known = self.pods.get(one.pod.key)
        if known is not None and known.uid == one.pod.uid and not known.node_name:
            self._put_pod(known)  # it may be promised a node

    def _drop_all(self, uid: str) -> None:
        for one in self.assumed_pods.of(uid):
            self._drop(one)

    def _put_node(self, node: Node) -> None:
        known = self.nodes.get(node.name)
        self.nodes[node.name] = node
        if known is None or not _same_inventory(known, node):
            self._read(node)

    def _put_record(
        self, record: ResourceSlice | ResourceClaim | DeviceClass | KoordinatorDevice | MigLayouts
    ) -> None:
        match record:
            case KoordinatorDevice():
                self._put_cards(record.name, record)
            case MigLayouts():
                self._put_layouts(record.node, record)
            case _:
                self.devices.put(record)

    def _remove_record(self, kind: Kind, key: str) -> None:
        if kind == "Device":
            self._put_cards(key, None)
        elif kind == "ConfigMap":
            self._put_layouts(key, None)
        else:
            self.devices.remove(kind, key)

    def _put_cards(self, node: str, cards: KoordinatorDevice | None) -> None:
        if cards is None:
            self.cards.pop(node, None)
        else:
            self.cards[node] = cards
        if (known := self.nodes.get(node)) is not None:
            self._read(known)

    def layouts_for(self, node: str) -> MigLayouts | None:
        """What the MIG manager knows of layouts for a node."""
        return self.layouts.get(node) or self.layouts.get("")

    def _put_layouts(self, key: str, layouts: MigLayouts | None) -> None:
        """Take in, or forget, what is for one node or for all (""). Nodes that it changes are read again."""
        mine = self.nodes.get(key)
        concerned = [mine] if mine else [] if key else list(self.nodes.values())
        before = [self._layout(node) for node in concerned]
        if layouts is None:
            self.layouts.pop(key, None)
        else:
            self.layouts[key] = layouts
        for node, layout in zip(concerned, before, strict=True):
            if self._layout(node) != layout:
                self._read(node)
        subject = _layouts_of(key)
        if layouts is not None and layouts.problem:
            self._problem(subject, f"{layouts.name}: {layouts.problem}")
        elif layouts is None and (mine or not key):
            self._problem(subject, "the MIG manager's configmap is not there")
        else:
            self._problems.pop(subject, None)

    def _layout(self, node: Node) -> tuple[str, bool, MigLayout | None] | None:
        layouts = self.layouts_for(node.name)
        if layouts is None or LAYOUT not in node.labels:
            return None
        return layouts.name, bool(layouts.layouts), named(node, layouts)

    def _read(self, node: Node) -> None:
        self._could_host.clear()
        try:
            inventory = inventory_of(node, self.cards.get(node.name), self.layouts_for(node.name))
            self.allocations.put_node(inventory.shape)
            problem = inventory.doubt
        except (InventoryError, QuantityError, TooMany) as error:
            self.allocations.put_node(NodeSpec(node.name, 0, 0, blocked=Reason.UNREADABLE))
            problem = f"node takes nothing: {error}"
        if problem:
            self._problem(node.name, problem)
        else:
            self._problems.pop(node.name, None)
        self._note(node.name)

    def _remove_node(self, name: str) -> None:
        self._could_host.clear()
        self.nodes.pop(name, None)
        self._problems.pop(name, None)
        self._problems.pop(_layouts_of(name), None)
        self.allocations.remove_node(name)

    def _put_pod(self, pod: Pod) -> None:
        if pod.terminated:
            self._remove_pod(pod.key)
            self._drop_all(pod.uid)
            return
        known = self.pods.get(pod.key)
        if known is not None and known.uid != pod.uid:
            self._remove_pod(pod.key)
            known = None
        if known is None:
            self._untaught.add(pod.key)
        self.pods[pod.key] = pod
        self._keys_by_uid[pod.uid] = pod.key
        assumed = self.assumed_pods.on(pod.uid, pod.node_name)
        seen = self.allocations.seen(assumed.key) if assumed and assumed.confirmed else None
        if pod.node_name:
            self._drop_all(pod.uid)  # before it is held for good: it has its room once
        node = pod.node_name or pod.nominated_node
        hold = self._hold(pod, node) if node else None
        if hold is None:
            self.allocations.release(pod.key)
        elif pod.node_name:
            self.allocations.hold(pod.key, hold, seen)
            self._note(node)
        elif not self.assumed_pods.of(pod.uid):
            self.allocations.nominate(pod.key, hold)
        if known is not None and known.node_name != pod.node_name:
            self._note(known.node_name)
        if known is None or pod.node_name != known.node_name:
            self._learn(pod)

    def _learn(self, pod: Pod) -> None:
        """Teach the policy that such a pod has come: once for each, and never from what verbs are asked.

        A pod teaches when it is first seen; where no node could host it, it may do so when it is bound.
        """
        if "Node" not in self.synced or pod.key not in self._untaught:
            return
        try:
            request = request_of(pod)
        except RequestError:
            self._untaught.discard(pod.key)
            return
        teaches = self._teaches(request)
        if teaches and not self._can_be_hosted(request):
            return
        self._untaught.discard(pod.key)
        if teaches:
            self.policy.observe(request)
            self.learnt += 1

    def _teaches(self, request: Request) -> bool:
        """Whether such pods are of a kind that others may be of, too."""
        names = [*request.products.allow, request.products.deny, *request.uuids.allow, request.uuids.deny]
        listed = sum(map(len, names)) + len(request.models or ())
        return request.wants_gpu and listed <= TAUGHT_NAMES and len(request.mode) <= NAME

    def _can_be_hosted(self, request: Request) -> bool:
        """Whether a node that is empty could host it: room for what nobody can get is not kept."""
        if (known := self._could_host.get(request)) is None:
            if len(self._could_host) >= _MOST_REQUESTS:
                self._could_host.clear()
            known = self._could_host[request] = could_host(self.fleet, request)
        return known

    def _hold(self, pod: Pod, node: str) -> Hold | None:
        held = held_by(pod)
        if held.problem:
            self._problem(pod.key, f"request cannot be read: {held.problem}")
        else:
            self._problems.pop(pod.key, None)
        if not pod.node_name:
            return None if held.problem else Hold(node, held.request, priority=pod.priority)
        devices = Counter(name for name, _ in set(pod.devices) if is_gpu_resource(name))
        reported = tuple(sorted(devices.items()))
        return Hold(node, held.request, claims_of(pod), reported, pod.priority, held.possible, pod.uid)

    def _remove_pod(self, key: str) -> None:
        self._problems.pop(key, None)
        self.allocations.release(key)
        self._untaught.discard(key)
        pod = self.pods.pop(key, None)
        if pod is not None:
            self._keys_by_uid.pop(pod.uid, None)
            self._drop_all(pod.uid)
            self._note(pod.node_name)

    def _listed(self, kind: Kind, keys: frozenset[str]) -> None:
        if kind == "Node":
            for name in self.nodes.keys() - keys:
                self._remove_node(name)
        elif kind == "Pod":
            for key in self.pods.keys() - keys:
                self._remove_pod(key)
        elif kind == "Device":
            for name in self.cards.keys() - keys:
                self._put_cards(name, None)
        elif kind == "ConfigMap":
            for name in (self.layouts.keys() or {""}) - keys:
                self._put_layouts(name, None)
        else:
            self.devices.keep(kind, keys)
        self._synced(kind)

    def _synced(self, kind: Kind) -> None:
        """Pods that were seen before the first list of the nodes teach now."""
        if kind not in self.synced:
            self.synced.add(kind)
            for key in [*self._untaught] if kind == "Node" else ():
                self._learn(self.pods[key])

    def _note(self, name: str) -> None:
        """Bring up to date what follows from the pods of a node."""
        row = self.fleet.rows.get(name)
        if row is not None and self.binds:
            self.fleet.block(row, self._closed(row))
        if row is None or not self.fleet.arrays.overcommitted[row]:
            self._overcommitted.discard(name)
        elif name not in self._overcommitted:
            self._overcommitted.add(name)
            log.warning("%s: node holds more GPU than its allocatable, it takes nothing", name)

    def _closed(self, row: int, but_for: str = "") -> Reason:
        """Why a node takes nothing at all; ``but_for`` is the UID of a pod that is not to count."""
        shape = self.fleet.specs[row]
        assert shape is not None
        writer = WRITERS.get(shape.sharing_resource) if self.binds else None
        if shape.blocked or writer is None:
            return shape.blocked
        others = (pod for pod in self.pods_on(shape.name) if pod.uid != but_for)
        return Reason.PLUGIN_BUSY if writer.busy(self.nodes[shape.name], others) else Reason.FITS

    def _problem(self, subject: str, text: str) -> None:
        if self._problems.get(subject) != text:
            log.warning("%s: %s", subject, text)
        self._problems[subject] = text


def _layouts_of(node: str) -> str:
    return f"MIG layouts of {node or 'all nodes'}"


def _same_inventory(one: Node, other: Node) -> bool:
    return _inventory_of(one) == _inventory_of(other)


def _inventory_of(node: Node) -> tuple[object, ...]:
    return (
        *(node.labels, node.annotations, node.allocatable),
        *(node.taints, node.conditions, node.unreadable, node.problem),
    )
