"""Labels of clouds with the model and number of a node's GPUs, for nodes without GPU feature discovery (GFD).

``data/clouds.json`` has the names of GPUs and the instance types of each cloud, and the sources of both. The
product names are those that GFD would write into ``nvidia.com/gpu.product``. Karpenter has well-known labels
``instance-gpu-*`` (EKS Auto Mode has the same under ``eks.amazonaws.com``; Azure's provider has
``sku-gpu-count``). NVSentinel labels the number that a node should have. Without such a label, the instance
type implies the number. Alibaba Cloud's ACK labels nodes with the product name, the number and the memory of
their GPUs. ``karpenter.k8s.gcp/instance-gpu-count`` is not read: it is the number of accelerator kinds, 1 for
eight GPUs (cloudpilot-ai/karpenter-provider-gcp at 004522cd, pkg/providers/instancetype/types.go).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeVar

from extender.data import facts
from extender.inventory.gfd_labels import number, whole_number
from extender.untrusted.limits import GPU_MIB, NAME

T = TypeVar("T")
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
_CLOUDS = facts("clouds")
_PRODUCTS = {
    "cloud.google.com/gke-accelerator": _CLOUDS["google"],
    "karpenter.k8s.gcp/instance-gpu-name": _CLOUDS["google"],
    "gpu.nvidia.com/class": _CLOUDS["coreweave"],
    "doks.digitalocean.com/gpu-model": _CLOUDS["digitalocean"],
    "aliyun.accelerator/nvidia_name": None,
    INSTANCE_TYPE: {},
    "karpenter.k8s.aws/instance-gpu-name": _CLOUDS["ec2"],
    "eks.amazonaws.com/instance-gpu-name": _CLOUDS["ec2"],
}
"""In order of precedence: EC2 has one name for both A100 models, and an instance type for each. None if the
label is the product name itself."""
PRODUCT_LABELS = frozenset(_PRODUCTS)
_COUNT_LABELS = (
    "nvsentinel.dgxc.nvidia.com/gpu.count.expected",
    "karpenter.k8s.aws/instance-gpu-count",
    "eks.amazonaws.com/instance-gpu-count",
    "karpenter.azure.com/sku-gpu-count",
    "aliyun.accelerator/nvidia_count",
    "cloud.google.com/gke-accelerator-count",
)
_TPU = "cloud.google.com/gke-tpu-accelerator"
_MANUFACTURERS = (
    "karpenter.k8s.aws/instance-gpu-manufacturer",
    "eks.amazonaws.com/instance-gpu-manufacturer",
)
"""EC2 also counts the Gaudi accelerators of its type dl1 as GPUs."""
_MEMORY_LABELS = (
    "karpenter.k8s.aws/instance-gpu-memory",
    "eks.amazonaws.com/instance-gpu-memory",
    "aliyun.accelerator/nvidia_mem",
)
"""MiB of one GPU; ACK writes "23028MiB"."""


def _by_pattern(table: str, read: Callable[[Any], T]) -> list[tuple[re.Pattern[str], T]]:
    return [(re.compile(key, re.IGNORECASE), read(value)) for key, value in _CLOUDS[table].items()]


_INSTANCE_TYPES, _COUNTS = _by_pattern("instance types", str), _by_pattern("gpus of instance types", int)
_PARTS = _by_pattern("parts of a GPU", Fraction)
"""The fraction of a GPU that each device of an instance type is, if it is not a whole GPU."""
_COUNT_IN_NAME = re.compile(
    r"(?:BM|VM)\.GPU[\w.-]*\.(\d{1,2})$|(?:a2|a3|a4|a4x)-[a-z]+gpu-(\d{1,2})g(?:-|$)", re.ASCII
)


def product(labels: Mapping[str, str]) -> tuple[str, str]:
    """The product name of the GPUs, and the label that implies it; ("", "") if there is none."""
    for label, products in _PRODUCTS.items():
        written = labels.get(label, "")
        if name := written if products is None else products.get(written):
            return name, label
        if label == INSTANCE_TYPE and (name := _of_instance_type(_instance_type(labels))):
            return name, label
    return "", ""


def gpu_count(labels: Mapping[str, str]) -> int:
    """Number of GPUs of the node, healthy or not; 0 if no label implies it, or if it has other
    accelerators."""
    if _TPU in labels or any(labels.get(name) == "habana" for name in _MANUFACTURERS):
        return 0
    labeled = next(filter(None, (number(labels, name) for name in _COUNT_LABELS)), 0)
    return labeled or _count_of_instance_type(_instance_type(labels))


def memory_mib(labels: Mapping[str, str]) -> int:
    """Memory of one GPU, 0 if not labeled."""
    texts = (labels.get(name, "").removesuffix("MiB") for name in _MEMORY_LABELS)
    mib = next(filter(None, map(whole_number, texts)), 0)
    return mib if mib <= GPU_MIB else 0


def part(labels: Mapping[str, str]) -> Fraction:
    """The fraction of a GPU that each device of the node is, by the instance type; 1 by default."""
    name = _instance_type(labels)
    return next((part for pattern, part in _PARTS if pattern.match(name)), Fraction(1))


def _instance_type(labels: Mapping[str, str]) -> str:
    name = labels.get(INSTANCE_TYPE, "")
    return name if len(name) <= NAME else ""


def replicas(labels: Mapping[str, str]) -> int:
    """Number of containers that share a GPU on a GKE node with GPU sharing, 0 on every other node."""
    text = labels.get("cloud.google.com/gke-max-shared-clients-per-gpu", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else 0


@lru_cache(maxsize=1024)
def _of_instance_type(name: str) -> str | None:
    return next((product for pattern, product in _INSTANCE_TYPES if pattern.match(name)), None)


@lru_cache(maxsize=1024)
def _count_of_instance_type(name: str) -> int:
    if match := _COUNT_IN_NAME.match(name):
        return int(match[1] or match[2])
    return next((count for pattern, count in _COUNTS if pattern.match(name)), 0)


def mig_profile(labels: Mapping[str, str]) -> str | None:
    """The MIG profile of every device on the node (GKE partitions a node pool uniformly), None without
    MIG."""
    return labels.get("cloud.google.com/gke-gpu-partition-size") or None
