"""What a node has left of the resources that Stowage does not place by, and how many pods it still takes.

RDMA and EFA interfaces, huge pages, local storage and other extended resources. kube-scheduler filters by
them before it asks Stowage (``NodeResourcesFit`` of k8s.io/kubernetes, pkg/scheduler/framework/plugins); who
looks at all nodes, as ``explain`` and ``plan`` do, asks here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from extender.cluster.state import State
from extender.dialects.pod_resources import Amounts
from extender.dialects.shared_gpus import is_gpu_resource
from extender.dra.pod_claims import CLASS_PREFIX, class_resources
from extender.k8s.manifest import Pairs
from extender.k8s.objects import Node, Pod, PodSpec, peak_usage
from extender.k8s.quantity import QuantityError, whole
from extender.untrusted.limits import KEY, shorten
from packing.model.request import Request

PODS = "pods"
MOST = 1 << 55
"""Of an amount: what cannot be read is as much as that, and the most that a pod or node can have."""
OF_SHARING_SYSTEMS = frozenset(
    {
        *("nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores", "nvidia.com/priority"),
        *("nvidia.com/vgpu-number", "nvidia.com/vgpu-memory", "nvidia.com/vgpu-cores"),
        *("volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-memory-percentage"),
        *("volcano.sh/vgpu-cores", "aliyun.com/gpu-mem", "aliyun.com/gpu-count", "koordinator.sh/gpu"),
        *("koordinator.sh/gpu-core", "koordinator.sh/gpu-memory", "koordinator.sh/gpu-memory-ratio"),
        "koordinator.sh/gpu.shared",
    }
)
"""The resources of the sharing systems (docs/dialects.md), which nodes need not list as allocatable."""
_STORAGE, _HUGE_PAGES = "ephemeral-storage", "hugepages-"


@dataclass(frozen=True, slots=True)
class Lack:
    """What a node has too little of: how much of it the pod asks for, is left, and is there."""

    name: str
    asked: int
    left: int
    total: int

    @property
    def reason(self) -> str:
        return lack_reason(self.name, offered=bool(self.total))

    @property
    def text(self) -> str:
        if self.name == PODS:
            return f"takes {self.total} pods, {self.total - self.left} are there"
        name, (asked, left, total) = shorten(self.name, KEY), (self.asked, max(0, self.left), self.total)
        if "/" in name:
            return f"needs {asked} {name}, {left_text(left, total)}"
        gib = [f"{round(amount / (1 << 30), 2):g}" for amount in (asked, left, total)]
        return f"needs {gib[0]} GiB of {name}, {left_text(gib[1], gib[2])}"


def lack_reason(name: str, *, offered: bool) -> str:
    """Why a node that lacks this is refused. ``offered``: by the node, or by any if that is not known."""
    if name == PODS:
        return "node runs as many pods as it may"
    if not offered:
        return f"node does not offer {shorten(name, KEY)}"
    return f"node has too little {shorten(name, KEY)} left"


def left_text(left: object, total: object) -> str:
    """What a node has left of something; a node that has none of it at all may only not report it."""
    return f"{left} of {total} are free" if str(total) != "0" else "the node reports none"


def asked_by(pod: Pod) -> Amounts:
    """What the pod takes of a node beside what Stowage places by, and one of its ``pods``. Huge pages that
    it requests as a whole replace those of its containers."""
    known: Amounts | None = getattr(pod.spec, "asked_memo", None)
    if known is None:
        known = _asked_by(pod.spec)
        object.__setattr__(pod.spec, "asked_memo", known)
    return known


def _asked_by(spec: PodSpec) -> Amounts:
    amounts = peak_usage(spec, lambda container: _amounts(container.requests))
    total = Counter({**amounts, **_amounts(spec.requests)})
    total.update(_amounts(spec.overhead))
    return {name: min(n, MOST) for name, n in total.items() if n} | {PODS: 1}


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
    """What the node offers of these. A number of pods that cannot be read is no limit."""
    found = {name: _amount(node.allocatable.get(name, "0"), 0, round_up=False) for name in names}
    if PODS in found:
        found[PODS] = _amount(node.allocatable.get(PODS, ""), MOST)
    return found


def left_on(
    state: State, node: Node, names: Collection[str], without: Collection[str] = ()
) -> dict[str, int]:
    """What the node has left of these, ``without`` the pods of these UIDs."""
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
    """What the node has too little of, ``without`` the pods of these UIDs. Devices of DRA do not count."""
    left = left_on(state, node, asked, without)
    for name, amount in asked.items():
        if left[name] < amount and not is_of_dra(state, node, name):
            yield Lack(name, amount, left[name], totals_of(node, [name])[name])


def wants_devices(state: State, pod: Pod, request: Request) -> bool:
    """Whether the pod asks for a GPU, or for any device of DRA: by claims or by resources of classes."""
    if request.wants_gpu or pod.spec.claims or class_resources(pod.spec):
        return True
    return not state.devices.extended_resources.isdisjoint(asked_by(pod))


def is_of_dra(state: State, node: Node, name: str) -> bool:
    """Whether the node offers the extended resource as devices: a DeviceClass provides it, and the node does
    not advertise it itself (``fitsRequest`` of ``NodeResourcesFit``; KEP-5004)."""
    if name not in state.devices.extended_resources or totals_of(node, [name])[name]:
        return False
    return state.devices.on_node(node.name, state.nodes.labels_of(node.name)).has_pools


def takes_another_pod(state: State, node: str, leaving: int = 0) -> bool:
    """Whether a known node may run one more pod than it has once ``leaving`` pods have left it."""
    most = totals_of(state.nodes[node], [PODS])[PODS]
    return len(state.allocations.pods_on(node)) - leaving < most
