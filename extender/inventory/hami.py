"""GPUs as HAMi's device plugin registers them: the node annotation ``hami.io/node-nvidia-register``.

Facts (Project-HAMi/HAMi at 4707fb02): a JSON list of id, index, count, devmem (MiB), devcore (per cent),
type, numa, mode, health; Go leaves zero values out, so a GPU without ``health`` is sick
(``pkg/device/devices.go``: DeviceInfo). Before, ``id,count,devmem,devcore,type,numa,health[,index,mode]:``
(``docs/develop/protocol.md``). ``hami.io/device-cordon`` lists UUIDs that take nothing new,
``hami.io/node-handshake`` begins with ``Deleted`` once the plugin is gone. The plugin advertises
``nvidia.com/gpu`` as GPUs x count: where there is no more of it than GPUs, the annotation is a leftover and
the node is a plain one. GPUs in MIG and MPS mode are listed and take nothing here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from extender.inventory.division import Division, InventoryError, count, product_label, table, unique
from extender.objects import Node
from extender.quantity import whole
from packing.fleet import Gpu

RESOURCE = "nvidia.com/gpu"
REGISTER, HANDSHAKE, CORDON = (
    "hami.io/node-nvidia-register",
    "hami.io/node-handshake",
    "hami.io/device-cordon",
)
_FIELDS = ("id", "count", "devmem", "devcore", "type", "numa", "health", "index", "mode")


def divided(node: Node) -> Division | None:
    """The node's GPUs if HAMi divides them. Raises InventoryError."""
    text = node.annotations.get(REGISTER)
    if not text or node.annotations.get(HANDSHAKE, "").startswith("Deleted"):
        return None
    entries = sorted(_entries(text), key=lambda entry: count(entry.get("index", 0), REGISTER))
    slots = sum(count(entry.get("count", 0), REGISTER) for entry in entries)
    advertised = whole(node.allocatable.get(RESOURCE, "0"))
    if not advertised or (advertised <= len(entries) < slots):
        return None
    cordoned = {uuid.strip() for uuid in node.annotations.get(CORDON, "").split(",")}
    gpus = unique([_gpu(entry, cordoned) for entry in entries], REGISTER)
    products = frozenset(product_label(str(entry.get("type", ""))) for entry in entries)
    return Division(RESOURCE, REGISTER, gpus, products, whole=RESOURCE, replaces=frozenset({RESOURCE}))


def _gpu(entry: Mapping[str, object], cordoned: set[str]) -> Gpu:
    uuid = str(entry.get("id", ""))
    fit = entry.get("health") in (True, "true") and entry.get("mode", "hami-core") in ("hami-core", "")
    return Gpu(
        count(entry.get("devmem", 0), REGISTER),
        fit and uuid not in cordoned,
        count(entry.get("devcore", 0), REGISTER) * 10,
        count(entry.get("count", 0), REGISTER),
        uuid,
    )


def _entries(text: str) -> list[Mapping[str, object]]:
    if not text.lstrip().startswith("["):
        parts = [part.split(",") for part in text.split(":") if part.strip()]
        if not all(len(part) in (7, 9) for part in parts):
            raise InventoryError(f"{REGISTER} cannot be read")
        return [dict(zip(_FIELDS, part, strict=False)) for part in parts]
    try:
        return table(json.loads(text), REGISTER)
    except ValueError as error:
        raise InventoryError(f"{REGISTER} cannot be read: {error}") from error
