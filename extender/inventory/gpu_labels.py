"""The GPUs of a node by its labels: those of GPU feature discovery (GFD), of a cloud, and of AMD.

GFD has inspected the GPUs, so it takes precedence over a cloud's label, that over the instance type, and that
over the catalog of models. ``docs/dialects.md`` has the table.

GFD's labels are optional. None is used to count devices: ``gpu.count`` stays 8 if some GPUs are in MIG mode,
and ``gpu.replicas`` is per GPU. Source: NVIDIA/k8s-device-plugin, internal/lm and the GFD README.

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
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeVar

from extender.data import facts
from extender.untrusted.limits import DEVICES_PER_NODE, GPU_MIB, GPUS_PER_NODE, NAME
from packing.model.gpu_catalog import Model, Product, parse_product
from packing.model.request import WHOLE

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
    memory = label_number(labels, f"{PREFIX}{device}.memory")
    if memory > _MOST_MIB:
        memory >>= 20
    replicas = min(label_number(labels, f"{PREFIX}{device}.replicas"), DEVICES_PER_NODE)
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
            version = label_number(labels, major), label_number(labels, minor)
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
        return min(label_number(labels, _REPLICAS_PER_CONTAINER), DEVICES_PER_NODE)
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


def label_number(labels: Mapping[str, str], key: str) -> int:
    """A label as an integer, 0 if it is absent or anything else."""
    return whole_number(labels.get(key, ""))


def whole_number(text: str) -> int:
    """An integer of at most 15 digits, 0 for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else 0


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


def cloud_product(labels: Mapping[str, str]) -> tuple[str, str]:
    """The product name of the GPUs, and the label that implies it; ("", "") if there is none."""
    for label, products in _PRODUCTS.items():
        written = labels.get(label, "")
        if name := written if products is None else products.get(written):
            return name, label
        if label == INSTANCE_TYPE and (name := _of_instance_type(_instance_type(labels))):
            return name, label
    return "", ""


def cloud_gpu_count(labels: Mapping[str, str]) -> int:
    """Number of GPUs of the node, healthy or not; 0 if no label implies it, or if it has other
    accelerators."""
    if _TPU in labels or any(labels.get(name) == "habana" for name in _MANUFACTURERS):
        return 0
    labeled = next(filter(None, (label_number(labels, name) for name in _COUNT_LABELS)), 0)
    return labeled or _count_of_instance_type(_instance_type(labels))


def cloud_memory_mib(labels: Mapping[str, str]) -> int:
    """Memory of one GPU, 0 if not labeled."""
    texts = (labels.get(name, "").removesuffix("MiB") for name in _MEMORY_LABELS)
    mib = next(filter(None, map(whole_number, texts)), 0)
    return mib if mib <= GPU_MIB else 0


def cloud_part(labels: Mapping[str, str]) -> Fraction:
    """The fraction of a GPU that each device of the node is, by the instance type; 1 by default."""
    name = _instance_type(labels)
    return next((part for pattern, part in _PARTS if pattern.match(name)), Fraction(1))


def _instance_type(labels: Mapping[str, str]) -> str:
    name = labels.get(INSTANCE_TYPE, "")
    return name if len(name) <= NAME else ""


def cloud_replicas(labels: Mapping[str, str]) -> int:
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


def cloud_mig_profile(labels: Mapping[str, str]) -> str | None:
    """The MIG profile of every device on the node (GKE partitions a node pool uniformly), None without
    MIG."""
    return labels.get("cloud.google.com/gke-gpu-partition-size") or None


AMD_PRODUCT, AMD_MEMORY = "amd.com/gpu.product-name", "amd.com/gpu.vram"
INTEL_COUNT = "gpu.intel.com/device.count"
UNKNOWN_MEMORY = "the memory of its GPUs is unknown"
SAY_MEMORY = "set the label nvidia.com/gpu.memory (MiB of one GPU), as GPU feature discovery does"
PRODUCT_LABELS = frozenset({PRODUCT, AMD_PRODUCT, *_PRODUCTS})
"""Labels that name the GPUs of a node."""
_COUNT = PREFIX + "gpu.count"
_CLEARLY_LESS = 0.75
"""A device with less than this fraction of its model's memory is a part of a GPU: drivers reserve a few
percent."""


