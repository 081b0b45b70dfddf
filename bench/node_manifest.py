"""The manifest of one node, with realistic labels and status."""

from __future__ import annotations

from typing import Any

Manifest = dict[str, Any]

GPUS_PER_NODE = 8
SHARD_LABEL, SHARDS = "stowage.dev/shard", 4
"""A label of all nodes with the values "0" to "3"."""


def node_manifest(
    index: int, name: str, product: str, memory_mib: str, family: str, gpus: int = GPUS_PER_NODE
) -> Manifest:
    """A node with ``gpus`` GPUs; ``index`` is its number in the cluster."""
    amounts = {
        "cpu": "128",
        "memory": "2113536732Ki",
        "pods": "110",
        "ephemeral-storage": "3515625000Ki",
        "hugepages-1Gi": "0",
        "nvidia.com/gpu": str(gpus),
    }
    labels = _labels(index, name, product, memory_mib, family, gpus)
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


def _labels(index: int, name: str, product: str, memory_mib: str, family: str, gpus: int) -> dict[str, str]:
    return {
        "kubernetes.io/hostname": name,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        SHARD_LABEL: str(index % SHARDS),
        "topology.kubernetes.io/region": "eu-west",
        "topology.kubernetes.io/zone": f"eu-west-{'abc'[index % 3]}",
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.count": str(gpus),
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.memory": memory_mib,
        "nvidia.com/gpu.family": family,
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/mig.capable": "true",
        "nvidia.com/mig.strategy": "mixed",
        "nvidia.com/mig.config.state": "success",
        **{f"feature.node.kubernetes.io/cpu-cpuid.{flag}": "true" for flag in _CPU_FLAGS},
    }


_CPU_FLAGS = tuple(
    f"AVX512{part}" for part in ("BW", "CD", "DQ", "F", "VL", "VNNI", "VBMI", "VBMI2", "FP16", "BF16")
)


def _node_status(index: int) -> Manifest:
    kinds = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    condition = {"status": "False", "lastHeartbeatTime": "2026-08-01T09:30:00Z", "reason": "Kubelet"}
    address = f"10.{index >> 16 & 255}.{index >> 8 & 255}.{index & 255}"
    image = "registry.example.com/team/image"
    return {
        "conditions": [{"type": kind, **condition} for kind in kinds],
        "addresses": [{"type": "InternalIP", "address": address}],
        "nodeInfo": {"kubeletVersion": "v1.36.3", "containerRuntimeVersion": "containerd://2.1.4"},
        "images": [  # the kubelet reports the 50 largest
            {
                "names": [f"{image}-{i:02d}@sha256:{i:064x}", f"{image}-{i:02d}:2026.{i}.0"],
                "sizeBytes": 1_234_567_890 + i,
            }
            for i in range(50)
        ],
    }
