"""Pods as the watch shows them, and as ``bind`` assumes them, each with what it has of its node."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from operator import attrgetter

from extender.cluster.allocations import Allocations, Placement, Problems
from extender.cluster.claim_check import ClaimHistory
from extender.cluster.reservations import FAILED, AssumedPod, Reservations
from extender.dialects.pod_request import bound_request, claims_of
from extender.dialects.shared_gpus import is_gpu_resource
from extender.k8s.objects import Pod
from extender.untrusted.limits import REFUSED_PODS
from packing.fleet.node_usage import Allocation

JUST_ENDED = 5.0
"""Seconds after the end of a pod in which its room counts as coming: kube-scheduler tries the pod again when
it sees that end. Later, room that is free and was not taken may be closed for a reason that Stowage does not
see."""

_STATUS_ALONE = {"phase", "ready", "started", "unscheduled", "disruption", "disrupted", "ends", "deleted"}
"""Fields that say nothing about what a bound pod that has not ended holds of its node, or of its queue."""
_holdings = attrgetter(*[field.name for field in fields(Pod) if field.name not in _STATUS_ALONE])


class PodTable(Mapping[str, Pod]):
    """Pods by key that the watch shows and that have not ended, and the ``reservations`` of all pods.

    Writes what they have into ``allocations``, and returns the nodes whose pods it changed ("" is no node).
    ``waiting`` are the keys of those without a node, ``leaving`` of those with a node that terminate,
    ``anti_affine`` of those with a required anti-affinity to other pods.
    ``misaligned``: the last that kubelet refused for its NUMA policy, which have ended and still exist.
    ``expects``: since when a pending pod, by its UID, is told to wait for the room of pods that have just
    ended. ``obscure``: the nodes of pods that may hold more than can be read, by key. ``on_bound`` is called
    when a pod that waited gets a node, ``on_end`` when one with a node is gone. ``now``: Unix seconds.
    """

    def __init__(self, allocations: Allocations) -> None:
        self.on_bound: Callable[[Pod], None] = lambda pod: None
        self.on_end: Callable[[Pod], None] = lambda pod: None
        self.reservations = Reservations(self.by_uid)
        self.assumed = self.reservations.assumed
        self.waiting: dict[str, None] = {}
        self.leaving: dict[str, None] = {}
        self.misaligned: dict[str, Pod] = {}
        self.anti_affine: dict[str, None] = {}
        self.expects: dict[str, float] = {}
        self.obscure: dict[str, str] = {}
        self.now: Callable[[], float] = time.time
        self._ended: dict[str, float] = {}  # by node, the oldest first
        self._starting: dict[str, None] = {}  # keys of bound pods that may not have started for long
        self._problems = Problems()
        self._pods: dict[str, Pod] = {}
        self._keys_by_uid: dict[str, str] = {}
        self._allocations = allocations

    def __getitem__(self, key: str) -> Pod:
        return self._pods[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pods)

    def __len__(self) -> int:
        return len(self._pods)

    def put(self, pod: Pod) -> set[str]:
        """Take in a pod as the watch shows it. Where it has a node, nothing is assumed of it any more."""
        if pod.terminated:
            return self._end(pod)
        known = self._pods.get(pod.key)
        if pod.is_obscure and known is not None and known.uid == pod.uid and known.node_name:
            pod = replace(known, unreadable=pod.unreadable, problem=pod.problem)  # it holds what it held
        only_status = known is not None and pod.node_name and _holdings(known) == _holdings(pod)
        if only_status and not self.assumed.of_pod(pod.uid):  # as in most of the kubelet's events
            self._pods[pod.key] = pod
            return {pod.node_name}
        changed = set()
        if known is not None and known.uid != pod.uid:
            changed |= self.remove(pod.key)
        elif known is not None:
            changed.add(known.node_name)
            if pod.node_name and not known.node_name:
                self.on_bound(pod)
        self._pods[pod.key] = pod
        self._keys_by_uid[pod.uid] = pod.key
        if pod.scheduling_constraints.anti_affinity:
            self.anti_affine[pod.key] = None
        if pod.node_name:
            self.waiting.pop(pod.key, None)
            self._starting[pod.key] = None
            self.reservations.bound(known, pod)
            self.expects.pop(pod.uid, None)
            if pod.deleting:
                self.leaving[pod.key] = None
        else:
            self.waiting[pod.key] = None
            self.reservations.update(known, pod)
            self._release(pod.key)
            return changed | {""}
        assumed = self.assumed.on_node(pod.uid, pod.node_name)
        history = self._allocations.history_of(assumed.key) if assumed and assumed.confirmed else None
        changed |= self.forget_all(pod.uid)  # first: it must not be allocated twice
        self._allocate(pod.key, pod, history)
        return changed | {pod.node_name}

    def _end(self, pod: Pod) -> set[str]:
        changed = self.remove(pod.key) | self.forget_all(pod.uid)
        if pod.misaligned:
            self.misaligned[pod.key] = pod
            while len(self.misaligned) > REFUSED_PODS:
                del self.misaligned[next(iter(self.misaligned))]
        return changed

    def or_misaligned(self) -> Mapping[str, Pod]:
        """All of them, and those that kubelet refused."""
        return {**self.misaligned, **self._pods}

    def failed_pods(self) -> Iterator[Pod]:
        """Those that wait and whose last attempt ended with an error."""
        return (pod for key in self.waiting if (pod := self._pods[key]).unscheduled == FAILED)

    def records(self) -> list[Pod]:
        """All pods; those that are assumed to be bound with their node, once it is certain that they are."""
        found = dict(self._pods)
        for assumed in self.assumed:
            if assumed.confirmed and (known := found.get(assumed.pod.key)) and known.uid == assumed.pod.uid:
                found[assumed.pod.key] = assumed.pod
        return list(found.values())

    def remove(self, key: str) -> set[str]:
        self._release(key)
        self.misaligned.pop(key, None)
        pod = self._pods.pop(key, None)
        if pod is None:
            return set()
        self._keys_by_uid.pop(pod.uid, None)
        self.anti_affine.pop(key, None)
        self.reservations.forget(pod.uid)
        self.waiting.pop(key, None)
        self.leaving.pop(key, None)
        self._starting.pop(key, None)
        if pod.node_name:
            self._note_end(pod.node_name)
            self.on_end(pod)
        self.expects.pop(pod.uid, None)
        return self.forget_all(pod.uid) | {pod.node_name}

    def keep(self, keys: frozenset[str], began: float) -> set[str]:
        """Forget all pods of the watch but these, and assumed pods that this list would show if they were
        still there, because they were bound before it ``began`` (monotonic seconds)."""
        changed = set().union(
            *(self.remove(key) for key in (self._pods.keys() | self.misaligned.keys()) - keys)
        )
        for assumed in self.assumed:
            if assumed.confirmed and assumed.since < began and self.by_uid(assumed.pod.uid) is None:
                changed |= self.forget(assumed)
        return changed

    def assume(self, assumed: AssumedPod, history: ClaimHistory | None = None) -> set[str]:
        """Count a pod as bound; ``history`` is what was seen of it on this node."""
        self.assumed.insert(assumed)
        self._allocate(assumed.key, assumed.pod, history)
        return {assumed.pod.node_name}

    def forget(self, assumed: AssumedPod) -> set[str]:
        self.assumed.delete(assumed)
        self._release(assumed.key)
        return {assumed.pod.node_name}

    def forget_all(self, uid: str) -> set[str]:
        """Do not count this pod as assumed anywhere any more."""
        return set().union(*map(self.forget, self.assumed.of_pod(uid)))

    def starting(self, since: float) -> dict[str, list[Pod]]:
        """By node, the pods that are bound to it, or assumed to be, and have not started until ``since``."""
        found: dict[str, list[Pod]] = {}
        for key in [*self._starting]:
            if 0 < self._pods[key].started <= since:
                del self._starting[key]
            else:
                found.setdefault(self._pods[key].node_name, []).append(self._pods[key])
        for assumed in self.assumed:
            found.setdefault(assumed.pod.node_name, []).append(assumed.pod)
        return found

    def just_ended(self, now: float) -> list[str]:
        """The nodes that a pod left in the last ``JUST_ENDED`` seconds before ``now``, in Unix seconds."""
        return [node for node, at in self._ended.items() if at >= now - JUST_ENDED]

    def _note_end(self, node: str) -> None:
        now = self.now()
        self._ended.pop(node, None)
        self._ended[node] = now
        while (oldest := next(iter(self._ended))) != node and self._ended[oldest] < now - JUST_ENDED:
            del self._ended[oldest]

    def by_uid(self, uid: str) -> Pod | None:
        """The pod of this UID, as the watch shows it."""
        key = self._keys_by_uid.get(uid)
        return self._pods.get(key) if key else None

    def is_bound(self, uid: str) -> bool:
        """Whether the pod of this UID has a node, or is assumed to have one."""
        pod = self.by_uid(uid)
        return bool(pod and pod.node_name) or bool(self.assumed.of_pod(uid))

    def node_of(self, pod: Pod) -> str:
        """The node that a known pod has, is assumed to have, or is nominated to; "" for none."""
        assumed = (assumed.pod.node_name for assumed in self.assumed.of_pod(pod.uid))
        return pod.node_name or next(assumed, "") or pod.nominated_node

    def on_node(self, node: str) -> Iterator[Pod]:
        """The pods that are bound to a node, or assumed to be."""
        for key in self._allocations.pods_on(node):
            assumed = self.assumed.by_key(key)
            yield assumed.pod if assumed else self._pods[key]

    def allocations_of(self, pod: Pod) -> list[Allocation]:
        """All that the pod has in the fleet, also where it is assumed."""
        keys = [pod.key, *(assumed.key for assumed in self.assumed.of_pod(pod.uid))]
        return [*filter(None, map(self._allocations.allocation_of, keys))]

    @property
    def problems(self) -> dict[str, str]:
        """What cannot be read, by the keys of ``allocations``."""
        return self._problems | self.reservations.problems()

    def _allocate(self, key: str, pod: Pod, history: ClaimHistory | None = None) -> None:
        """Allocate what a pod has of its node under this key."""
        bound = bound_request(pod)
        closes = "; its node takes nothing" if bound.obscure else ""
        self._problems.report(key, bound.problem and f"request cannot be read: {bound.problem}{closes}")
        self.obscure.pop(key, None)
        if bound.obscure:
            self.obscure[key] = pod.node_name
        placement = Placement(
            pod.node_name,
            bound.request,
            claims=claims_of(pod),
            reported=_reported(pod),
            priority=pod.priority,
            possible=bound.possible_shares,
            uid=pod.uid,
        )
        self._allocations.allocate(key, placement, history)

    def _release(self, key: str) -> None:
        """Nothing counts under this key any more, and nothing of it is a problem."""
        self._problems.pop(key, None)
        self.obscure.pop(key, None)
        self._allocations.release(key)


def _reported(pod: Pod) -> tuple[tuple[str, int], ...]:
    """How many devices of each GPU resource kubelet reports."""
    if not pod.devices:
        return ()
    return tuple(sorted(Counter(name for name, _ in set(pod.devices) if is_gpu_resource(name)).items()))
