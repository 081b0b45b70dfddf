"""Labels of NVIDIA's GPU feature discovery (GFD): what the GPUs of a node are.

Every label is optional and none is trusted to count free devices: ``gpu.count`` stays 8 when some GPUs are
in MIG mode, ``gpu.replicas`` is per GPU. Source: NVIDIA/k8s-device-plugin, internal/lm and the GFD README.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from extender.untrusted.limits import DEVICES_PER_NODE, GPU_MIB
from packing.model.gpu_catalogue import Product, parse_product

PREFIX = "nvidia.com/"
_BYTES_GUARD = 10_000_000
"""A memory label above this is in bytes (GFD 0.6), not MiB."""
_CUDA = (
    (PREFIX + "cuda.runtime-version.major", PREFIX + "cuda.runtime-version.minor"),
    (PREFIX + "cuda.runtime.major", PREFIX + "cuda.runtime.minor"),
    (PREFIX + "node-cuda-major", PREFIX + "node-cuda-minor"),
)
_BUSY = frozenset({"pending", "rebooting"})


@dataclass(frozen=True, slots=True)
class Card:
    """What labels say of a device: its product, its memory in MiB (0: not said), devices made of one."""

    product: Product | None
    memory_mib: int
    replicas: int


def card(labels: Mapping[str, str]) -> Card:
    """The device behind ``nvidia.com/gpu``: under the single strategy a MIG instance, else a GPU."""
    label = labels.get(PREFIX + "gpu.product")
    return Card(parse_product(label) if label else None, *_size(labels, "gpu"))


def mig_card(labels: Mapping[str, str], profile: str) -> Card:
    """The device behind ``nvidia.com/mig-<profile>`` under the mixed strategy."""
    label = labels.get(f"{PREFIX}mig-{profile}.product")
    return Card(parse_product(label) if label else None, *_size(labels, f"mig-{profile}"))


def gpu_count(labels: Mapping[str, str]) -> int:
    """GPUs of the node (under the single strategy: MIG devices); 0 when not said."""
    return number(labels, PREFIX + "gpu.count")


def repartitioning(labels: Mapping[str, str]) -> bool:
    """Whether the MIG manager is changing the node: its labels and allocatable are about to change."""
    return labels.get(PREFIX + "mig.config.state") in _BUSY


def cuda(labels: Mapping[str, str]) -> int:
    """The CUDA version that the driver supports: 12.4 is 12004; 0 where it is not said.

    vgpu-manager labels it, too (coldzerofear/vgpu-manager at 3d7f66d, pkg/util/consts.go).
    """
    for major, minor in _CUDA:
        if major in labels:
            version = number(labels, major), number(labels, minor)
            return version[0] * 1000 + version[1] if max(version) < 1000 else 0
    return 0


def most_replicas(labels: Mapping[str, str], device: str) -> int:
    """How many replicas of a shared device one container may have at once, 0 for any number.

    ``failRequestsGreaterThanOne`` of the device plugin's configuration is in no label: under MPS it is on
    unless switched off (api/config/v1/config.go), GKE's plugin always has it, for time-slicing it is off
    unless switched on. The label ``stowage.dev/replicas-per-container`` (a number, or "any") says otherwise.
    """
    said = labels.get("stowage.dev/replicas-per-container")
    if said is not None:
        return min(number(labels, "stowage.dev/replicas-per-container"), DEVICES_PER_NODE)
    mps = labels.get(f"{PREFIX}{device}.sharing-strategy") == "mps"
    return int(mps or "cloud.google.com/gke-gpu-sharing-strategy" in labels)


def shared(labels: Mapping[str, str]) -> bool:
    """Whether labels say that the device behind ``nvidia.com/gpu`` is a replica, however many there are."""
    product = card(labels).product
    return (
        (product is not None and product.shared)
        or labels.get(PREFIX + "gpu.sharing-strategy") in ("time-slicing", "mps")
        or "cloud.google.com/gke-gpu-sharing-strategy" in labels
    )


def number(labels: Mapping[str, str], key: str) -> int:
    """A label as a whole number, 0 where absent or not one."""
    return whole_number(labels.get(key, ""))


def whole_number(text: str) -> int:
    """A whole number of at most 15 digits, 0 for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else 0


def _size(labels: Mapping[str, str], device: str) -> tuple[int, int]:
    memory = number(labels, f"{PREFIX}{device}.memory")
    if memory > _BYTES_GUARD:
        memory >>= 20
    replicas = min(number(labels, f"{PREFIX}{device}.replicas"), DEVICES_PER_NODE)
    return memory if memory <= GPU_MIB else 0, replicas
