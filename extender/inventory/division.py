"""A node's GPUs as a sharing system divides them: what each of its sources says.

A sharing system's device plugin hands out parts of GPUs and publishes the GPUs themselves, in an annotation
or in ``allocatable``. Which GPU a pod has is then a matter of annotations, and the counts in
``allocatable`` are of stand-ins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packing.fleet import Gpu


class InventoryError(ValueError):
    """A node advertises something that cannot be true."""


@dataclass(frozen=True, slots=True)
class Division:
    """``gpus`` by index, divided as ``resource``, read from ``source`` (an annotation, label or resource);
    ``products`` are the names that they go by.

    ``whole`` names the counted device that stands for a whole one of them ("" for none), ``open`` whether
    pods may ask for it. ``replaces`` are the resources of ``allocatable`` that are not to be counted apart.
    ``mode`` is the way in which the parts are kept apart, "" where there is but one.
    """

    resource: str
    source: str
    gpus: tuple[Gpu, ...]
    products: frozenset[str] = frozenset()
    whole: str = ""
    open: bool = True
    replaces: frozenset[str] = frozenset()
    mode: str = ""


def product_label(name: str) -> str:
    """A device name as GPU feature discovery would write it. HAMi and Volcano prefix ``NVIDIA-`` once more
    where the driver's own name does not begin with it (``NVIDIA-Tesla T4`` is ``Tesla-T4``)."""
    label = "-".join(name.split())
    bare = label.removeprefix("NVIDIA-")
    return bare if bare.startswith(("Tesla-", "NVIDIA-", "GRID-", "Quadro-")) else label


def count(value: object, of: str) -> int:
    """A count or an amount of an annotation. Raises InventoryError."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9:
        return value
    raise InventoryError(f"{of}: {value!r} is not an amount")


def table(value: object, of: str) -> list[Mapping[str, object]]:
    """A list of objects in an annotation's JSON. Raises InventoryError."""
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise InventoryError(f"{of} is not a list of devices")
    return value


def unique(gpus: list[Gpu], of: str) -> tuple[Gpu, ...]:
    """GPUs whose UUIDs differ and whose memory is known. Raises InventoryError."""
    if len({gpu.uuid for gpu in gpus}) < len(gpus):
        raise InventoryError(f"{of} names a GPU twice")
    if any(gpu.divisible and gpu.memory_mib < 1 for gpu in gpus):
        raise InventoryError(f"{of} names a GPU without memory")
    return tuple(gpus)
