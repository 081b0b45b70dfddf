"""Filters of kube-scheduler by what Stowage does not place by: free amounts of other resources, the number of
pods that a node accepts, and the pods that another one excludes or requires.

The resources are RDMA and EFA interfaces, huge pages, local storage and other extended resources.
kube-scheduler filters by them before it calls Stowage (``NodeResourcesFit`` of k8s.io/kubernetes,
pkg/scheduler/framework/plugins); code that examines all nodes, such as ``explain`` and ``plan``, filters
here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from extender.cluster.state import State
from extender.dialects.pod_resources import Amounts
from extender.dialects.shared_gpus import is_gpu_resource
from extender.dra.pod_claims import CLASS_PREFIX, class_resources
from extender.k8s.manifest import Pairs
from extender.k8s.objects import Node, Pod, peak_usage
from extender.k8s.quantity import QuantityError, whole
from extender.untrusted.limits import KEY, shorten
from packing.model.request import Request

PODS = "pods"
MOST = 1 << 55
"""Maximum amount of a pod or node, and the value of an unreadable amount."""
OF_SHARING_SYSTEMS = frozenset(
    {
        *("nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores", "nvidia.com/priority"),
        *("nvidia.com/vgpu-number", "nvidia.com/vgpu-memory", "nvidia.com/vgpu-cores"),
        *("volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-memory-percentage"),
        *("volcano.sh/vgpu-cores", "aliyun.com/gpu-mem", "aliyun.com/gpu-count", "koordinator.sh/gpu"),
        *("koordinator.sh/gpu-core", "koordinator.sh/gpu-memory", "koordinator.sh/gpu-memory-ratio"),
        *("amd.com/gpumem", "amd.com/gpumem-percentage", "amd.com/gpucores"),
    }
)
"""The resources of the sharing systems (docs/dialects.md), which nodes need not list as allocatable."""
_LEAST = -(1 << 62)
_STORAGE, _HUGE_PAGES = "ephemeral-storage", "hugepages-"


@dataclass(frozen=True, slots=True)
class Lack:
    """A resource of which a node has too little: the amount that the pod requests, the free amount, and the
    total."""

    name: str
    asked: int
    left: int
    total: int

    @property
    def reason(self) -> str:
        return lack_reason(self.name, offered=bool(self.total))


def lack_reason(name: str, *, offered: bool) -> str:
    """Reason to reject a node that lacks this. ``offered``: by the node, or by any node if that is
    unknown."""
    if name == PODS:
        return "node has reached its maximum number of pods"
    if not offered:
        return f"node does not offer {shorten(name, KEY)}"
    return f"node has too little {shorten(name, KEY)} left"


def asked_by(pod: Pod) -> Amounts:
    """Amounts of a node's other resources that the pod takes, and one of the node's ``pods``. Huge pages in
    pod-level requests replace those of the containers."""
    known: Amounts | None = getattr(pod.spec, "asked_memo", None)
    if known is None:
        spec = pod.spec
        amounts = peak_usage(spec, lambda container: _amounts(container.requests))
        total = Counter({**amounts, **_amounts(spec.requests)})
        total.update(_amounts(spec.overhead))
        known = {name: min(n, MOST) for name, n in total.items() if n} | {PODS: 1}
        object.__setattr__(pod.spec, "asked_memo", known)
    return known


def _amounts(pairs: Pairs) -> dict[str, int]:
    return {name: _amount(text, MOST) for name, text in pairs if _is_other(name)}


def _is_other(name: str) -> bool:
    if name == _STORAGE or name.startswith(_HUGE_PAGES):
        return True
    is_counted = "/" in name and not name.startswith(CLASS_PREFIX)
    return is_counted and name not in OF_SHARING_SYSTEMS and not is_gpu_resource(name)


def _amount(text: str, unreadable: int, *, round_up: bool = True) -> int:
    try:
        return min(whole(text, round_up=round_up), MOST)
    except QuantityError:
        return unreadable


def totals_of(node: Node, names: Collection[str]) -> dict[str, int]:
    """Allocatable amounts of these resources. An unreadable number of pods is no limit."""
    found = {name: _amount(node.allocatable.get(name, "0"), 0, round_up=False) for name in names}
    if PODS in found:
        found[PODS] = _amount(node.allocatable.get(PODS, ""), MOST)
    return found


def left_on(
    state: State, node: Node, names: Collection[str], without: Collection[str] = ()
) -> dict[str, int]:
    """Free amounts of these resources, ``without`` the pods of these UIDs."""
    left = totals_of(node, names)
    if left.keys() == {PODS} and not without:  # most pods
        return {PODS: left[PODS] - len(state.allocations.pods_on(node.name))}
    for pod in state.pods.on_node(node.name):
        if pod.uid not in without:
            for name, amount in asked_by(pod).items():
                if name in left:
                    left[name] -= amount
    return left


def lacking_on(state: State, node: Node, asked: Amounts, without: Collection[str] = ()) -> Iterator[Lack]:
    """Resources of which the node has too little, ``without`` the pods of these UIDs. DRA devices do not
    count."""
    left = left_on(state, node, asked, without)
    for name, amount in asked.items():
        if left[name] < amount and not is_of_dra(state, node, name):
            yield Lack(name, amount, left[name], totals_of(node, [name])[name])


class OtherResources:
    """``left``: for each other resource that pods request and nodes offer, and for the number of pods, the
    free amounts of the nodes of a state: (N,) by row."""

    def __init__(self, state: State) -> None:
        asked = {PODS}.union(*(asked_by(pod) for pod in state.pods.values()))
        rows = state.fleet.arrays.capacity
        self.left, self._none = {PODS: np.zeros(rows, np.int64)}, np.zeros(rows, np.int64)
        for node in state.nodes.values():
            for name, amount in left_on(state, node, asked & {PODS, *node.allocatable}).items():
                of_nodes = self.left.setdefault(name, np.zeros(rows, np.int64))
                of_nodes[state.fleet.rows[node.name]] = max(amount, _LEAST)

    def lacking(self, pod: Pod) -> dict[str, npt.NDArray[np.bool_]]:
        """For each of these that the pod requests, (N,) where too little is free."""
        return {name: self.left.get(name, self._none) < amount for name, amount in asked_by(pod).items()}

    def take(self, pod: Pod, row: int, times: int = 1) -> None:
        """Allocate the pod's amounts on a row; ``times`` of -1 releases them."""
        for name, amount in asked_by(pod).items():
            if name in self.left:
                self.left[name][row] -= times * amount


