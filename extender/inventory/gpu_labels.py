"""What a node's labels say about its GPUs: those of GPU feature discovery (GFD), of a cloud, and of AMD."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from extender.inventory import cloud_labels, gfd_labels
from extender.inventory.gfd_labels import DeviceLabels
from packing.model.gpu_catalogue import Model

AMD_PRODUCT = "amd.com/gpu.product-name"
PRODUCT_LABELS = frozenset({gfd_labels.PRODUCT, AMD_PRODUCT, *cloud_labels.PRODUCT_LABELS})
"""The labels that name the GPUs of a node."""


@dataclass(frozen=True, slots=True)
class GpuLabels:
    """``product`` names the GPUs as GFD does, and ``product_label`` is the label that says so ("" for none).

    ``device`` describes the device behind ``nvidia.com/gpu``: under the single strategy a MIG instance, else
    a GPU. ``gpu_count`` counts the node's GPUs (single strategy: its instances), 0 if not labelled.
    """

    product: str
    product_label: str
    device: DeviceLabels
    gpu_count: int

    def memory_mib(self, model: Model | None) -> int:
        """Memory of the device: as labelled, else that of the GPU model, else 0."""
        return self.device.memory_mib or (model.memory_mib if model else 0)


def read_gpu_labels(labels: Mapping[str, str]) -> GpuLabels:
    """Read the labels. None of them is required."""
    device = gfd_labels.device_labels(labels, "gpu")
    if device.product:
        product, label = device.product.base, gfd_labels.PRODUCT
    else:
        product, label = cloud_labels.product(labels)
    if not product and AMD_PRODUCT in labels:
        product, label = labels[AMD_PRODUCT], AMD_PRODUCT
    return GpuLabels(product, label, device, gfd_labels.number(labels, gfd_labels.PREFIX + "gpu.count"))
