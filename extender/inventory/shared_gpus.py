"""A node's GPUs as a sharing system divides them: what each of its sources says.

A sharing system's device plugin hands out parts of GPUs and publishes the GPUs themselves, in an annotation
or in ``allocatable``. Which GPU a pod has is then a matter of annotations, and the counts in
``allocatable`` are of stand-ins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from extender.k8s.objects import Node
from extender.k8s.quantity import whole
from extender.untrusted.limits import DEVICES_PER_NODE, GPUS_PER_NODE, NAME, quoted, shorten
from packing.model.node_spec import Gpu
from packing.model.reasons import Reason

MIG_PREFIX = "nvidia.com/mig-"
NVIDIA = ("nvidia.com/gpu", "nvidia.com/gpu.shared")


class InventoryError(ValueError):
    """A node advertises something that cannot be true. The text is cut to ``limits.PROBLEM`` characters."""

    def __init__(self, text: str) -> None:
        super().__init__(shorten(text))


@dataclass(frozen=True, slots=True)
class SharedGpus:
    """``gpus`` by index, divided as ``resource``, read from ``source`` (an annotation, label or resource);
    ``products`` are the names that they go by.

    ``whole`` names the counted device that stands for a whole one of them ("" for none), ``open`` whether
    pods may ask for it. ``replaces`` are the resources of ``allocatable`` that are not to be counted apart.
    ``mode`` is the way in which the parts are kept apart, "" where there is but one. ``closed`` says why the
    GPUs keep what they hold and take nothing new (``reason`` is its kind), "" where they are open; ``sick``
    whether the source says itself which of the GPUs are unhealthy, and some are.
    """

    resource: str
    source: str
    gpus: tuple[Gpu, ...]
    products: frozenset[str] = frozenset()
    whole: str = ""
    open: bool = True
    replaces: frozenset[str] = frozenset()
    mode: str = ""
    closed: str = ""
    reason: Reason = Reason.UNREADABLE
    sick: bool = False


def is_nvidia(resource: str) -> bool:
    """Whether this is a resource that NVIDIA's own device plugin advertises."""
    return resource in NVIDIA or resource.startswith(MIG_PREFIX)


def advertises_nvidia(node: Node) -> bool:
    """Whether the node has devices of NVIDIA's own device plugin to give. Raises QuantityError."""
    return any(is_nvidia(name) and whole(text) > 0 for name, text in node.allocatable.items())


def left_over(resource: str, register: str) -> str:
    """Why GPUs of a register take nothing new whose own resource is no longer advertised."""
    return (
        f"{register} lists GPUs that are advertised, but not as {resource}: "
        "remove the annotation if its device plugin no longer runs here"
    )


def product_label(name: str) -> str:
    """A device name as GPU feature discovery would write it. HAMi and Volcano prefix ``NVIDIA-`` once more
    where the driver's own name does not begin with it (``NVIDIA-Tesla T4`` is ``Tesla-T4``)."""
    label = "-".join(name.split())
    bare = label.removeprefix("NVIDIA-")
    return bare if bare.startswith(("Tesla-", "NVIDIA-", "GRID-", "Quadro-")) else label


def count(value: object, of: str, most: int = DEVICES_PER_NODE) -> int:
    """A count or an amount of an annotation, at most ``most``. Raises InventoryError."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most:
        return value
    shown = quoted(value) if isinstance(value, str) else f"a {type(value).__name__}"
    raise InventoryError(f"{of}: {shown} is not an amount from 0 to {most}")


def name(value: object, of: str) -> str:
    """A name in an annotation: of a device, a model, a profile. Raises InventoryError."""
    if not isinstance(value, str) or len(value) > NAME:
        raise InventoryError(f"{of}: a name is not a text of at most {NAME} characters")
    return value


def table(value: object, of: str, most: int = GPUS_PER_NODE) -> list[Mapping[str, object]]:
    """A list of at most ``most`` objects in an annotation's JSON. Raises InventoryError."""
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise InventoryError(f"{of} is not a list of devices")
    if len(value) > most:
        raise InventoryError(f"{of} has a list of {len(value)} entries: at most {most} are read")
    return value


def rows(text: str, of: str) -> list[list[str]]:
    """The devices of ``field,field:field,field:``. Raises InventoryError."""
    if text.count(":") > 2 * GPUS_PER_NODE:
        raise InventoryError(f"{of} has more than {GPUS_PER_NODE} GPUs")
    parts = [part.split(",") for part in text.split(":") if part.strip()]
    if len(parts) > GPUS_PER_NODE:
        raise InventoryError(f"{of} has {len(parts)} GPUs: at most {GPUS_PER_NODE} are read")
    return parts


def unique(gpus: list[Gpu], of: str) -> tuple[Gpu, ...]:
    """GPUs whose UUIDs differ and whose memory is known. Raises InventoryError."""
    if len({gpu.uuid for gpu in gpus}) < len(gpus):
        raise InventoryError(f"{of} names a GPU twice")
    if any(gpu.divisible and gpu.memory_mib < 1 for gpu in gpus):
        raise InventoryError(f"{of} names a GPU without memory")
    return tuple(gpus)
