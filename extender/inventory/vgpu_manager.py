"""GPUs as vgpu-manager registers them: the node annotation ``nvidia.com/node-device-register``.

Facts (coldzerofear/vgpu-manager at 3d7f66d): a JSON list of id (index), type, uuid, core (per cent), memory
(MiB), number (shares), numa, mig, healthy (``pkg/device/types.go``); ``node-config-info`` has the factor that
the memory of requests is multiplied by. GPUs with ``mig`` are the native plugin's and take no shares.
"""

from __future__ import annotations

from pydantic_core import from_json

from extender.inventory.division import Division, InventoryError, count, product_label, table, unique
from extender.objects import Node
from extender.quantity import whole
from packing.fleet import Gpu

RESOURCE = "nvidia.com/vgpu-number"
REGISTER, CONFIG = "nvidia.com/node-device-register", "nvidia.com/node-config-info"


def divided(node: Node) -> Division | None:
    """The node's GPUs if vgpu-manager divides them. Raises InventoryError."""
    text = node.annotations.get(REGISTER)
    if not text or not whole(node.allocatable.get(RESOURCE, "0")):
        return None
    try:
        entries = table(from_json(text), REGISTER)
        config = from_json(node.annotations.get(CONFIG) or "{}")
    except ValueError as error:
        raise InventoryError(f"{REGISTER} or {CONFIG} cannot be read: {error}") from error
    factor = config.get("memoryFactor", 1) if isinstance(config, dict) else 1
    if factor not in (0, 1):
        raise InventoryError(f"{CONFIG}: a memory factor of {factor} is not supported")
    entries.sort(key=lambda entry: count(entry.get("id"), REGISTER))
    gpus = [
        Gpu(
            count(entry.get("memory"), REGISTER),
            entry.get("healthy") is True and entry.get("mig") is not True,
            count(entry.get("core"), REGISTER) * 10,
            count(entry.get("number"), REGISTER),
            str(entry.get("uuid", "")),
        )
        for entry in entries
    ]
    return Division(
        RESOURCE,
        REGISTER,
        unique(gpus, REGISTER),
        frozenset(product_label(str(entry.get("type", ""))) for entry in entries),
    )
