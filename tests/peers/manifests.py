"""Nodes, pods and budgets in short form, as the tables beside this file have them, as manifests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

Short: TypeAlias = Mapping[str, Any]
_HAMI_GPU = {"count": 10, "devmem": 8000, "devcore": 100, "type": "NVIDIA-Tesla V100", "numa": 0}
_VGPU_MANAGER_GPU = {
    "number": 10,
    "memory": 8000,
    "core": 100,
    "type": "NVIDIA A10",
    "numa": 0,
    "healthy": True,
}
_VGPU_MANAGER_CONFIG = {"deviceSplit": 10, "coresScaling": 1, "memoryFactor": 1, "memoryScaling": 1}
_VOLCANO_GPU = {
    "count": 10,
    "memory": 8000,
    "type": "NVIDIA-Tesla V100",
    "health": "true",
    "mode": "hami-core",
}
_RESOURCES = {
    "hami": ("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"),
    "vgpu-manager": ("nvidia.com/vgpu-number", "nvidia.com/vgpu-memory", "nvidia.com/vgpu-cores"),
    "volcano": ("volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores"),
}
_ROOM = {"cpu": "64", "memory": "512Gi", "pods": "110"}
_NAMESPACE = "default"
_GRACE_SECONDS = 30
DRIVER = "gpu.example.com"
"""Of all devices of ResourceSlices."""


def manifests(row: Short) -> list[dict[str, Any]]:
    """All objects of a row but the pod that waits."""
    objects = [node(name, short or {}) for name, short in row.get("nodes", {}).items()]
    for name, short in row.get("pods", {}).items():
        objects += pods(name, short)
    objects += [budget(name, short) for name, short in row.get("budgets", {}).items()]
    objects += [claim(name, short) for name, short in row.get("claims", {}).items()]
    for name, short in row.get("nodes", {}).items():
        objects += [resource_slice(name, short["devices"])] if "devices" in short else []
    return objects + row.get("objects", [])


def node(name: str, short: Short) -> dict[str, Any]:
    """``gpus``: plain ones. ``hami``, ``vgpu-manager``, ``volcano``: what differs from ``_HAMI_GPU`` and so
    on in the register, for each GPU; GPU 0 of node n1 is called ``n1-0``. ``devices``: those of its
    ResourceSlice. ``allocatable``, ``labels``, ``annotations``; ``spec`` and ``status`` as in a manifest."""
    allocatable, annotations = dict(_ROOM), dict(short.get("annotations", {}))
    if "gpus" in short:
        allocatable["nvidia.com/gpu"] = str(short["gpus"])
    if "vgpu-manager" in short:
        gpus = [
            {"id": index, "uuid": f"{name}-{index}", **_VGPU_MANAGER_GPU, **gpu}
            for index, gpu in enumerate(short["vgpu-manager"])
        ]
        annotations = {
            "nvidia.com/node-device-register": json.dumps(gpus),
            "nvidia.com/node-config-info": json.dumps(_VGPU_MANAGER_CONFIG),
        } | annotations
        allocatable["nvidia.com/vgpu-number"] = str(sum(gpu["number"] for gpu in gpus))
    if "volcano" in short:
        gpus = [_VOLCANO_GPU | gpu for gpu in short["volcano"]]
        annotations["volcano.sh/node-vgpu-register"] = "".join(
            f"{name}-{index}," + "{count},{memory},{type},{health},{mode}:".format(**gpu)
            for index, gpu in enumerate(gpus)
        )
        allocatable["volcano.sh/vgpu-number"] = str(sum(gpu["count"] for gpu in gpus))
    if "hami" in short:
        gpus = [
            {"id": f"{name}-{index}", "index": index, "mode": "hami-core", "health": True, **_HAMI_GPU, **gpu}
            for index, gpu in enumerate(short["hami"])
        ]
        annotations |= {
            "hami.io/node-nvidia-register": json.dumps(gpus),
            "hami.io/node-handshake": "Reported 2026-11-20 10:00:00",
        }
        allocatable["nvidia.com/gpu"] = str(sum(gpu["count"] for gpu in gpus))
    allocatable |= _texts(short.get("allocatable", {}))
    labels = {"kubernetes.io/hostname": name, **short.get("labels", {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": short.get("spec", {}),
        "status": {
            "allocatable": allocatable,
            "capacity": allocatable,
            "conditions": [{"type": "Ready", "status": "True"}],
            **short.get("status", {}),
        },
    }


def pods(name: str, short: Short) -> Iterator[dict[str, Any]]:
    """The pod, or its ``copies``, whose names end with a number."""
    copies = short.get("copies", 0)
    for one in [f"{name}-{number}" for number in range(copies)] if copies else [name]:
        yield pod(one, short)


def pod(name: str, short: Short) -> dict[str, Any]:
    """``asks``: the resources of its container, or ``containers``, ``init`` and ``sidecars``, each a list of
    resources. ``guaranteed``: they are the limits, too. ``claims``: names of ResourceClaims. ``node``: its
    node, where it has run for ``minutes`` (60). ``hami``, ``vgpu-manager``, ``volcano``: the GPUs that its
    container has, with MiB and per cent of the cores. ``deleted_seconds_ago``: it terminates, with the usual
    grace period. ``kueue``: its queue of Kueue, which manages it. ``priority``, ``labels``, ``annotations``;
    ``metadata``, ``spec`` and ``status`` as in a manifest."""
    short = _with_shares(short)
    containers, started = short.get("containers", [short.get("asks", {})]), _ago(short.get("minutes", 60))
    limited = short.get("guaranteed", False)
    spec = {
        "schedulerName": "stowage",
        "containers": [_container(number, asks, limited) for number, asks in enumerate(containers)],
        "initContainers": [
            _container(200 + number, asks, limited) | {"restartPolicy": "Always"}
            for number, asks in enumerate(short.get("sidecars", []))
        ]
        + [_container(100 + number, asks, limited) for number, asks in enumerate(short.get("init", []))],
        "priority": short.get("priority", 0),
        "resourceClaims": [{"name": name, "resourceClaimName": name} for name in short.get("claims", ())],
    }
    status: dict[str, Any] = {"phase": "Pending"}
    if "node" in short:
        spec["nodeName"] = short["node"]
        status = {"phase": "Running", "startTime": started}
    labels = dict(short.get("labels", {}))
    if "kueue" in short:
        labels |= {"kueue.x-k8s.io/managed": "true", "kueue.x-k8s.io/queue-name": short["kueue"]}
    deletion = {}
    if "deleted_seconds_ago" in short:
        ends = _ago((short["deleted_seconds_ago"] - _GRACE_SECONDS) / 60)
        deletion = {"deletionTimestamp": ends, "deletionGracePeriodSeconds": _GRACE_SECONDS}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **deletion,
            "name": name,
            "namespace": short.get("namespace", _NAMESPACE),
            "uid": f"uid-{name}",
            "labels": labels,
            "annotations": _texts(short.get("annotations", {})),
            "creationTimestamp": started,
            **short.get("metadata", {}),
        },
        "spec": spec | short.get("spec", {}),
        "status": status | short.get("status", {}),
    }


def _with_shares(short: Short) -> Short:
    """The short form of a pod with its request and the annotations for the GPUs that it has."""
    system = next((name for name in _RESOURCES if name in short), "")
    if not system:
        return short
    gpus = short[system]
    planned = ",".join(f"0_{gpu}_{cores}_{mib}" for gpu, (mib, cores) in gpus.items())
    annotations = {
        "hami": {"hami.io/vgpu-devices-allocated": _devices(gpus), "hami.io/vgpu-node": short["node"]},
        "vgpu-manager": {
            "nvidia.com/pre-allocated": f"c0[{planned}]",
            "nvidia.com/predicate-node": short["node"],
        },
        "volcano": {"volcano.sh/vgpu-ids-new": _devices(gpus), "volcano.sh/vgpu-node": short["node"]},
    }[system]
    asks = dict(zip(_RESOURCES[system], (len(gpus), *next(iter(gpus.values()))), strict=True))
    return {"asks": asks, **short, "annotations": annotations | short.get("annotations", {})}


def _devices(gpus: Mapping[str, tuple[int, int]]) -> str:
    return "".join(f"{gpu},NVIDIA,{mib},{cores}:" for gpu, (mib, cores) in gpus.items()) + ";"


def budget(name: str, short: Short) -> dict[str, Any]:
    """A PodDisruptionBudget for the pods with these ``labels``, of which ``allowed`` may go now. Evictions of
    the pods in ``disrupted`` are counted already."""
    disrupted = dict.fromkeys(short.get("disrupted", ()), _ago(0))
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": short.get("namespace", _NAMESPACE), "generation": 1},
        "spec": {"selector": {"matchLabels": short["labels"]}, "minAvailable": 1},
        "status": {
            "disruptionsAllowed": short["allowed"],
            "disruptedPods": disrupted,
            "observedGeneration": 1,
        },
    }


def claim(name: str, short: Short) -> dict[str, Any]:
    """A ResourceClaim with one request, ``asks`` of it as in a manifest, of the DeviceClass ``gpu``.
    ``devices``: those that are allocated, each NODE/DEVICE. ``allocation``, more of it; ``metadata`` as in a
    manifest."""
    request = {"name": "request", "exactly": {"deviceClassName": "gpu", **short.get("asks", {})}}
    found = [one.split("/") for one in short.get("devices", ())]
    admin = {"adminAccess": True} if request["exactly"].get("adminAccess") else {}
    results = [
        {"request": "request", "driver": DRIVER, "pool": node, "device": device, **admin}
        for node, device in found
    ]
    on_node = {"key": "metadata.name", "operator": "In", "values": [node for node, _ in found][:1]}
    allocation = {
        "devices": {"results": results},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [on_node]}]},
        **short.get("allocation", {}),
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": name,
            "namespace": _NAMESPACE,
            "uid": f"uid-{name}",
            **short.get("metadata", {}),
        },
        "spec": {"devices": {"requests": short.get("requests", [request])}},
        "status": {"allocation": allocation} if found or "allocation" in short else {},
    }


def resource_slice(node: str, devices: Short) -> dict[str, Any]:
    """The node's ResourceSlice with these devices by name, the rest of each as in a manifest."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": node, "uid": f"uid-slice-{node}"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": name, **(short or {})} for name, short in devices.items()],
        },
    }


def _container(number: int, asks: Short, limited: bool) -> dict[str, Any]:
    requests = _texts(asks)
    limits = {name: text for name, text in requests.items() if limited or "/" in name}
    return {"name": f"c{number}", "image": "x", "resources": {"requests": requests, "limits": limits}}


def _texts(values: Short) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()}


def _ago(minutes: float) -> str:
    return (datetime.now(UTC) - timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")