def wants_devices(state: State, pod: Pod, request: Request) -> bool:
    """Whether the pod requests a GPU or any DRA device, by claims or by resources of DeviceClasses."""
    if request.wants_gpu or pod.spec.claims or class_resources(pod.spec):
        return True
    return not state.devices.extended_resources.isdisjoint(asked_by(pod))


def is_of_dra(state: State, node: Node, name: str) -> bool:
    """Whether the node offers the extended resource as DRA devices: a DeviceClass provides it, and the node
    does not advertise it itself (``fitsRequest`` of ``NodeResourcesFit``; KEP-5004)."""
    if name not in state.devices.extended_resources or totals_of(node, [name])[name]:
        return False
    return state.devices.on_node(node.name, state.nodes.labels_of(node.name)).has_pools


def takes_another_pod(state: State, node: str, leaving: int = 0) -> bool:
    """Whether a known node accepts another pod once ``leaving`` of its pods have ended."""
    most = totals_of(state.nodes[node], [PODS])[PODS]
    return len(state.allocations.pods_on(node)) - leaving < most


class PodConflicts:
    """Running pods with which a pod must not share a domain, because of its own anti-affinity or theirs, or
    that it must be near (required affinity, kube-scheduler's ``InterPodAffinity``), and those of which it
    needs the claim (``VolumeRestrictions``). ``gone``: the UIDs of pods that do not count."""

    def __init__(self, state: State, pod: Pod, gone: Collection[str] = ()) -> None:
        self._by_domain: defaultdict[tuple[str, str], list[Pod]] = defaultdict(list)
        own, pods = pod.scheduling_constraints.anti_affinity, state.pods
        others = pods.values() if own else (pods[key] for key in pods.anti_affine)
        for other in (other for other in others if other.node_name and other.uid not in (pod.uid, *gone)):
            labels, theirs = state.nodes.labels_of(other.node_name), other.scheduling_constraints
            keys = [term.key for term in own if term.selects(other.namespace, other.labels)]
            keys += [t.key for t in theirs.anti_affinity if t.selects(pod.namespace, pod.labels)]
            for key in keys:
                if key in labels:
                    self._by_domain[key, labels[key]].append(other)
        self._keys = {key for key, _ in self._by_domain}
        names = pod.volume_claims
        self._users = [user for name in names for user in state.admission.users_of_one(pod, name)]
        self._users = [user for user in self._users if user.uid not in gone]

        self._near = dict(self._domains_near(state, pod, gone))

    def _domains_near(
        self, state: State, pod: Pod, gone: Collection[str]
    ) -> Iterator[tuple[str, frozenset[str] | None]]:
        """The domains in which the pods are that this one requires, by key; None: in any, for the first of
        pods that require each other."""
        terms = pod.scheduling_constraints.affinity

        def meets(other: Pod) -> bool:
            return all(term.selects(other.namespace, other.labels) for term in terms)

        bound = (other for other in state.pods.values() if other.node_name and other.uid not in gone)
        nodes = [state.nodes.labels_of(other.node_name) for other in bound if meets(other)] if terms else []
        for term in terms:
            domains = frozenset(labels[term.key] for labels in nodes if term.key in labels)
            yield term.key, None if not nodes and meets(pod) else domains

    def far(self, node: Node) -> str:
        """The key of the domain that is not one of the pods that this one requires, "" for none."""
        far = (
            key
            for key, domains in self._near.items()
            if key not in node.labels or (domains is not None and node.labels[key] not in domains)
        )
        return next(far, "")

    def on(self, node: Node) -> list[Pod]:
        domains = ((key, node.labels.get(key, "")) for key in self._keys)
        return [pod for domain in domains for pod in self._by_domain.get(domain, ())] + self._users
