"""Clusters for plans, as manifests: nodes, pods, and one with a bad MIG layout."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any

from extender.plan.source import ClusterSource
from extender.settings import Settings
from extender.source.snapshot import Snapshot, SnapshotSource

GPU = "nvidia.com/gpu"
H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}
KEEPING = "cluster-autoscaler.kubernetes.io/scale-down-disabled", "karpenter.sh/do-not-disrupt"
"""Annotations with which owners keep a node."""
Manifest = dict[str, Any]


def node(name: str, gpus: int = 4, *, labels: Any = None, cpu: str = "64", **more: Any) -> Manifest:
    devices = more.pop("devices", {GPU: str(gpus)} if gpus else {})
    allocatable = {"cpu": cpu, "memory": "512Gi", "pods": "110"} | devices
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": H100 | {"nvidia.com/gpu.count": str(gpus)} | (labels or {})},
        "spec": more,
        "status": {"allocatable": allocatable},
    }


def shared_node(name: str, gpus: int = 4) -> Manifest:
    """A node whose GPUs Stowage shares."""
    return node(name, gpus, labels={"stowage.dev/gpu-sharing": "true"}, devices={})


def pod(
    name: str,
    on: str = "",
    gpus: int = 1,
    *,
    resource: str = GPU,
    cpu: str = "1",
    owner: str = "Job",
    **more: Any,
) -> Manifest:
    requests = {"cpu": cpu, "memory": "1Gi"} | ({resource: str(gpus)} if gpus else {})
    metadata: Manifest = {"name": name, "namespace": "ml", "uid": name}
    metadata |= {key: more.pop(key, {}) for key in ("annotations", "labels")}
    if owner:
        metadata["ownerReferences"] = [{"kind": owner, "name": owner, "uid": owner, "controller": True}]
    spec = {"containers": [{"name": "main", "resources": {"requests": requests, "limits": requests}}]} | more
    status: Manifest = {"phase": "Pending"}
    if on:
        spec["nodeName"] = on
        status = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def share(name: str, on: str, part: str, gpu: int = 0) -> Manifest:
    """A pod with a part of a GPU of a node that Stowage shares."""
    assigned = {"stowage.dev/gpu-indices": str(gpu)} if on else {}
    return pod(name, on, 0, annotations={"stowage.dev/gpu-compute": part, **assigned})


def budget(allowed: int, **labels: str) -> Manifest:
    return {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "budget", "namespace": "ml"},
        "spec": {"selector": {"matchLabels": labels}},
        "status": {"disruptionsAllowed": allowed},
    }


def bad_mig_layout() -> list[Manifest]:
    """Four nodes of two H100s, each cut into seven small instances, and pods that wait for large ones."""
    small, large = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
    strategy = {"nvidia.com/mig.strategy": "mixed"}
    nodes = [node(f"mig-{n}", 2, labels=strategy, devices={GPU: "0", small: "14"}) for n in range(1, 5)]
    running = [pod(f"small-{n}", f"mig-{1 + n % 4}", resource=small) for n in range(8)]
    waiting = [pod(f"large-{n}", resource=large) for n in range(10)]
    return [*nodes, *running, *waiting]


def mixed_fleet(random: Random, nodes: int) -> list[Manifest]:
    """Nodes of three pools with whole or shared GPUs, half full of pods of all sizes, some of which insist on
    their pool, and pods that wait."""
    items: list[Manifest] = []
    names = (f"p{number}" for number in count(1))
    for number in range(nodes):
        pool, name = random.choice("abc"), f"n{number:03}"
        insists = {"nodeSelector": {"pool": pool}}
        if random.random() < 0.4:
            items.append(shared_node(name))
            for gpu in range(4):
                left = 100
                while random.random() < 0.55:
                    part = random.choice([10, 20, 30, 40, 50, 60, 70, 100])
                    if part <= left:
                        left -= part
                        items.append(share(next(names), name, f"{part}%", gpu))
                        items[-1]["spec"] |= insists if random.random() < 0.2 else {}
        else:
            left, cpu = random.choice([4, 8]), 64
            items.append(node(name, left))
            while random.random() < 0.75:
                gpus, needs = random.choice([0, 1, 1, 2, 3, 4, 6]), random.choice([1, 4, 8, 16, 24])
                if gpus <= left and needs <= cpu:
                    left, cpu, more = left - gpus, cpu - needs, insists if random.random() < 0.3 else {}
                    items.append(pod(next(names), name, gpus, cpu=str(needs), **more))
        next(one for one in reversed(items) if one["kind"] == "Node")["metadata"]["labels"]["pool"] = pool
    for _ in range(nodes // 10):
        gpus, needs = random.choice([1, 2, 4, 8]), random.choice([1, 8, 16, 32])
        items.append(pod(next(names), gpus=gpus, cpu=str(needs)))
    return items


def source_of(*items: Manifest, **settings: Any) -> ClusterSource:
    """A cluster with these objects."""
    import json

    may = {name: settings.pop(name, False) for name in ("bare_pods", "allow_downgrade")}
    snapshot = Snapshot()
    snapshot.add(json.dumps({"kind": "List", "items": items}), "test")
    assert not snapshot.problems
    events = [event for batch in SnapshotSource(snapshot, "test").list_once() for event in batch]
    return ClusterSource("test", events, Settings(**settings), **may)
