"""The pods of the demo: those of the bundled cluster, and the random stream that the demo schedules."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from extender.demo.nodes import CREATED, GPU, Manifest, uid

_H100 = "NVIDIA-H100-80GB-HBM3"
_A100 = "NVIDIA-A100-SXM4-80GB"
_L40S = "NVIDIA-L40S"
_GB200 = "NVIDIA-GB200"
_IMAGES = {
    "inference": "nvcr.io/nvidia/tritonserver:25.09-py3",
    "notebooks": "quay.io/jupyter/pytorch-notebook:cuda12-latest",
    "research": "nvcr.io/nvidia/pytorch:25.09-py3",
    "training": "nvcr.io/nvidia/nemo:25.09",
    "vision": "nvcr.io/nvidia/pytorch:25.09-py3",
}


@dataclass(frozen=True, slots=True)
class PodKind:
    """What one kind of pod requests: ``count`` devices of a resource, on nodes with this GPU product
    (None: any x86 node that has the resource)."""

    namespace: str
    app: str
    cpu: int
    memory_gib: int
    count: int = 1
    resource: str = GPU
    product: str | None = None


def _mig(profile: str) -> str:
    return f"nvidia.com/mig-{profile}"


_NOTEBOOK = PodKind("notebooks", "notebook", 2, 10, resource=f"{GPU}.shared")
_SMALL_MODEL = PodKind("inference", "embedder", 4, 24, resource=_mig("1g.10gb"))
_MODEL = PodKind("inference", "reranker", 6, 40, resource=_mig("2g.20gb"))
_LARGE_MODEL = PodKind("inference", "chat-13b", 8, 64, resource=_mig("3g.40gb"))
_ANY = PodKind("research", "sweep", 8, 64)
_RENDER = PodKind("vision", "render", 12, 96, product=_L40S)
_TUNE = {n: PodKind("research", f"tune-{n}g", 14 * n, 120 * n, n, product=_H100) for n in (1, 2, 4)}
_EVALUATE = {n: PodKind("vision", f"eval-{n}g", 14 * n, 120 * n, n, product=_A100) for n in (1, 2, 4)}
_TRAIN = {
    product: PodKind("training", f"train-{name}", 112, 1024, 8, product=product)
    for name, product in (("h100", _H100), ("a100", _A100))
}
_RACK = {n: PodKind("training", f"rack-{n}g", 30 * n, 200 * n, n, product=_GB200) for n in (1, 2, 4)}
_TOO_LARGE = PodKind("training", "train-16g", 112, 1024, 16, product=_H100)

_STREAM: list[tuple[PodKind, int]] = [
    (_NOTEBOOK, 60),
    (_SMALL_MODEL, 40),
    (_MODEL, 18),
    (_LARGE_MODEL, 16),
    (_ANY, 18),
    (_RENDER, 8),
    (_TUNE[1], 10),
    (_TUNE[2], 5),
    (_TUNE[4], 2),
    (_EVALUATE[1], 8),
    (_EVALUATE[2], 3),
    (_EVALUATE[4], 1),
    (_TRAIN[_H100], 3),
    (_TRAIN[_A100], 2),
    (_RACK[1], 4),
    (_RACK[2], 2),
    (_RACK[4], 1),
    (_TOO_LARGE, 2),
]
"""How many pods of each kind arrive, in random order."""


def stream(seed: int) -> list[Manifest]:
    """The pods that the demo schedules, in the order of their arrival."""
    kinds = [kind for kind, count in _STREAM for _ in range(count)]
    random.Random(seed).shuffle(kinds)
    return [pod(kind, f"{kind.app}-{number:03}") for number, kind in enumerate(kinds, start=1)]


_RUNNING: list[tuple[PodKind, str, int]] = [
    (_TRAIN[_H100], "h100-01", 1),
    (_TUNE[4], "h100-02", 1),
    (_TUNE[1], "h100-03", 2),
    (_EVALUATE[2], "a100-01", 1),
    (_EVALUATE[1], "a100-02", 1),
    (_RENDER, "l40s-01", 2),
    (_RENDER, "l40s-02", 1),
    (_SMALL_MODEL, "h100-mig-01", 4),
    (_LARGE_MODEL, "h100-mig-01", 2),
    (_MODEL, "h100-mig-02", 2),
    (_SMALL_MODEL, "h100-mig-04", 1),
    (_NOTEBOOK, "t4-01", 4),
    (_NOTEBOOK, "t4-02", 2),
    (_RACK[4], "gb200-r1-01", 1),
    (_RACK[4], "gb200-r1-02", 1),
]
"""How many pods of a kind run on a node of the bundled cluster."""

_PENDING = [_TUNE[2], _LARGE_MODEL, _NOTEBOOK, _ANY, _TOO_LARGE]


def bundled() -> list[Manifest]:
    """The pods of the bundled cluster: running, succeeded and pending ones."""
    placed = [(kind, node) for kind, node, count in _RUNNING for _ in range(count)]
    pods = [_bound(kind, number, node, "Running") for number, (kind, node) in enumerate(placed, start=1)]
    pods.append(_bound(_EVALUATE[4], 90, "a100-03", "Succeeded"))
    pods += [pod(kind, f"{kind.app}-p{number}") for number, kind in enumerate(_PENDING, start=1)]
    return sorted(pods, key=lambda item: (item["metadata"]["namespace"], item["metadata"]["name"]))


def large_job() -> Manifest:
    """A pod that requests 8 GPUs of any x86 node."""
    return pod(replace(_TRAIN[_H100], product=None), "large-job")


def pod(kind: PodKind, name: str) -> Manifest:
    """A pending pod of this kind."""
    amounts = {"cpu": str(kind.cpu), "memory": f"{kind.memory_gib}Gi", kind.resource: str(kind.count)}
    selector = {"nvidia.com/gpu.product": kind.product} if kind.product else {"kubernetes.io/arch": "amd64"}
    resources = {"limits": amounts, "requests": amounts}
    container = {"image": _IMAGES[kind.namespace], "name": "main", "resources": resources}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "creationTimestamp": CREATED,
            "labels": {"app": kind.app},
            "name": name,
            "namespace": kind.namespace,
            "uid": uid("pod", f"{kind.namespace}/{name}"),
        },
        "spec": {
            "containers": [container],
            "nodeSelector": selector,
            "restartPolicy": "Never",
            "schedulerName": "stowage",
        },
        "status": {"phase": "Pending"},
    }


def _bound(kind: PodKind, number: int, node: str, phase: str) -> Manifest:
    manifest = pod(kind, f"{kind.app}-r{number:02}")
    manifest["spec"]["nodeName"] = node
    kind_of_owner = "ReplicaSet" if kind.namespace in ("inference", "notebooks") else "Job"
    owner = {"controller": True, "kind": kind_of_owner, "name": kind.app, "uid": uid("owner", kind.app)}
    manifest["metadata"]["ownerReferences"] = [owner]
    manifest["status"] = {"phase": phase, "startTime": CREATED}
    return manifest
