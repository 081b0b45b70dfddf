"""Labels of clouds that name the GPU, for nodes without GPU feature discovery (GFD).

The product names are those that GFD would write into ``nvidia.com/gpu.product``. Sources: GKE "About GPUs"
(cloud.google.com/kubernetes-engine/docs/concepts/gpus) for the accelerator names,
CoreWeave "Node labels" for ``gpu.nvidia.com/class``, Karpenter's well-known labels for
``instance-gpu-name`` (EKS Auto Mode has the same under ``eks.amazonaws.com``). Without such a label the
instance type names the GPU: "Amazon EC2 instance types: accelerated computing", "GPU accelerated sizes" of
Azure's virtual machines, and "Compute shapes" of Oracle Cloud.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from extender.untrusted.limits import NAME

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
}
"""GPU names as the EC2 API gives them, in lower case."""
_PRODUCTS = {
    "cloud.google.com/gke-accelerator": {
        "nvidia-tesla-t4": "Tesla-T4",
        "nvidia-l4": "NVIDIA-L4",
        "nvidia-tesla-a100": "NVIDIA-A100-SXM4-40GB",
        "nvidia-a100-80gb": "NVIDIA-A100-SXM4-80GB",
        "nvidia-h100-80gb": "NVIDIA-H100-80GB-HBM3",
        "nvidia-h100-mega-80gb": "NVIDIA-H100-80GB-HBM3",
        "nvidia-h200-141gb": "NVIDIA-H200",
        "nvidia-b200": "NVIDIA-B200",
        "nvidia-gb200": "NVIDIA-GB200",
    },
    "gpu.nvidia.com/class": {
        "A40": "NVIDIA-A40",
        "L40": "NVIDIA-L40",
        "L40S": "NVIDIA-L40S",
        "A100_NVLINK_80GB": "NVIDIA-A100-SXM4-80GB",
        "H100_NVLINK_80GB": "NVIDIA-H100-80GB-HBM3",
        "H200": "NVIDIA-H200",
        "B200": "NVIDIA-B200",
        "GB200_4X": "NVIDIA-GB200",
    },
    "karpenter.k8s.aws/instance-gpu-name": _EC2,
    "eks.amazonaws.com/instance-gpu-name": _EC2,
}
PRODUCT_LABELS = frozenset({*_PRODUCTS, INSTANCE_TYPE})
_INSTANCE_TYPES = tuple(
    (re.compile(pattern, re.IGNORECASE), product)
    for pattern, product in (
        (r"g4dn\.", "Tesla-T4"),
        (r"g5\.", "NVIDIA-A10G"),
        (r"(g6|gr6)\.", "NVIDIA-L4"),
        (r"g6e\.", "NVIDIA-L40S"),
        (r"p4d\.", "NVIDIA-A100-SXM4-40GB"),
        (r"p4de\.", "NVIDIA-A100-SXM4-80GB"),
        (r"p5\.", "NVIDIA-H100-80GB-HBM3"),
        (r"(p5e|p5en)\.", "NVIDIA-H200"),
        (r"p6-b200\.", "NVIDIA-B200"),
        (r"Standard_NC\d+as_T4_v3$", "Tesla-T4"),
        (r"Standard_NC\d+ads_A100_v4$", "NVIDIA-A100-80GB-PCIe"),
        (r"Standard_NC\d+adi?s_H100_v5$", "NVIDIA-H100-NVL"),
        (r"Standard_ND96a?sr(_A100)?_v4$", "NVIDIA-A100-SXM4-40GB"),
        (r"Standard_ND96amsr_A100_v4$", "NVIDIA-A100-SXM4-80GB"),
        (r"Standard_ND96i?sr_H100_v5$", "NVIDIA-H100-80GB-HBM3"),
        (r"Standard_ND96i?sr_H200_v5$", "NVIDIA-H200"),
        (r"BM\.GPU4\.8$", "NVIDIA-A100-SXM4-40GB"),
        (r"BM\.GPU\.A100-v2\.8$", "NVIDIA-A100-SXM4-80GB"),
        (r"BM\.GPU\.H100\.8$", "NVIDIA-H100-80GB-HBM3"),
        (r"BM\.GPU\.H200\.8$", "NVIDIA-H200"),
        (r"BM\.GPU\.B200\.8$", "NVIDIA-B200"),
        (r"BM\.GPU\.L40S", "NVIDIA-L40S"),
        (r"(BM|VM)\.GPU\.A10\.", "NVIDIA-A10"),
    )
)


def product(labels: Mapping[str, str]) -> tuple[str, str]:
    """The product name of the GPUs, and the label that implies it; ("", "") if there is none."""
    for label, products in _PRODUCTS.items():
        if name := products.get(labels.get(label, "")):
            return name, label
    instance_type = labels.get(INSTANCE_TYPE, "")
    name = _of_instance_type(instance_type) if len(instance_type) <= NAME else None
    return (name, INSTANCE_TYPE) if name else ("", "")


def replicas(labels: Mapping[str, str]) -> int:
    """How many containers share a GPU on a GKE node with GPU sharing, 0 on every other node."""
    text = labels.get("cloud.google.com/gke-max-shared-clients-per-gpu", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else 0


@lru_cache(maxsize=1024)
def _of_instance_type(name: str) -> str | None:
    return next((product for pattern, product in _INSTANCE_TYPES if pattern.match(name)), None)


def mig_profile(labels: Mapping[str, str]) -> str | None:
    """The MIG profile of every device on the node (GKE partitions a node pool uniformly), None for none."""
    return labels.get("cloud.google.com/gke-gpu-partition-size") or None