@dataclass(frozen=True, slots=True)
class GpuLabels:
    """``product`` names the GPUs as GFD does, and ``product_label`` is the label from which it was read (""
    if there is none).

    ``device`` describes the device behind ``nvidia.com/gpu``: under the single strategy a MIG instance,
    otherwise a GPU. ``gpu_count`` counts the node's GPUs (single strategy: its instances), 0 if not labeled;
    ``counted_by_gfd``: by GFD's label. ``cloud_mib`` is the memory of one GPU by a cloud's label, 0 if not
    labeled; ``part`` is the fraction of a GPU that each is, by the instance type. ``cloud_count`` is the
    number of GPUs of the instance by a cloud, 0 if unknown.
    """

    product: str
    product_label: str
    device: DeviceLabels
    gpu_count: int
    counted_by_gfd: bool = False
    cloud_mib: int = 0
    part: Fraction = Fraction(1)
    cloud_count: int = 0

    def memory_mib(self, model: Model | None) -> int:
        """Memory of the device: by GFD, otherwise the smaller of the cloud's figure and the model's,
        otherwise 0. EC2 reports 16384 MiB for a T4, of which the driver shows 15360."""
        of_model = int((model.memory_mib if model else 0) * self.part)
        return self.device.memory_mib or min(filter(None, (self.cloud_mib, of_model)), default=0)

    def compute_milli(self, model: Model | None) -> int:
        """Compute of the device: ``WHOLE``, or less if a virtual machine has only a part of a GPU."""
        if self.part < 1:
            return int(WHOLE * self.part)
        mib = self.cloud_mib if model and not self.device.memory_mib else 0
        less = model and 0 < mib < _CLEARLY_LESS * model.memory_mib
        return max(WHOLE * mib // model.memory_mib, 1) if model and less else WHOLE

    def of_one_model(self, advertised: int) -> tuple[GpuLabels, str]:
        """The labels as far as they hold for all ``advertised`` devices, and a description of what is
        unknown.

        GFD describes the GPUs of one model. If more devices are advertised than it reports for its GPUs, the
        others are of other models (NVIDIA/k8s-device-plugin, internal/lm/nvml.go).
        """
        replicas, single = self.device.replicas, self.device.product and self.device.product.profile
        gpus = -(-advertised // max(replicas, 1))
        if not (self.counted_by_gfd and replicas) or single or not self.gpu_count < gpus <= GPUS_PER_NODE:
            return self, ""
        if self.cloud_count:  # instances have one model: GFD is unaware of the device plugin's time slices
            return replace(self, gpu_count=max(self.gpu_count, self.cloud_count)), ""
        text = f"GPU feature discovery describes {self.gpu_count} of {gpus} GPUs ({self.product}): "
        text += "the models of the others, and the GPU that a pod is allocated, are unknown"
        known = replace(self.device, memory_mib=0)
        return replace(self, product="", product_label="", device=known, gpu_count=gpus), text


def read_gpu_labels(labels: Mapping[str, str]) -> GpuLabels:
    """Read the labels. None of them is required."""
    device = device_labels(labels, "gpu")
    if device.product:
        product, label = device.product.base, PRODUCT
    else:
        product, label = cloud_product(labels)
    if not product and AMD_PRODUCT in labels:
        product, label = labels[AMD_PRODUCT], AMD_PRODUCT
    counted, cloud_count = label_number(labels, _COUNT), cloud_gpu_count(labels)
    return GpuLabels(
        product,
        label,
        device,
        counted or cloud_count,
        bool(counted),
        cloud_memory_mib(labels),
        cloud_part(labels),
        cloud_count,
    )
