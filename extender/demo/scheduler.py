"""A model of kube-scheduler's scheduling cycle, limited to the parts that matter for the demo's pods.

It filters by node selector and resources. Scores come from the default profile or, over HTTP, from Stowage,
through ``filter``, ``prioritize`` and ``bind`` in kube-scheduler's order and format; Stowage's scores
outweigh all others. Sources, all in kubernetes/kubernetes v1.36, pkg/scheduler: ``schedule_one.go`` (cycle,
ties), ``framework/plugins/noderesources`` (fit, scores), ``apis/config/v1/default_plugins.go`` (the default
profile). The other score plugins of the profile give every node the same score here: the pods have no
preferences, tolerations, spread constraints or volumes, and no node has images.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from extender.demo.child_service import ChildService
from extender.demo.pods import Manifest
from extender.k8s.quantity import mib, milli, whole

TOP = 100  # MaxNodeScore

Amounts = Mapping[str, int]
"""By resource: CPU in milli, memory in MiB, pods and devices as counts."""


@dataclass(slots=True)
class NodeInfo:
    """A node in kube-scheduler's cache. ``requested`` is the sum over its pods."""

    name: str
    labels: Mapping[str, str]
    allocatable: Amounts
    requested: Counter[str] = field(default_factory=Counter)

    def free(self, resource: str) -> int:
        """The amount that is not requested by any pod."""
        return self.allocatable.get(resource, 0) - self.requested[resource]


@dataclass(frozen=True, slots=True)
class PodInfo:
    """A pod: its manifest, and its requests."""

    manifest: Manifest
    amounts: Amounts


class Scheduler:
    """A scheduler with its cache, its placed pods and its pending pods; the default one if ``stowage`` is
    None."""

    def __init__(self, nodes: Sequence[NodeInfo], seed: int, stowage: ChildService | None = None) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.placed: list[PodInfo] = []
        self.waiting: list[PodInfo] = []
        self._stowage, self._random = stowage, random.Random(seed)

    def schedule(self, pod: PodInfo) -> str | None:
        """Run one cycle. Returns the node to which the pod was bound, or None."""
        fitting = [node.name for node in self.nodes.values() if fits(node, pod)]
        if fitting and self._stowage:
            fitting = self._stowage.filter(pod.manifest, fitting)
        if not fitting:
            self.waiting.append(pod)
            return None
        name = fitting[0] if len(fitting) == 1 else self._best(pod, fitting)
        self.nodes[name].requested.update(pod.amounts)
        if self._stowage:
            self._stowage.bind(pod.manifest, name)
        self.placed.append(pod)
        return name

    def _best(self, pod: PodInfo, names: list[str]) -> str:
        """The node with the highest score; a random one among equals."""
        if self._stowage:
            scores = self._stowage.prioritize(pod.manifest, names)
        else:
            scores = {name: default_score(self.nodes[name], pod.amounts) for name in names}
        highest = max(scores.values())
        return self._random.choice([name for name, score in scores.items() if score == highest])


def fits(node: NodeInfo, pod: PodInfo) -> bool:
    """NodeAffinity (the selector) and NodeResourcesFit."""
    selector = pod.manifest["spec"].get("nodeSelector", {})
    selected = all(node.labels.get(key) == value for key, value in selector.items())
    return selected and all(node.free(name) >= amount for name, amount in pod.amounts.items())


def default_score(node: NodeInfo, amounts: Amounts) -> int:
    """The score of the default profile, whose plugins have equal weights."""
    return least_allocated(node, amounts) + balanced_allocation(node, amounts)


def least_allocated(node: NodeInfo, amounts: Amounts) -> int:
    """The mean of the free fractions of CPU and memory, in percent."""
    parts = (TOP * (node.free(n) - amounts.get(n, 0)) // node.allocatable[n] for n in ("cpu", "memory"))
    return sum(parts) // 2


def balanced_allocation(node: NodeInfo, amounts: Amounts) -> int:
    """Balance of CPU and memory: 75 if the pod does not change it, more if it improves it."""
    after = _balance(node, amounts)
    return TOP // 2 + (TOP // 2 + after - _balance(node, {})) // 2


def _balance(node: NodeInfo, amounts: Amounts) -> int:
    cpu, memory = (
        min(1.0, (node.requested[name] + amounts.get(name, 0)) / node.allocatable[name])
        for name in ("cpu", "memory")
    )
    return int((1 - abs(cpu - memory) / 2) * TOP)


def read_pod(manifest: Manifest) -> PodInfo:
    """The pod of a manifest. Pods of the demo have no init containers."""
    total = Counter({"pods": 1})
    for container in manifest["spec"]["containers"]:
        total.update(_amounts(container["resources"]["requests"]))
    return PodInfo(manifest, total)


def read_cluster(items: Iterable[Manifest]) -> tuple[list[NodeInfo], list[PodInfo]]:
    """The nodes with the requests of their running pods, and the pending pods; nodes come before pods."""
    nodes: dict[str, NodeInfo] = {}
    pending = []
    for item in items:
        if item["kind"] == "Node":
            name, labels = item["metadata"]["name"], item["metadata"]["labels"]
            nodes[name] = NodeInfo(name, labels, _amounts(item["status"]["allocatable"]))
        elif item["status"]["phase"] == "Pending":
            pending.append(read_pod(item))
        elif item["status"]["phase"] == "Running":
            nodes[item["spec"]["nodeName"]].requested.update(read_pod(item).amounts)
    return list(nodes.values()), pending


def _amounts(quantities: Mapping[str, str]) -> dict[str, int]:
    read = {"cpu": milli, "memory": mib}
    return {name: read.get(name, whole)(text) for name, text in quantities.items()}
