"""A mixed fleet of any size to view on the page, the same in every run.

H100s in one NVLink island, A100s in two, A100s in MIG instances, L40S that Stowage shares, time-sliced T4s;
some nodes are spot nodes, cordoned or being repartitioned, and some have free GPUs but no free CPU. The
manifests are in a List for ``stowage serve --snapshot``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from bench.node_manifest import Manifest

SEED = 7
_GPU = "nvidia.com/gpu"
_ISLANDS = "nvlink.feature.node.kubernetes.io/"
_QUEUES = {"batch": 5, "interactive": 3, "backfill": 2, "": 1}
_TEAMS = ("speech", "vision", "search", "ranking", "robotics")


@dataclass(frozen=True, slots=True)
class _Kind:
    """Nodes of one kind: their name, product and GPUs, labels, and ``weight``, their number among 20."""

    name: str
    product: str
    memory_mib: int
    gpus: int
    weight: int
    cpus: int = 128
    labels: dict[str, str] = field(default_factory=dict)


_KINDS = (
    _Kind("h100", "NVIDIA-H100-80GB-HBM3", 81559, 8, 8, 192),
    _Kind(
        "pcie", "NVIDIA-A100-80GB-PCIe", 81920, 8, 2, 96,
        {f"{_ISLANDS}islands": "0-3_4-7", f"{_ISLANDS}gpus": "8"},
    ),
    _Kind("mig", "NVIDIA-A100-SXM4-80GB", 81920, 8, 4, 128, {"nvidia.com/mig.config": "all-balanced"}),
    _Kind("l40s", "NVIDIA-L40S", 46068, 4, 4, 64, {"stowage.dev/gpu-sharing": "true"}),
    _Kind("t4", "Tesla-T4", 15360, 4, 2, 48, {"nvidia.com/gpu.replicas": "4"}),
)  # fmt: skip
_MIG = {"nvidia.com/mig-1g.10gb": 16, "nvidia.com/mig-2g.20gb": 8, "nvidia.com/mig-3g.40gb": 8}


def manifests(nodes: int) -> Manifest:
    """A List of ``nodes`` nodes, their pods, and a few pending pods."""
    rng = random.Random(SEED)
    kinds = [kind for kind in _KINDS for _ in range(kind.weight)]
    items: list[Manifest] = []
    numbers = dict.fromkeys((kind.name for kind in _KINDS), 0)
    for index in range(nodes):
        kind = kinds[index % len(kinds)]
        numbers[kind.name] += 1
        items += _node_with_pods(rng, kind, f"{kind.name}-{numbers[kind.name]:03}", index)
    return {"apiVersion": "v1", "kind": "List", "items": items + list(_waiting())}


def _node_with_pods(rng: random.Random, kind: _Kind, name: str, index: int) -> Iterator[Manifest]:
    odd = index % 20 if index >= 6 else -1
    labels = {"karpenter.sh/capacity-type": "spot"} if odd in (3, 15) else {}
    if odd == 13 and index % 40 == 13:
        labels = {"nvidia.com/mig.config.state": "pending"}
    yield _node(kind, name, labels, cordoned=odd == 6)
    if odd != 13:
        starving = odd == 5
        for number, (amounts, more) in enumerate(_pods(rng, kind)):
            cpus = (kind.cpus - 1) // 3 if starving and number < 3 else 1 if starving else 2
            yield _pod(rng, f"{name}-{number}", amounts | {"cpu": str(cpus)}, node=name, **more)


def _node(kind: _Kind, name: str, labels: dict[str, str], *, cordoned: bool) -> Manifest:
    devices = {_GPU: str(kind.gpus)}
    if kind.name == "mig":
        devices = {_GPU: "0", **{resource: str(count) for resource, count in _MIG.items()}}
    elif kind.name == "t4":
        devices = {_GPU: str(kind.gpus * 4)}
    all_labels = {
        "nvidia.com/gpu.product": kind.product + ("-SHARED" if kind.name == "t4" else ""),
        "nvidia.com/gpu.memory": str(kind.memory_mib),
        "nvidia.com/gpu.count": str(kind.gpus),
        "kubernetes.io/hostname": name,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"node-{name}", "labels": all_labels | kind.labels | labels},
        "spec": {"unschedulable": True} if cordoned else {},
        "status": {"allocatable": {"cpu": str(kind.cpus), "memory": "1024Gi", "pods": "110", **devices}},
    }


Amounts = dict[str, str]


def _pods(rng: random.Random, kind: _Kind) -> Iterator[tuple[Amounts, dict[str, dict[str, str]]]]:
    """Requests of the pods of one node, with annotations."""
    if kind.name == "mig":
        for resource, count in _MIG.items():
            for _ in range(round(count * rng.choice((0.4, 0.7, 1.0)))):
                yield {resource: "1"}, {}
    elif kind.name == "t4":
        for _ in range(rng.randint(6, kind.gpus * 4)):
            yield {_GPU: "1"}, {}
    elif kind.name == "l40s":
        yield from _shares(rng, kind)
    else:
        left = kind.gpus
        while left > rng.choice((0, 0, 0, 1, 3)):
            count = min(left, rng.choice((8, 4, 4, 2, 2, 1, 1, 1)))
            left -= count
            yield {_GPU: str(count)}, {}


def _shares(rng: random.Random, kind: _Kind) -> Iterator[tuple[Amounts, dict[str, dict[str, str]]]]:
    for gpu in range(kind.gpus):
        compute, memory = 100, 44
        while compute > 10 and memory > 5 and rng.random() < 0.85:
            part, gib = min(compute, rng.choice((10, 20, 30, 50))), min(memory, rng.choice((4, 8, 12, 24)))
            compute, memory = compute - part, memory - gib
            annotations = {
                "stowage.dev/gpu-compute": f"{part}%",
                "stowage.dev/gpu-memory": f"{gib}Gi",
                "stowage.dev/gpu-indices": str(gpu),
            }
            yield {}, {"annotations": annotations}


def _pod(
    rng: random.Random, name: str, amounts: Amounts, *, node: str = "", annotations: Amounts | None = None
) -> Manifest:
    queue = rng.choices(list(_QUEUES), list(_QUEUES.values()))[0]
    work = {"batch": "train", "interactive": "notebook", "backfill": "sweep"}.get(queue, "serve")
    name = f"{work}-{name}"
    container = {"name": "main", "resources": {"requests": {"memory": "8Gi", **amounts}, "limits": amounts}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": rng.choice(_TEAMS),
            "uid": f"pod-{name}",
            "creationTimestamp": "2026-09-01T08:00:00Z",
            "labels": {"stowage.dev/queue": queue} if queue else {},
            "annotations": annotations or {},
        },
        "spec": {"containers": [container], "schedulerName": "stowage"}
        | ({"nodeName": node} if node else {}),
        "status": {"phase": "Running" if node else "Pending", "startTime": "2026-09-01T08:00:00Z"},
    }


def _waiting() -> Iterator[Manifest]:
    rng = random.Random(SEED + 1)
    for name, amounts, product in (
        ("large-0", {_GPU: "8", "cpu": "96"}, "NVIDIA-H100-80GB-HBM3"),
        ("wide-1", {_GPU: "16", "cpu": "8"}, ""),
        ("slice-2", {"nvidia.com/mig-7g.80gb": "1", "cpu": "4"}, ""),
        ("greedy-3", {_GPU: "2", "cpu": "500"}, ""),
        ("small-4", {"nvidia.com/mig-1g.10gb": "1", "cpu": "2"}, ""),
    ):
        pod = _pod(rng, name, amounts)
        pod["spec"]["nodeSelector"] = {"nvidia.com/gpu.product": product} if product else {}
        yield pod
