"""The random stream of pods that the demo schedules. ``bench/demo_cluster.py`` generates the cluster."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from typing import Any

from extender.data import facts

Manifest = dict[str, Any]
CREATED = "2026-09-01T08:00:00Z"
GPU = "nvidia.com/gpu"
_UIDS = uuid.UUID("9d0f1b0e-6f0c-5b7e-9d2a-3f1f6f2f7c11")
_IMAGES = {
    "inference": "nvcr.io/nvidia/tritonserver:25.09-py3",
    "notebooks": "quay.io/jupyter/pytorch-notebook:cuda12-latest",
    "research": "nvcr.io/nvidia/pytorch:25.09-py3",
    "training": "nvcr.io/nvidia/nemo:25.09",
    "vision": "nvcr.io/nvidia/pytorch:25.09-py3",
}


@dataclass(frozen=True, slots=True)
class PodKind:
    """The request of one kind of pod: ``count`` devices of a resource, on nodes with this GPU product (None:
    any x86 node that has the resource)."""

    namespace: str
    app: str
    cpu: int
    memory_gib: int
    count: int = 1
    resource: str = GPU
    product: str | None = None


def kinds() -> dict[PodKind, int]:
    """The kinds of pods, and the number of each that arrive."""
    rows = facts("demo-pods")
    counts = [row.pop("arrive") for row in rows]
    return {PodKind(**row): count for row, count in zip(rows, counts, strict=True)}


def stream(seed: int) -> list[Manifest]:
    """The pods that the demo schedules, in order of arrival."""
    arriving = [kind for kind, count in kinds().items() for _ in range(count)]
    random.Random(seed).shuffle(arriving)
    return [pod(kind, f"{kind.app}-{number:03}") for number, kind in enumerate(arriving, start=1)]


def pod(kind: PodKind, name: str) -> Manifest:
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
