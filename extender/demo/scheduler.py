"""A model of kube-scheduler's scheduling cycle, with the parts that matter for the demo's pods.

In tree: node selector and resources filter, and two plugins score. With an extender: ``filter``,
``prioritize`` and ``bind`` over HTTP in kube-scheduler's order and format. Sources, all in
kubernetes/kubernetes v1.36, pkg/scheduler: ``schedule_one.go`` (cycle, weights, ties),
``framework/plugins/noderesources`` (fit, scores), ``apis/config/v1/default_plugins.go`` (the default
profile). The other score plugins give every node the same score here: the pods have no preferences,
tolerations, spread constraints or volumes, and no node has images.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from extender.demo.pods import Manifest
from extender.k8s.quantity import mib, milli, whole

TOP = 100  # MaxNodeScore
EXTENDER_TOP = 10  # MaxExtenderPriority

Amounts = Mapping[str, int]
"""By resource: CPU in milli, memory in MiB, pods and devices in whole ones."""


@dataclass(slots=True)
class NodeInfo:
    """A node in kube-scheduler's cache. ``requested`` is the sum over its pods."""

    name: str
    labels: Mapping[str, str]
    allocatable: Amounts
    requested: Counter[str] = field(default_factory=Counter)

    def free(self, resource: str) -> int:
        """The part that no pod has requested."""
        return self.allocatable.get(resource, 0) - self.requested[resource]


@dataclass(frozen=True, slots=True)
class PodInfo:
    """A pod: its manifest, and what it requests."""

    manifest: Manifest
    amounts: Amounts


class Extender(Protocol):
    """The verbs of ``extender/v1``, with node names."""

    weight: int

    def filter(self, pod: Manifest, nodes: list[str]) -> list[str]:
        """The nodes that the extender keeps."""

    def prioritize(self, pod: Manifest, nodes: list[str]) -> dict[str, int]:
        """A score from 0 to 10 by node."""

    def bind(self, pod: Manifest, node: str) -> None:
        """Bind the pod, or raise."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The scoring of NodeResourcesFit: MostAllocated if ``most``, else LeastAllocated."""

    most: bool
    resources: Mapping[str, int]  # weights


DEFAULT = Profile(most=False, resources={"cpu": 1, "memory": 1})
PACKING = Profile(
    most=True, resources={"nvidia.com/gpu": 3, "nvidia.com/gpu.shared": 3, "cpu": 1, "memory": 1}
)
"""The profile of the files in ``scheduler-config/``."""


class Scheduler:
    """A scheduler with its cache, its placed and its waiting pods."""

    def __init__(
        self, nodes: Sequence[NodeInfo], *, profile: Profile, seed: int, extender: Extender | None = None
    ) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.placed: list[PodInfo] = []
        self.waiting: list[PodInfo] = []
        self._profile = profile
        self._extender = extender
        self._random = random.Random(seed)

    def schedule(self, info: PodInfo) -> str | None:
        """Run one cycle. Returns the node that the pod was bound to, or None."""
        fitting = [node for node in self.nodes.values() if fits(node, info)]
        if fitting and self._extender:
            kept = set(self._extender.filter(info.manifest, [node.name for node in fitting]))
            fitting = [node for node in fitting if node.name in kept]
        if not fitting:
            self.waiting.append(info)
            return None
        node = fitting[0] if len(fitting) == 1 else self._best(info, fitting)
        node.requested.update(info.amounts)
        if self._extender:
            self._extender.bind(info.manifest, node.name)
        self.placed.append(info)
        return node.name

    def _best(self, info: PodInfo, nodes: list[NodeInfo]) -> NodeInfo:
        """The node with the highest sum of weighted scores; random among equals."""
        amounts, profile = info.amounts, self._profile
        scores = {n.name: allocation_score(n, amounts, profile) + balance_score(n, amounts) for n in nodes}
        if self._extender:
            step = self._extender.weight * TOP // EXTENDER_TOP
            for name, score in self._extender.prioritize(info.manifest, list(scores)).items():
                scores[name] += score * step
        highest = max(scores.values())
        return self.nodes[self._random.choice([name for name, s in scores.items() if s == highest])]


def fits(node: NodeInfo, info: PodInfo) -> bool:
    """NodeAffinity (the selector) and NodeResourcesFit."""
    selector = info.manifest["spec"].get("nodeSelector", {})
    selected = all(node.labels.get(key) == value for key, value in selector.items())
    return selected and all(node.free(name) >= amount for name, amount in info.amounts.items())


def allocation_score(node: NodeInfo, amounts: Amounts, profile: Profile) -> int:
    """LeastAllocated or MostAllocated: the mean over resources of the free (or used) part, in per cent.

    Extended resources count only for pods that request them.
    """
    total = weights = 0
    for name, weight in profile.resources.items():
        capacity = node.allocatable.get(name, 0)
        if capacity and (name in amounts or name in ("cpu", "memory")):
            taken = node.requested[name] + amounts.get(name, 0)
            total += weight * (TOP * (taken if profile.most else capacity - taken) // capacity)
            weights += weight
    return total // weights if weights else 0


def balance_score(node: NodeInfo, amounts: Amounts) -> int:
    """BalancedAllocation of CPU and memory: 75 if the pod changes nothing, more if it balances them."""
    after = _balance(node, amounts)
    return TOP // 2 + (TOP // 2 + after - _balance(node, {})) // 2


def _balance(node: NodeInfo, amounts: Amounts) -> int:
    cpu, memory = (
        min(1.0, (node.requested[name] + amounts.get(name, 0)) / node.allocatable[name])
        for name in ("cpu", "memory")
    )
    return int((1 - abs(cpu - memory) / 2) * TOP)


def read_node(manifest: Manifest) -> NodeInfo:
    """The node of a manifest, empty."""
    metadata, allocatable = manifest["metadata"], manifest["status"]["allocatable"]
    return NodeInfo(metadata["name"], metadata["labels"], _amounts(allocatable))


def read_pod(manifest: Manifest) -> PodInfo:
    """The pod of a manifest. Pods of the demo have no init containers."""
    total = Counter({"pods": 1})
    for container in manifest["spec"]["containers"]:
        total.update(_amounts(container["resources"]["requests"]))
    return PodInfo(manifest, total)


def read_cluster(items: Iterable[Manifest]) -> tuple[list[NodeInfo], list[PodInfo]]:
    """The nodes with the requests of their running pods, and the pending pods."""
    by_kind: dict[str, list[Manifest]] = {"Node": [], "Pod": []}
    for item in items:
        by_kind[item["kind"]].append(item)
    nodes = {manifest["metadata"]["name"]: read_node(manifest) for manifest in by_kind["Node"]}
    pending = []
    for manifest in by_kind["Pod"]:
        if manifest["status"]["phase"] == "Pending":
            pending.append(read_pod(manifest))
        elif manifest["status"]["phase"] == "Running":
            nodes[manifest["spec"]["nodeName"]].requested.update(read_pod(manifest).amounts)
    return list(nodes.values()), pending


def _amounts(quantities: Mapping[str, str]) -> dict[str, int]:
    read = {"cpu": milli, "memory": mib}
    return {name: read.get(name, whole)(text) for name, text in quantities.items()}
