"""A synthetic GPU cluster with objects of realistic size, the same in every run.

Nodes have eight whole GPUs and the data of GPU feature discovery and the kubelet (15 KB, most of it the list
of images). Pods have 4 KB, of which a tenth matters for placement. Six pods run on every node.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping

from bench.dialects import DIALECTS
from bench.node_manifest import GPUS_PER_NODE, Manifest, node_manifest

PODS_PER_NODE = 6
SEED = 20_260_801

_OCCUPANCIES = (
    (1, 1, 1, 1, 2, 2),
    (1, 1, 1, 1, 1, 2),
    (1, 1, 1, 1, 1, 1),
    (0, 0, 1, 1, 1, 1),
    (0, 0, 0, 0, 0, 4),
)
"""GPUs of the six pods on a node, from full to half empty: every request except the largest fits
somewhere."""
_PRODUCTS = (
    ("NVIDIA-H100-80GB-HBM3", "81559", "hopper", 6),
    ("NVIDIA-A100-SXM4-80GB", "81920", "ampere", 3),
    ("NVIDIA-L40S", "46068", "ada-lovelace", 1),
)
"""Product, memory in MiB, family, and weight of the nodes' GPUs."""
GPU_WEIGHTS = {1: 12, 2: 4, 4: 3, 8: 1}
"""GPUs of an arriving pod, and their weights."""


def node_name(index: int) -> str:
    """A name as long as those of cloud machines."""
    return f"gpu-node-{index // 1000:02d}-{index % 1000:04d}.eu-west.compute.internal"


def nodes(count: int, dialect: str = "nvidia", gpus: int = GPUS_PER_NODE) -> Iterator[Manifest]:
    """``count`` nodes with different GPUs, ``gpus`` on each, in one of ``DIALECTS``."""
    rng = random.Random(SEED)
    weights = [weight for *_, weight in _PRODUCTS]
    for index in range(count):
        product, memory, family, _ = rng.choices(_PRODUCTS, weights)[0]
        manifest = node_manifest(index, node_name(index), product, memory, family, gpus)
        DIALECTS[dialect].node(manifest)
        yield manifest


def bound_pods(count: int, dialect: str = "nvidia", per_node: int = PODS_PER_NODE) -> Iterator[Manifest]:
    """Six running pods on each of ``count`` nodes, or the first ``per_node`` of them."""
    numbers = itertools.count()
    for index, sizes in enumerate(_occupancy(count)):
        pods = zip(itertools.accumulate(sizes, initial=0), sizes[:per_node], strict=False)
        for first, gpus in pods:
            manifest = pod(next(numbers), gpus, node=node_name(index))
            DIALECTS[dialect].pod(manifest, gpus, first)
            yield manifest


def nodes_with_room(count: int) -> Iterator[str]:
    """The names of those of ``count`` nodes that have at least four free GPUs."""
    for index, sizes in enumerate(_occupancy(count)):
        if GPUS_PER_NODE - sum(sizes) >= 4:
            yield node_name(index)


def arrivals(sizes: Mapping[int, int] = GPU_WEIGHTS, dialect: str = "nvidia") -> Iterator[Manifest]:
    """An endless stream of pods without a node; ``sizes``: weights by number of GPUs."""
    rng = random.Random(SEED + 2)
    for number in itertools.count(1_000_000):
        gpus = rng.choices(list(sizes), list(sizes.values()))[0]
        manifest = pod(number, gpus)
        DIALECTS[dialect].pod(manifest, gpus, -1)
        yield manifest


def hostile(count: int) -> Iterator[Manifest]:
    """``count`` pods without a node, whose manifests are expensive to process."""
    for number, (extra, gpus) in zip(range(count), itertools.cycle(_HOSTILE), strict=False):
        manifest = pod(9_000_000 + number, gpus)
        manifest["metadata"]["annotations"] |= extra
        yield manifest


_HOSTILE: tuple[tuple[dict[str, str], int], ...] = (
    ({}, 3_000_000_000),
    ({"stowage.dev/gpu-models": ",".join(f"m{n:05d}" for n in range(3300))}, 1),
    ({"hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,1,1:" * 14_000}, 1),
    ({"scheduling.koordinator.sh/device-allocated": "[" * 250_000}, 1),
    ({"stowage.dev/gpu-compute": "9" * 250_000}, 0),
)


def _occupancy(count: int) -> Iterator[tuple[int, ...]]:
    rng = random.Random(SEED + 1)
    return (rng.choice(_OCCUPANCIES) for _ in range(count))


