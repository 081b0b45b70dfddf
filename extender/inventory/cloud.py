"""Cloud labels that name the GPU where GPU feature discovery does not run.

Values are product names as ``nvidia.com/gpu.product`` would give them, so that one catalogue serves both.
Sources: GKE "About GPUs" (cloud.google.com/kubernetes-engine/docs/concepts/gpus) for the accelerator names,
CoreWeave "Node labels" for ``gpu.nvidia.com/class``, Karpenter's well-known labels for ``instance-gpu-name``.
"""

from __future__ import annotations

from collections.abc import Mapping

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
    "karpenter.k8s.aws/instance-gpu-name": {
        "t4": "Tesla-T4",
        "l4": "NVIDIA-L4",
        "l40s": "NVIDIA-L40S",
        "a10g": "NVIDIA-A10G",
        "a100": "NVIDIA-A100-SXM4-40GB",
        "h100": "NVIDIA-H100-80GB-HBM3",
        "h200": "NVIDIA-H200",
        "b200": "NVIDIA-B200",
    },
}


def product(labels: Mapping[str, str]) -> str | None:
    """The product name that a cloud's labels imply, or ``None``."""
    for label, names in _PRODUCTS.items():
        if (value := labels.get(label)) in names:
            return names[value]
    return None


def mig_profile(labels: Mapping[str, str]) -> str | None:
    """The MIG profile of every device of the node (GKE partitions a node pool uniformly), or ``None``."""
    return labels.get("cloud.google.com/gke-gpu-partition-size") or None
