"""Labels of clouds: which GPUs a node has and how many, where no GPU feature discovery (GFD) runs.

The product names are those that GFD would write into ``nvidia.com/gpu.product``. Sources: GKE "About GPUs"
(cloud.google.com/kubernetes-engine/docs/concepts/gpus) and "GPU machine types" of Compute Engine for the
accelerator names and machine types, CoreWeave "Node labels" for ``gpu.nvidia.com/class``, Karpenter's
well-known labels for ``instance-gpu-*`` (EKS Auto Mode has the same under ``eks.amazonaws.com``; Azure's
provider has ``sku-gpu-count``). Without such a label the instance type says it: "Amazon EC2 instance types:
accelerated computing", "GPU accelerated sizes" of Azure's virtual machines, and "Compute shapes" of Oracle
Cloud. ``karpenter.k8s.gcp/instance-gpu-count`` is not read: it is the number of kinds of accelerators, 1 for
eight GPUs (cloudpilot-ai/karpenter-provider-gcp at 004522cd, pkg/providers/instancetype/types.go).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache

from extender.inventory.gfd_labels import number
from extender.untrusted.limits import GPU_MIB, NAME

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
_EC2 = {
    "t4": "Tesla-T4",
    "l4": "NVIDIA-L4",
    "l40s": "NVIDIA-L40S",
    "a10g": "NVIDIA-A10G",
    "a100": "NVIDIA-A100-SXM4-40GB",
    "h100": "NVIDIA-H100-80GB-HBM3",
    "h200": "NVIDIA-H200",
    "b200": "NVIDIA-B200",
    "b300": "NVIDIA-B300-SXM6-AC",
}
"""GPU names as the EC2 API gives them, in lower case."""
_GOOGLE = {
    "nvidia-tesla-t4": "Tesla-T4",
    "nvidia-tesla-p4": "Tesla-P4",
    "nvidia-tesla-p100": "Tesla-P100-PCIE-16GB",
    "nvidia-tesla-v100": "Tesla-V100-SXM2-16GB",
    "nvidia-l4": "NVIDIA-L4",
    "nvidia-tesla-a100": "NVIDIA-A100-SXM4-40GB",
    "nvidia-a100-80gb": "NVIDIA-A100-SXM4-80GB",
    "nvidia-h100-80gb": "NVIDIA-H100-80GB-HBM3",
    "nvidia-h100-mega-80gb": "NVIDIA-H100-80GB-HBM3",
    "nvidia-h200-141gb": "NVIDIA-H200",
    "nvidia-b200": "NVIDIA-B200",
    "nvidia-b300": "NVIDIA-B300-SXM6-AC",
    "nvidia-gb200": "NVIDIA-GB200",
    "nvidia-gb300": "NVIDIA-GB300",
    "nvidia-rtx-pro-6000": "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
}
"""GPU names as Compute Engine gives them."""
_PRODUCTS = {
    "cloud.google.com/gke-accelerator": _GOOGLE,
    "karpenter.k8s.gcp/instance-gpu-name": _GOOGLE,
    "gpu.nvidia.com/class": {
        "A40": "NVIDIA-A40",
        "L40": "NVIDIA-L40",
        "L40S": "NVIDIA-L40S",
        "A100_NVLINK_80GB": "NVIDIA-A100-SXM4-80GB",
        "H100_NVLINK_80GB": "NVIDIA-H100-80GB-HBM3",
        "H200": "NVIDIA-H200",
        "B200": "NVIDIA-B200",
        "GB200_4X": "NVIDIA-GB200",
        "GB300_4X": "NVIDIA-GB300",
        "RTXP6000": "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
    },
    INSTANCE_TYPE: {},
    "karpenter.k8s.aws/instance-gpu-name": _EC2,
    "eks.amazonaws.com/instance-gpu-name": _EC2,
}
"""In the order in which they are believed: EC2 has one name for both A100, and an instance type for each."""
PRODUCT_LABELS = frozenset(_PRODUCTS)
_COUNT_LABELS = (
    "karpenter.k8s.aws/instance-gpu-count",
    "eks.amazonaws.com/instance-gpu-count",
    "karpenter.azure.com/sku-gpu-count",
    "cloud.google.com/gke-accelerator-count",
)
_TPU = "cloud.google.com/gke-tpu-accelerator"
_MANUFACTURERS = (
    "karpenter.k8s.aws/instance-gpu-manufacturer",
    "eks.amazonaws.com/instance-gpu-manufacturer",
)
"""EC2 counts the Gaudi of its type dl1 as GPUs, too."""
_MEMORY_LABELS = ("karpenter.k8s.aws/instance-gpu-memory", "eks.amazonaws.com/instance-gpu-memory")
"""MiB of one GPU."""
_INSTANCE_TYPES = tuple(
    (re.compile(pattern, re.IGNORECASE), product)
    for pattern, product in (
        (r"g4dn\.", "Tesla-T4"),
        (r"g5\.", "NVIDIA-A10G"),
        (r"(g6|gr6|g6f|gr6f)\.", "NVIDIA-L4"),
        (r"g6e\.", "NVIDIA-L40S"),
        (r"p4d\.", "NVIDIA-A100-SXM4-40GB"),
        (r"p4de\.", "NVIDIA-A100-SXM4-80GB"),
        (r"p5\.", "NVIDIA-H100-80GB-HBM3"),
        (r"(p5e|p5en)\.", "NVIDIA-H200"),
        (r"p6-b200\.", "NVIDIA-B200"),
        (r"p6-b300\.", "NVIDIA-B300-SXM6-AC"),
        (r"p6e-gb200\.", "NVIDIA-GB200"),
        (r"g7e\.", "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"),
        (r"Standard_NC\d+as_T4_v3$", "Tesla-T4"),
        (r"Standard_NV\d+adm?s_A10_v5$", "NVIDIA-A10"),
        (r"Standard_NC\d+ads_A100_v4$", "NVIDIA-A100-80GB-PCIe"),
        (r"Standard_NC\d+adi?s_H100_v5$", "NVIDIA-H100-NVL"),
        (r"Standard_ND96a?sr(_A100)?_v4$", "NVIDIA-A100-SXM4-40GB"),
        (r"Standard_ND96amsr_A100_v4$", "NVIDIA-A100-SXM4-80GB"),
        (r"Standard_ND96i?sr_H100_v5$", "NVIDIA-H100-80GB-HBM3"),
        (r"Standard_ND96i?sr_H200_v5$", "NVIDIA-H200"),
        (r"Standard_ND128i?sr(_NDR)?_GB200_v6$", "NVIDIA-GB200"),
        (r"Standard_ND128i?sr(_NDR)?_GB300_v6$", "NVIDIA-GB300"),
        (r"BM\.GPU4\.8$", "NVIDIA-A100-SXM4-40GB"),
        (r"BM\.GPU\.A100-v2\.8$", "NVIDIA-A100-SXM4-80GB"),
        (r"BM\.GPU\.H100\.8$", "NVIDIA-H100-80GB-HBM3"),
        (r"BM\.GPU\.H200\.8$", "NVIDIA-H200"),
        (r"BM\.GPU\.B200\.8$", "NVIDIA-B200"),
        (r"BM\.GPU\.L40S", "NVIDIA-L40S"),
        (r"(BM|VM)\.GPU\.A10\.", "NVIDIA-A10"),
        (r"a2-(highgpu|megagpu)-\d+g$", "NVIDIA-A100-SXM4-40GB"),
        (r"a2-ultragpu-\d+g$", "NVIDIA-A100-SXM4-80GB"),
        (r"a3-(highgpu|megagpu|edgegpu)-\d+g$", "NVIDIA-H100-80GB-HBM3"),
        (r"a3-ultragpu-8g", "NVIDIA-H200"),
        (r"a4-highgpu-8g", "NVIDIA-B200"),
        (r"a4x-highgpu-4g", "NVIDIA-GB200"),
        (r"a4x-maxgpu-4g", "NVIDIA-GB300"),
        (r"g2-standard-\d+$", "NVIDIA-L4"),
        (r"g4-standard-\d+$", "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"),
    )
)
_COUNTS = tuple(
    (re.compile(pattern, re.IGNORECASE), count)
    for pattern, count in (
        (r"(g4dn|g5|g6|g6e)\.12xlarge$", 4),
        (r"(g5|g6|g6e)\.24xlarge$", 4),
        (r"(g5|g6|g6e)\.48xlarge$", 8),
        (r"g4dn\.metal$", 8),
        (r"(g4dn|g5|g6|g6e|gr6)\.(x|2x|4x|8x|16x)large$", 1),
        (r"(g6f|gr6f)\.", 1),
        (r"p5\.4xlarge$", 1),
        (r"(p4d|p4de)\.24xlarge$", 8),
        (r"(p5|p5e|p5en|p6-b200|p6-b300)\.48xlarge$", 8),
        (r"Standard_NC(4|8|16)as_T4_v3$", 1),
        (r"Standard_NC64as_T4_v3$", 4),
        (r"Standard_NV(6|12|18|36)adm?s_A10_v5$", 1),
        (r"Standard_NV72ads_A10_v5$", 2),
        (r"Standard_NC(24ads_A100_v4|40adi?s_H100_v5)$", 1),
        (r"Standard_NC(48ads_A100_v4|80adi?s_H100_v5)$", 2),
        (r"Standard_NC96ads_A100_v4$", 4),
        (r"Standard_ND96", 8),
        (r"Standard_ND128", 4),
        (r"g2-standard-(4|8|12|16|32)$", 1),
        (r"g2-standard-24$", 2),
        (r"g2-standard-48$", 4),
        (r"g2-standard-96$", 8),
        (r"g4-standard-(6|12|24|48)$", 1),
        (r"g4-standard-96$", 2),
        (r"g4-standard-192$", 4),
        (r"g4-standard-384$", 8),
    )
)
_COUNT_IN_NAME = re.compile(
    r"(?:BM|VM)\.GPU[\w.-]*\.(\d{1,2})$|(?:a2|a3|a4|a4x)-[a-z]+gpu-(\d{1,2})g(?:-|$)", re.ASCII
)
_PARTS = tuple(
    (re.compile(pattern, re.IGNORECASE), Fraction(part))
    for pattern, part in (
        (r"g6f\.(x?large)$", "1/8"),
        (r"g6f\.2xlarge$", "1/4"),
        (r"(g6f|gr6f)\.4xlarge$", "1/2"),
        (r"Standard_NV6ads_A10_v5$", "1/6"),
        (r"Standard_NV12ads_A10_v5$", "1/3"),
        (r"Standard_NV18ads_A10_v5$", "1/2"),
        (r"g4-standard-6$", "1/8"),
        (r"g4-standard-12$", "1/4"),
        (r"g4-standard-24$", "1/2"),
    )
)
"""Which part of a GPU each device of an instance type is, where it is not a whole one."""


def product(labels: Mapping[str, str]) -> tuple[str, str]:
    """The product name of the GPUs, and the label that implies it; ("", "") if there is none."""
    for label, products in _PRODUCTS.items():
        if name := products.get(labels.get(label, "")):
            return name, label
        if label == INSTANCE_TYPE and (name := _of_instance_type(_instance_type(labels))):
            return name, label
    return "", ""


def gpu_count(labels: Mapping[str, str]) -> int:
    """How many GPUs the node has, healthy or not; 0 if no label says so, or if it has other accelerators."""
    if _TPU in labels or any(labels.get(name) == "habana" for name in _MANUFACTURERS):
        return 0
    labelled = next(filter(None, (number(labels, name) for name in _COUNT_LABELS)), 0)
    return labelled or _count_of_instance_type(_instance_type(labels))


def memory_mib(labels: Mapping[str, str]) -> int:
    """Memory of one GPU, 0 if no label says so."""
    found = next(filter(None, (number(labels, name) for name in _MEMORY_LABELS)), 0)
    return found if found <= GPU_MIB else 0


def part(labels: Mapping[str, str]) -> Fraction:
    """Which part of a GPU each device of the node is, by the instance type; 1 if that does not say so."""
    name = _instance_type(labels)
    return next((part for pattern, part in _PARTS if pattern.match(name)), Fraction(1))


def _instance_type(labels: Mapping[str, str]) -> str:
    name = labels.get(INSTANCE_TYPE, "")
    return name if len(name) <= NAME else ""


def replicas(labels: Mapping[str, str]) -> int:
    """How many containers share a GPU on a GKE node with GPU sharing, 0 on every other node."""
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
    """The MIG profile of every device on the node (GKE partitions a node pool uniformly), None for none."""
    return labels.get("cloud.google.com/gke-gpu-partition-size") or None
