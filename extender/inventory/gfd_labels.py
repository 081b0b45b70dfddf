"""Labels of NVIDIA's GPU feature discovery (GFD), which describe the GPUs of a node.

Every label is optional. None is used to count devices: ``gpu.count`` stays 8 when some GPUs are in MIG mode,
and ``gpu.replicas`` is per GPU. Source: NVIDIA/k8s-device-plugin, internal/lm and the GFD README.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from extender.untrusted.limits import DEVICES_PER_NODE, GPU_MIB
from packing.model.gpu_catalog import Product, parse_product

PREFIX = "nvidia.com/"
PRODUCT = PREFIX + "gpu.product"
_MOST_MIB = 10_000_000
"""A memory label above this is in bytes (GFD 0.6), not in MiB."""
_CUDA_VERSION = (
    (PREFIX + "cuda.runtime-version.major", PREFIX + "cuda.runtime-version.minor"),
    (PREFIX + "cuda.runtime.major", PREFIX + "cuda.runtime.minor"),
    (PREFIX + "node-cuda-major", PREFIX + "node-cuda-minor"),
)
_REPLICAS_PER_CONTAINER = "stowage.dev/replicas-per-container"
_RECONFIGURING = frozenset({"pending", "rebooting"})


@dataclass(frozen=True, slots=True)
class DeviceLabels:
    """Labels of one kind of device. ``memory_mib`` and ``replicas`` (of one device) are 0 if not labeled."""

    product: Product | None
    memory_mib: int
    replicas: int


def device_labels(labels: Mapping[str, str], device: str) -> DeviceLabels:
    """The labels of ``gpu``, or of ``mig-<profile>`` (mixed strategy)."""
    product = labels.get(f"{PREFIX}{device}.product")
    memory = number(labels, f"{PREFIX}{device}.memory")
    if memory > _MOST_MIB:
        memory >>= 20
    replicas = min(number(labels, f"{PREFIX}{device}.replicas"), DEVICES_PER_NODE)
    memory = memory if memory <= GPU_MIB else 0
    return DeviceLabels(parse_product(product) if product else None, memory, replicas)


def reconfiguring(labels: Mapping[str, str]) -> bool:
    """Whether the MIG manager is reconfiguring the node, so that its labels and allocatable will change
    soon."""
    return labels.get(PREFIX + "mig.config.state") in _RECONFIGURING


def cuda_version(labels: Mapping[str, str]) -> int:
    """The CUDA version that the driver supports: 12004 for 12.4; 0 if not labeled.

    vgpu-manager has its own label (coldzerofear/vgpu-manager at 3d7f66d, pkg/util/consts.go).
    """
    for major, minor in _CUDA_VERSION:
        if major in labels:
            version = number(labels, major), number(labels, minor)
            return version[0] * 1000 + version[1] if max(version) < 1000 else 0
    return 0


def replicas_per_container(labels: Mapping[str, str], device: str, gpus: int) -> int:
    """Maximum number of replicas of a shared device that one container may request on a node with ``gpus``
    GPUs, 0 for unlimited.

    No label shows the device plugin's setting ``failRequestsGreaterThanOne``. By default it is enabled under
    MPS (api/config/v1/config.go) and disabled for time-slicing. GKE's plugin allocates several only under MPS
    on a node with one GPU (ValidateRequest in pkg/gpu/nvidia/gpusharing/gpusharing.go of
    GoogleCloudPlatform/container-engine-accelerators). The label ``stowage.dev/replicas-per-container`` (a
    number, or "any") overrides this.
    """
    if _REPLICAS_PER_CONTAINER in labels:
        return min(number(labels, _REPLICAS_PER_CONTAINER), DEVICES_PER_NODE)
    if strategy := labels.get("cloud.google.com/gke-gpu-sharing-strategy"):
        return int(strategy != "mps" or gpus > 1)
    return int(labels.get(f"{PREFIX}{device}.sharing-strategy") == "mps")


def is_replica(labels: Mapping[str, str], device: DeviceLabels) -> bool:
    """Whether labels declare ``nvidia.com/gpu`` a replica, even if they do not give the number of
    replicas."""
    return (
        (device.product is not None and device.product.shared)
        or labels.get(PREFIX + "gpu.sharing-strategy") in ("time-slicing", "mps")
        or "cloud.google.com/gke-gpu-sharing-strategy" in labels
    )


def number(labels: Mapping[str, str], key: str) -> int:
    """A label as an integer, 0 if it is absent or anything else."""
    return whole_number(labels.get(key, ""))


def whole_number(text: str) -> int:
    """An integer of at most 15 digits, 0 for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else 0
