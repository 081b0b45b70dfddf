"""Pods as shown by the watch and as assumed by ``bind``, each with its allocation."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

from extender.cluster.allocations import Allocations, Placement, Problems
from extender.cluster.claim_check import ClaimHistory
from extender.cluster.reservations import FAILED, AssumedPod, Reservations
from extender.dialects.pod_request import bound_request, claims_of
from extender.dialects.shared_gpus import is_gpu_resource
from extender.k8s.objects import Pod
from extender.untrusted.limits import REFUSED_PODS
from packing.fleet.node_usage import Allocation

JUST_ENDED = 5.0
"""Seconds after the end of a pod in which pending pods are expected to take its room: kube-scheduler retries
them when it observes the end. Room that is still free later may be closed for a reason that Stowage does not
see."""

_STATUS_ALONE = {"phase", "ready", "started", "unscheduled", "disruption", "disrupted", "ends", "deleted"}
"""Fields that do not affect what an unfinished bound pod holds of its node and its queue."""
_holdings = attrgetter(*[field.name for field in fields(Pod) if field.name not in _STATUS_ALONE])


class PodTable(Mapping[str, Pod]):
    """Pods by key that the watch shows and that have not ended, and the ``reservations`` of all pods.

    Writes their resources into ``allocations``; the methods return the nodes whose pods changed ("" is no
    node). ``waiting``: keys of pods without a node. ``leaving``: keys of terminating pods with a node.
    ``anti_affine``: keys of pods with required anti-affinity to other pods. ``claiming``: by namespace and
    name of a PersistentVolumeClaim, keys of the pods that name it. ``misaligned``: the latest pods
    that kubelet rejected by its NUMA policy, which have ended but still exist; ``not_admitted``: the nodes of
    those that it rejected since a device plugin allocated nothing. ``expects``: by UID of a
    pending pod, the time since which it has been told to wait for the room of pods that have just ended.
    ``obscure``: by key, the nodes of pods that may hold more than can be read. ``on_bound`` is called when a
    pending pod is bound, ``on_end`` when a bound pod is gone. ``now``: Unix seconds.
    """

    def __init__(self, allocations: Allocations) -> None:
        self.on_bound: Callable[[Pod], None] = lambda pod: None
        self.on_end: Callable[[Pod], None] = lambda pod: None
        self.reservations = Reservations(self.by_uid)
        self.assumed = self.reservations.assumed
        self.waiting: dict[str, None] = {}
        self.leaving: dict[str, None] = {}
        self.misaligned: dict[str, Pod] = {}
        self.not_admitted: dict[str, str] = {}
        self.anti_affine: dict[str, None] = {}
        self.claiming: dict[str, dict[str, None]] = {}
        self.expects: dict[str, float] = {}
        self.obscure: dict[str, str] = {}
        self.now: Callable[[], float] = time.time
        self._ended: dict[str, float] = {}  # by node, oldest first
        self._starting: dict[str, None] = {}  # keys of bound pods that may have started only recently
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
        """Add or update a pod as the watch shows it. Once it has a node, it is no longer assumed."""
        if pod.terminated:
            return self._end(pod)
        known = self._pods.get(pod.key)
        if pod.is_obscure and known is not None and known.uid == pod.uid and known.node_name:
            pod = replace(known, unreadable=pod.unreadable, problem=pod.problem)  # it keeps its allocation
        only_status = known is not None and pod.node_name and _holdings(known) == _holdings(pod)
        if only_status and not self.assumed.of_pod(pod.uid):  # as in most events from kubelets
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
        self._index(pod)
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
        if pod.not_admitted and bound_request(pod).request.wants_gpu:
            self.not_admitted[pod.key] = pod.node_name
        refused: tuple[dict[str, Any], ...] = self.misaligned, self.not_admitted
        for pods in refused:
            if len(pods) > REFUSED_PODS:
                del pods[next(iter(pods))]
        return changed

    def or_misaligned(self) -> Mapping[str, Pod]:
        """All pods, including those that kubelet rejected."""
        return {**self.misaligned, **self._pods}

    def failed_pods(self) -> Iterator[Pod]:
        """Pending pods whose last scheduling attempt ended with an error."""
        return (pod for key in self.waiting if (pod := self._pods[key]).unscheduled == FAILED)

    def records(self) -> list[Pod]:
        """All pods. Assumed pods have their node once the binding is confirmed."""
        found = dict(self._pods)
        for assumed in self.assumed:
            if assumed.confirmed and (known := found.get(assumed.pod.key)) and known.uid == assumed.pod.uid:
                found[assumed.pod.key] = assumed.pod
        return list(found.values())

    def remove(self, key: str) -> set[str]:
        self._release(key)
        self.misaligned.pop(key, None)
        self.not_admitted.pop(key, None)
        pod = self._pods.pop(key, None)
        if pod is None:
            return set()
        self._keys_by_uid.pop(pod.uid, None)
        self.anti_affine.pop(key, None)
        for claim in (f"{pod.namespace}/{name}" for name in pod.volume_claims):
            users = self.claiming.get(claim, {})
            users.pop(key, None)
            if not users:
                self.claiming.pop(claim, None)
        self.reservations.forget(pod.uid)
        self.waiting.pop(key, None)
        self.leaving.pop(key, None)
        self._starting.pop(key, None)
        if pod.node_name:
            now = self.now()
            self._ended.pop(pod.node_name, None)
            self._ended[pod.node_name] = now
            while self._ended[oldest := next(iter(self._ended))] < now - JUST_ENDED:
                del self._ended[oldest]
            self.on_end(pod)
        self.expects.pop(pod.uid, None)
        return self.forget_all(pod.uid) | {pod.node_name}

    def _index(self, pod: Pod) -> None:
        self._keys_by_uid[pod.uid] = pod.key
        if pod.scheduling_constraints.anti_affinity:
            self.anti_affine[pod.key] = None
        for name in pod.volume_claims:
            self.claiming.setdefault(f"{pod.namespace}/{name}", {})[pod.key] = None

    def keep(self, keys: frozenset[str], began: float) -> set[str]:
        """Forget all pods of the watch except these. Forget also assumed pods that were bound before this
        list ``began`` (monotonic seconds): it would show them if they still existed."""
        known = self._pods.keys() | self.misaligned.keys() | self.not_admitted.keys()
        changed = set().union(*(self.remove(key) for key in known - keys))
        for assumed in self.assumed:
            if assumed.confirmed and assumed.since < began and self.by_uid(assumed.pod.uid) is None:
                changed |= self.forget(assumed)
        return changed

    def assume(self, assumed: AssumedPod, history: ClaimHistory | None = None) -> set[str]:
        """Count a pod as bound; ``history``: its claims observed on this node."""
        self.assumed.insert(assumed)
        self._allocate(assumed.key, assumed.pod, history)
        return {assumed.pod.node_name}

    def forget(self, assumed: AssumedPod) -> set[str]:
        self.assumed.delete(assumed)
        self._release(assumed.key)
        return {assumed.pod.node_name}

    def forget_all(self, uid: str) -> set[str]:
        """Stop counting this pod as assumed anywhere."""
        return set().union(*map(self.forget, self.assumed.of_pod(uid)))

    def starting(self, since: float) -> dict[str, list[Pod]]:
        """By node, the pods that are bound or assumed there and had not started by ``since``."""
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
        """Nodes on which a pod ended in the last ``JUST_ENDED`` seconds before ``now``, in Unix seconds."""
        return [node for node, at in self._ended.items() if at >= now - JUST_ENDED]

    def by_uid(self, uid: str) -> Pod | None:
        """The pod with this UID, as the watch shows it."""
        key = self._keys_by_uid.get(uid)
        return self._pods.get(key) if key else None

    def is_bound(self, uid: str) -> bool:
        """Whether the pod with this UID is bound or assumed."""
        pod = self.by_uid(uid)
        return bool(pod and pod.node_name) or bool(self.assumed.of_pod(uid))

    def node_of(self, pod: Pod) -> str:
        """The node to which a known pod is bound, assumed or nominated; "" if there is none."""
        assumed = (assumed.pod.node_name for assumed in self.assumed.of_pod(pod.uid))
        return pod.node_name or next(assumed, "") or pod.nominated_node

    def on_node(self, node: str) -> Iterator[Pod]:
        """Pods that are bound to a node or assumed there."""
        for key in self._allocations.pods_on(node):
            assumed = self.assumed.by_key(key)
            yield assumed.pod if assumed else self._pods[key]

    def allocations_of(self, pod: Pod) -> list[Allocation]:
        """All allocations of the pod in the fleet, including those of assumed bindings."""
        keys = [pod.key, *(assumed.key for assumed in self.assumed.of_pod(pod.uid))]
        return [*filter(None, map(self._allocations.allocation_of, keys))]

    @property
    def problems(self) -> dict[str, str]:
        """Unreadable requests, with the keys of ``allocations``."""
        return self._problems | self.reservations.problems()

    def _allocate(self, key: str, pod: Pod, history: ClaimHistory | None = None) -> None:
        bound = bound_request(pod)
        closes = "; its node accepts no pods" if bound.obscure else ""
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
        self._problems.pop(key, None)
        self.obscure.pop(key, None)
        self._allocations.release(key)


def _reported(pod: Pod) -> tuple[tuple[str, int], ...]:
    if not pod.devices:
        return ()
    return tuple(sorted(Counter(name for name, _ in set(pod.devices) if is_gpu_resource(name)).items()))
