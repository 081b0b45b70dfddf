"""The random stream of pods that the demo schedules. ``bench/demo_cluster.py`` made the cluster."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, replace
from typing import Any

Manifest = dict[str, Any]
CREATED = "2026-09-01T08:00:00Z"
GPU = "nvidia.com/gpu"
_UIDS = uuid.UUID("9d0f1b0e-6f0c-5b7e-9d2a-3f1f6f2f7c11")
H100 = "NVIDIA-H100-80GB-HBM3"
A100 = "NVIDIA-A100-SXM4-80GB"
L40S = "NVIDIA-L40S"
GB200 = "NVIDIA-GB200"
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


NOTEBOOK = PodKind("notebooks", "notebook", 2, 10, resource=f"{GPU}.shared")
SMALL_MODEL = PodKind("inference", "embedder", 4, 24, resource=_mig("1g.10gb"))
MODEL = PodKind("inference", "reranker", 6, 40, resource=_mig("2g.20gb"))
LARGE_MODEL = PodKind("inference", "chat-13b", 8, 64, resource=_mig("3g.40gb"))
ANY = PodKind("research", "sweep", 8, 64)
RENDER = PodKind("vision", "render", 12, 96, product=L40S)
TUNE = {n: PodKind("research", f"tune-{n}g", 14 * n, 120 * n, n, product=H100) for n in (1, 2, 4)}
EVALUATE = {n: PodKind("vision", f"eval-{n}g", 14 * n, 120 * n, n, product=A100) for n in (1, 2, 4)}
TRAIN = {
    product: PodKind("training", f"train-{name}", 112, 1024, 8, product=product)
    for name, product in (("h100", H100), ("a100", A100))
}
RACK = {n: PodKind("training", f"rack-{n}g", 30 * n, 200 * n, n, product=GB200) for n in (1, 2, 4)}
TOO_LARGE = PodKind("training", "train-16g", 112, 1024, 16, product=H100)

_STREAM: list[tuple[PodKind, int]] = [
    (NOTEBOOK, 60),
    (SMALL_MODEL, 40),
    (MODEL, 18),
    (LARGE_MODEL, 16),
    (ANY, 18),
    (RENDER, 8),
    (TUNE[1], 10),
    (TUNE[2], 5),
    (TUNE[4], 2),
    (EVALUATE[1], 8),
    (EVALUATE[2], 3),
    (EVALUATE[4], 1),
    (TRAIN[H100], 3),
    (TRAIN[A100], 2),
    (RACK[1], 4),
    (RACK[2], 2),
    (RACK[4], 1),
    (TOO_LARGE, 2),
]
"""How many pods of each kind arrive, in random order."""


def stream(seed: int) -> list[Manifest]:
    """The pods that the demo schedules, in the order of their arrival."""
    kinds = [kind for kind, count in _STREAM for _ in range(count)]
    random.Random(seed).shuffle(kinds)
    return [pod(kind, f"{kind.app}-{number:03}") for number, kind in enumerate(kinds, start=1)]


def large_job() -> Manifest:
    """A pod that requests 8 GPUs of any x86 node."""
    return pod(replace(TRAIN[H100], product=None), "large-job")


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


def uid(kind: str, name: str) -> str:
    """A UID that is the same in every run."""
    return str(uuid.uuid5(_UIDS, f"{kind}/{name}"))