def pod(number: int, gpus: int, *, node: str = "", phase: str = "") -> Manifest:
    """A pod of a training or inference job, bound and running if ``node`` is given."""
    name = f"{('serve', 'train', 'notebook')[number % 3]}-{number // 64:05d}-{number % 64:02d}-x{number:07x}"
    amounts = {"cpu": str(max(2, 8 * gpus)), "memory": f"{max(4, 64 * gpus)}Gi"}
    if gpus:
        amounts["nvidia.com/gpu"] = str(gpus)
    uid = f"{number:08x}-5e7a-4c1d-9f00-{number:012x}"
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": _pod_metadata(name, uid, number),
        "spec": _pod_spec(name, amounts, node),
        "status": _pod_status(name, phase or ("Running" if node else "Pending"), uid),
    }


def _pod_metadata(name: str, uid: str, number: int) -> Manifest:
    return {
        "name": name,
        "generateName": name[:-8],
        "namespace": f"team-{number % 40:02d}",
        "uid": uid,
        "resourceVersion": str(2_000_000 + number),
        "creationTimestamp": "2026-08-01T09:30:00Z",
        "labels": {
            "app.kubernetes.io/name": name.split("-")[0],
            "app.kubernetes.io/instance": name[:-12],
            "batch.kubernetes.io/controller-uid": uid,
            "batch.kubernetes.io/job-name": name[:-12],
            "pod-template-hash": f"{number // 64:010x}",
        },
        "annotations": {
            "prometheus.io/scrape": "true",
            "prometheus.io/port": "9400",
            "kubectl.kubernetes.io/restartedAt": "2026-08-01T09:30:00Z",
            "cni.example.com/ip-addresses": f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}/32",
        },
        "ownerReferences": [
            {"apiVersion": "batch/v1", "kind": "Job", "name": name[:-12], "uid": uid, "controller": True}
        ],
        "managedFields": [
            {"manager": manager, **_MANAGED} for manager in ("kube-controller-manager", "kubelet")
        ],
    }


_FIELDS = ("labels", "ownerReferences", "containers", "resources", "tolerations", "terminationMessagePath")
_MANAGED = {
    "operation": "Update",
    "apiVersion": "v1",
    "time": "2026-08-01T09:30:00Z",
    "fieldsType": "FieldsV1",
    "fieldsV1": {f"f:{part}": {f"f:{key}": {} for key in _FIELDS} for part in ("metadata", "spec")},
}


def _pod_spec(name: str, amounts: Manifest, node: str) -> Manifest:
    token = "/var/run/secrets/kubernetes.io/serviceaccount"
    mounts = {"data": "/data", "shm": "/dev/shm", "token": token}
    container = {
        "name": "main",
        "image": "registry.example.com/team/training/pytorch-runtime:2026.7-cuda13.1",
        "command": ["python", "-m", "torch.distributed.run", "--nproc-per-node=auto", "train.py"],
        "env": [{"name": f"WORKLOAD_SETTING_{i}", "value": f"value-of-setting-{i}"} for i in range(12)],
        "resources": {"limits": amounts, "requests": amounts},
        "volumeMounts": [{"name": volume, "mountPath": path} for volume, path in mounts.items()],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }
    waits = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    return {
        "volumes": [{"name": volume, "emptyDir": {"medium": "Memory"}} for volume in mounts],
        "containers": [container],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        **({"nodeName": node} if node else {}),
        "securityContext": {"runAsUser": 1000, "fsGroup": 1000},
        "hostname": name[:60],
        "schedulerName": "stowage",
        "tolerations": [
            {"key": "node.kubernetes.io/not-ready", **waits},
            {"key": "node.kubernetes.io/unreachable", **waits},
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        ],
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }


def _pod_status(name: str, phase: str, uid: str) -> Manifest:
    if phase == "Pending":
        return {"phase": phase, "qosClass": "Guaranteed"}
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    condition = {"status": "True", "lastProbeTime": None, "lastTransitionTime": "2026-08-01T09:31:00Z"}
    return {
        "phase": phase,
        "conditions": [{"type": kind, **condition} for kind in kinds],
        "hostIP": "10.0.12.7",
        "podIP": "10.12.4.9",
        "startTime": "2026-08-01T09:30:30Z",
        "containerStatuses": [
            {
                "name": "main",
                "state": {"running": {"startedAt": "2026-08-01T09:31:00Z"}},
                "ready": True,
                "restartCount": 0,
                "image": "registry.example.com/team/training/pytorch-runtime:2026.7-cuda13.1",
                "imageID": f"registry.example.com/team/training/pytorch@sha256:{uid.replace('-', '') * 2}",
                "containerID": f"containerd://{uid.replace('-', '') * 2}",
            }
        ],
        "qosClass": "Guaranteed",
    }
