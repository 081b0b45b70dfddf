"""The GPUs of a node by its labels: those of GPU feature discovery (GFD), of a cloud, and of AMD.

GFD has inspected the GPUs, so it takes precedence over a cloud's label, that over the instance type, and that
over the catalog of models. ``docs/dialects.md`` has the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from extender.inventory import cloud_labels, gfd_labels
from extender.inventory.gfd_labels import DeviceLabels
from extender.untrusted.limits import GPUS_PER_NODE
from packing.model.gpu_catalog import Model
from packing.model.request import WHOLE

AMD_PRODUCT, AMD_MEMORY = "amd.com/gpu.product-name", "amd.com/gpu.vram"
INTEL_COUNT = "gpu.intel.com/device.count"
UNKNOWN_MEMORY = "the memory of its GPUs is unknown"
SAY_MEMORY = "set the label nvidia.com/gpu.memory (MiB of one GPU), as GPU feature discovery does"
PRODUCT_LABELS = frozenset({gfd_labels.PRODUCT, AMD_PRODUCT, *cloud_labels.PRODUCT_LABELS})
"""Labels that name the GPUs of a node."""
_COUNT = gfd_labels.PREFIX + "gpu.count"
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
    device = gfd_labels.device_labels(labels, "gpu")
    if device.product:
        product, label = device.product.base, gfd_labels.PRODUCT
    else:
        product, label = cloud_labels.product(labels)
    if not product and AMD_PRODUCT in labels:
        product, label = labels[AMD_PRODUCT], AMD_PRODUCT
    counted, cloud_count = gfd_labels.number(labels, _COUNT), cloud_labels.gpu_count(labels)
    return GpuLabels(
        product,
        label,
        device,
        counted or cloud_count,
        bool(counted),
        cloud_labels.memory_mib(labels),
        cloud_labels.part(labels),
        cloud_count,
    )
