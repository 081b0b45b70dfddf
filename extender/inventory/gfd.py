"""Labels of NVIDIA's GPU feature discovery (GFD): what the GPUs of a node are.

Every label is optional and none is trusted to count free devices: ``gpu.count`` stays 8 when some GPUs are
in MIG mode, ``gpu.replicas`` is per GPU. Source: NVIDIA/k8s-device-plugin, internal/lm and the GFD README.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packing.catalogue import Product, parse_product

PREFIX = "nvidia.com/"
_BYTES_GUARD = 10_000_000
"""A memory label above this is in bytes (GFD 0.6), not MiB."""
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


def number(labels: Mapping[str, str], key: str) -> int:
    """A label as a whole number, 0 where absent or not one."""
    text = labels.get(key, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else 0


def _size(labels: Mapping[str, str], device: str) -> tuple[int, int]:
    memory = number(labels, f"{PREFIX}{device}.memory")
    if memory > _BYTES_GUARD:
        memory >>= 20
    return memory, number(labels, f"{PREFIX}{device}.replicas")
