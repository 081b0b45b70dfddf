"""The GPUs of a node that a sharing system divides among pods, and a parser of the data that it publishes.

The device plugin of a sharing system publishes the GPUs themselves (in an annotation, called its register
here, or in ``allocatable``), and annotations of pods list their GPUs. The devices that it counts in
``allocatable`` are not GPUs, so they are not counted as such.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from extender.k8s.objects import Node
from extender.k8s.quantity import whole
from extender.untrusted.limits import DEVICES_PER_NODE, GPUS_PER_NODE, NAME, quoted, shorten
from packing.model.node_spec import Gpu
from packing.model.reasons import Reason

MIG_PREFIX = "nvidia.com/mig-"
NVIDIA = ("nvidia.com/gpu", "nvidia.com/gpu.shared")
AMD_GPU = "amd.com/gpu"
INTEL = ("gpu.intel.com/i915", "gpu.intel.com/xe")
_OTHER_VENDORS = frozenset({AMD_GPU, *INTEL})
VENDORS = frozenset(name.partition("/")[0] for name in (*NVIDIA, *_OTHER_VENDORS))
"""The domains of their resources and labels."""
_AMD_PARTITION = re.compile(r"amd\.com/([sdtqc]px)_nps\d")


class InventoryError(ValueError):
    """A node advertises something impossible. The text is truncated to ``limits.PROBLEM`` characters."""

    def __init__(self, text: str) -> None:
        super().__init__(shorten(text))


@dataclass(frozen=True, slots=True)
class SharedGpus:
    """``gpus`` by index. Pods request fractions of them as ``resource``.

    They were read from ``source`` (an annotation, label or resource) and have these ``products``.
    ``whole_gpu`` is the resource that counts whole GPUs among them, "" if there is none, and
    ``whole_gpu_allowed`` whether pods may request it. ``replaced`` resources of ``allocatable`` are not
    counted in addition. ``mode`` is how the system isolates the fractions, "" if it has only one mode.
    ``problem`` is the reason the GPUs accept no new pods, "" if they do, and ``reason`` its kind.
    ``unhealthy``: the number of GPUs that the source lists as unhealthy. ``counted_as``: the resource of the
    fractions if it is not ``resource``.
    """

    resource: str
    source: str
    gpus: tuple[Gpu, ...]
    products: frozenset[str] = frozenset()
    whole_gpu: str = ""
    whole_gpu_allowed: bool = True
    replaced: frozenset[str] = frozenset()
    mode: str = ""
    problem: str = ""
    reason: Reason = Reason.UNREADABLE
    unhealthy: int = 0
    counted_as: str = ""


class ListedGpu(NamedTuple):
    """An entry of a register: the GPU, the name of its model, and whether it is healthy."""

    gpu: Gpu
    model: object
    healthy: bool


def is_nvidia(resource: str) -> bool:
    """Whether NVIDIA's own device plugin advertises this resource."""
    return resource in NVIDIA or resource.startswith(MIG_PREFIX)


def is_gpu_resource(resource: str) -> bool:
    """Whether devices of this extended resource are GPUs that Stowage packs."""
    return is_nvidia(resource) or resource in _OTHER_VENDORS or bool(amd_mode(resource))


def amd_mode(resource: str) -> str:
    """The mode of compute partitions in the resource names of AMD's device plugin for GPUs of several modes
    (its ``resource_naming_strategy=mixed``): ``cpx`` of ``amd.com/cpx_nps4``; "" for any other name."""
    match = _AMD_PARTITION.fullmatch(resource)
    return match[1] if match else ""


def advertises_nvidia(node: Node) -> bool:
    """Whether NVIDIA's own device plugin advertises devices on the node. Raises QuantityError."""
    return any(is_nvidia(name) and whole(text) > 0 for name, text in node.allocatable.items())


@dataclass(frozen=True, slots=True)
class Parser:
    """Parses the data that a sharing system publishes under this name. Each method raises InventoryError."""

    name: str

    def number(self, value: object, most: int = DEVICES_PER_NODE) -> int:
        """A whole number from 0 to ``most``, or its decimal digits."""
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most:
            return value
        shown = quoted(value) if isinstance(value, str) else f"a {type(value).__name__}"
        raise InventoryError(f"{self.name}: {shown} is not a whole number from 0 to {most}")

    def text(self, value: object) -> str:
        """The name of a device, model or profile."""
        if not isinstance(value, str) or len(value) > NAME:
            raise InventoryError(f"{self.name}: a name is not a string of at most {NAME} characters")
        return value

    def products(self, names: Iterable[object]) -> frozenset[str]:
        return frozenset(_product_label(self.text(name)) for name in names)

    def shared(self, resource: str, listed: Iterable[ListedGpu]) -> SharedGpus:
        """The GPUs that a register lists, by index. Each has its product if there are several products; "-"
        if unknown."""
        listed = tuple(listed)
        gpus = tuple(gpu for gpu, *_ in listed)
        if len({gpu.uuid for gpu in gpus}) < len(gpus):
            raise InventoryError(f"{self.name} names a GPU twice")
        if any(gpu.divisible and gpu.memory_mib < 1 for gpu in gpus):
            raise InventoryError(f"{self.name} names a GPU without memory")
        products = [_product_label(self.text(model)) for _, model, _ in listed]
        if len(set(products)) > 1:
            gpus = tuple(replace(gpu, product=name or "-") for gpu, name in zip(gpus, products, strict=True))
        unhealthy = sum(not healthy for *_, healthy in listed)
        return SharedGpus(resource, self.name, gpus, frozenset(products), unhealthy=unhealthy)

    def objects(self, value: object, most: int = GPUS_PER_NODE) -> list[Mapping[str, object]]:
        """A list of at most ``most`` JSON objects."""
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
            raise InventoryError(f"{self.name} is not a list of devices")
        if len(value) > most:
            raise InventoryError(f"{self.name} has a list of {len(value)} entries: at most {most} are read")
        return value

    def rows(self, text: str) -> list[list[str]]:
        """The fields of each GPU in ``field,field:field,field:``."""
        if text.count(":") > 2 * GPUS_PER_NODE:
            raise InventoryError(f"{self.name} has more than {GPUS_PER_NODE} GPUs")
        rows = [gpu.split(",") for gpu in text.split(":") if gpu.strip()]
        if len(rows) > GPUS_PER_NODE:
            raise InventoryError(f"{self.name} has {len(rows)} GPUs: at most {GPUS_PER_NODE} are read")
        return rows

    def unless_gone(self, shared: SharedGpus, node: Node) -> SharedGpus | None:
        """The same, None if no device plugin advertises the GPUs; with a problem if only NVIDIA's does."""
        if whole(node.allocatable.get(shared.resource, "0")) or shared.unhealthy == len(shared.gpus):
            return shared
        problem = (
            f"{self.name} lists GPUs that are advertised, but not as {shared.resource}: "
            "remove the annotation if its device plugin no longer runs here"
        )
        return replace(shared, problem=problem) if advertises_nvidia(node) else None


def _product_label(name: str) -> str:
    """A device name as GPU feature discovery would write it.

    HAMi and Volcano add the prefix ``NVIDIA-`` if the driver's name does not have it (``NVIDIA-Tesla T4`` is
    ``Tesla-T4``).
    """
    label = "-".join(name.split())
    bare = label.removeprefix("NVIDIA-")
    return bare if bare.startswith(("Tesla-", "NVIDIA-", "GRID-", "Quadro-")) else label
