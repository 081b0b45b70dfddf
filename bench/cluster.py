"""A synthetic GPU cluster at the size on the wire of a real one, the same at every run.

Nodes have eight whole GPUs and carry what GPU feature discovery and the kubelet put on them (15 KB, most of
it the list of images); pods are 4 KB, a tenth of which matters for placement. Every node holds six pods.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Any

Manifest = dict[str, Any]

PODS_PER_NODE = 6
GPUS_PER_NODE = 8
SEED = 20_260_801

# GPUs of the six pods on a node, from full to half empty: every request but the largest fits somewhere.
_OCCUPANCY = (
    (1, 1, 1, 1, 2, 2),
    (1, 1, 1, 1, 1, 2),
    (1, 1, 1, 1, 1, 1),
    (0, 0, 1, 1, 1, 1),
    (0, 0, 0, 0, 0, 4),
)
_KINDS = (
    ("NVIDIA-H100-80GB-HBM3", "81559", "hopper", 6),
    ("NVIDIA-A100-SXM4-80GB", "81920", "ampere", 3),
    ("NVIDIA-L40S", "46068", "ada-lovelace", 1),
)
ASKED = {1: 12, 2: 4, 4: 3, 8: 1}
"""GPUs of a pod that arrives, and how often."""


def node_name(index: int) -> str:
    """The name of a node, as long as names of cloud machines are."""
    return f"gpu-node-{index // 1000:02d}-{index % 1000:04d}.eu-west.compute.internal"


def nodes(count: int) -> Iterator[Manifest]:
    """``count`` nodes of three kinds, mixed."""
    rng = random.Random(SEED)
    weights = [weight for *_, weight in _KINDS]
    for index in range(count):
        product, memory, family, _ = rng.choices(_KINDS, weights)[0]
        yield _node(index, product, memory, family)


def bound_pods(count: int) -> Iterator[Manifest]:
    """Six running pods on each of ``count`` nodes."""
    numbers = itertools.count()
    for index, sizes in enumerate(_occupancy(count)):
        for gpus in sizes:
            yield pod(next(numbers), gpus, node=node_name(index))


def roomy(count: int) -> Iterator[str]:
    """Those of ``count`` nodes with at least four GPUs free."""
    for index, sizes in enumerate(_occupancy(count)):
        if GPUS_PER_NODE - sum(sizes) >= 4:
            yield node_name(index)


def arrivals(sizes: Mapping[int, int] = ASKED) -> Iterator[Manifest]:
    """Pods that wait for a node, without end; ``sizes``: how often one asks for so many GPUs."""
    rng = random.Random(SEED + 2)
    for number in itertools.count(1_000_000):
        yield pod(number, rng.choices(list(sizes), list(sizes.values()))[0])


def hostile(count: int) -> Iterator[Manifest]:
    """``count`` pods that wait, made to cost more than their share."""
    for number, (notes, gpus) in zip(range(count), itertools.cycle(_HOSTILE), strict=False):
        manifest = pod(9_000_000 + number, gpus)
        manifest["metadata"]["annotations"] |= notes
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
    return (rng.choice(_OCCUPANCY) for _ in range(count))


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
            {
                "manager": manager,
                "operation": "Update",
                "apiVersion": "v1",
                "time": "2026-08-01T09:30:00Z",
                "fieldsType": "FieldsV1",
                "fieldsV1": {
                    f"f:{part}": {f"f:{key}": {} for key in _FIELDS} for part in ("metadata", "spec")
                },
            }
            for manager in ("kube-controller-manager", "kubelet")
        ],
    }


_FIELDS = ("labels", "ownerReferences", "containers", "resources", "tolerations", "terminationMessagePath")


def _pod_spec(name: str, amounts: Manifest, node: str) -> Manifest:
    mounts = [
        ("data", "/data"),
        ("shm", "/dev/shm"),
        ("token", "/var/run/secrets/kubernetes.io/serviceaccount"),
    ]
    container = {
        "name": "main",
        "image": "registry.example.com/team/training/pytorch-runtime:2026.7-cuda13.1",
        "command": ["python", "-m", "torch.distributed.run", "--nproc-per-node=auto", "train.py"],
        "env": [{"name": f"WORKLOAD_SETTING_{i}", "value": f"value-of-setting-{i}"} for i in range(12)],
        "resources": {"limits": amounts, "requests": amounts},
        "volumeMounts": [{"name": volume, "mountPath": path} for volume, path in mounts],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }
    waits = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    return {
        "volumes": [{"name": volume, "emptyDir": {"medium": "Memory"}} for volume, _ in mounts],
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
    return {
        "phase": phase,
        "conditions": [
            {
                "type": kind,
                "status": "True",
                "lastProbeTime": None,
                "lastTransitionTime": "2026-08-01T09:31:00Z",
            }
            for kind in kinds
        ],
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


def _node(index: int, product: str, memory_mib: str, family: str) -> Manifest:
    name = node_name(index)
    amounts = {
        "cpu": "128",
        "memory": "2113536732Ki",
        "pods": "110",
        "ephemeral-storage": "3515625000Ki",
        "hugepages-1Gi": "0",
        "nvidia.com/gpu": str(GPUS_PER_NODE),
    }
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "topology.kubernetes.io/region": "eu-west",
        "topology.kubernetes.io/zone": f"eu-west-{'abc'[index % 3]}",
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.count": str(GPUS_PER_NODE),
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.memory": memory_mib,
        "nvidia.com/gpu.family": family,
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/mig.capable": "true",
        "nvidia.com/mig.strategy": "mixed",
        "nvidia.com/mig.config.state": "success",
        **{f"feature.node.kubernetes.io/cpu-cpuid.{flag}": "true" for flag in _CPU_FLAGS},
    }
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "uid": f"{index:08x}-0de0-4c1d-9f00-{index:012x}",
            "resourceVersion": str(1_000_000 + index),
            "creationTimestamp": "2026-06-01T00:00:00Z",
            "labels": labels,
            "annotations": {
                "node.alpha.kubernetes.io/ttl": "15",
                "nfd.node.kubernetes.io/feature-labels": ",".join(labels),
            },
        },
        "spec": {"podCIDR": "10.12.4.0/24", "providerID": f"cloud:///eu-west/{name}"},
        "status": {"capacity": amounts, "allocatable": amounts, **_node_status(index)},
    }


_CPU_FLAGS = tuple(
    f"AVX512{part}" for part in ("BW", "CD", "DQ", "F", "VL", "VNNI", "VBMI", "VBMI2", "FP16", "BF16")
)


def _node_status(index: int) -> Manifest:
    kinds = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    return {
        "conditions": [
            {
                "type": kind,
                "status": "False",
                "lastHeartbeatTime": "2026-08-01T09:30:00Z",
                "reason": "Kubelet",
            }
            for kind in kinds
        ],
        "addresses": [
            {"type": "InternalIP", "address": f"10.{index >> 16 & 255}.{index >> 8 & 255}.{index & 255}"}
        ],
        "nodeInfo": {"kubeletVersion": "v1.36.3", "containerRuntimeVersion": "containerd://2.1.4"},
        "images": [  # the kubelet reports its 50 largest
            {
                "names": [
                    f"registry.example.com/team/image-{i:02d}@sha256:{i:064x}",
                    f"registry.example.com/team/image-{i:02d}:2026.{i}.0",
                ],
                "sizeBytes": 1_234_567_890 + i,
            }
            for i in range(50)
        ],
    }
