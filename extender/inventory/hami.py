"""GPUs as HAMi's device plugin registers them: the node annotation ``hami.io/node-nvidia-register``.

Facts (Project-HAMi/HAMi at 4707fb02): a JSON list of id, index, count, devmem (MiB), devcore (per cent),
type, numa, mode, health; Go leaves zero values out, so a GPU without ``health`` is sick
(``pkg/device/devices.go``: DeviceInfo). Before, ``id,count,devmem,devcore,type,numa,health[,index,mode]:``
(``docs/develop/protocol.md``). ``hami.io/device-cordon`` lists UUIDs that take nothing new,
``hami.io/node-handshake`` begins with ``Deleted`` once the plugin is gone. The plugin advertises
``nvidia.com/gpu`` as GPUs x count: where there is no more of it than GPUs, the annotation is a leftover and
the node is a plain one.

All GPUs of a node are in one mode. In MIG mode each lists ``migProfiles``: name, memoryMB, core (per cent),
sliceCount, and placements with start and size in memory slices (``pkg/device/devices.go``: MigProfile). HAMi
makes instances on demand, the smallest by memory, 1g and 3g from the high end (selectMigCandidate in
``pkg/device/nvidia/device.go``, ``mig_topology.go``). GPUs in MPS mode, in MIG mode of older versions (whose
layouts are in HAMi's own configuration), and in MIG mode beside others, are listed and take nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from pydantic_core import from_json

from extender.inventory.division import Division, InventoryError, count, product_label, table, unique
from extender.objects import Node
from extender.quantity import whole
from packing.fleet import Gpu
from packing.instances import Instance, Instances, window
from packing.request import WHOLE

RESOURCE = "nvidia.com/gpu"
REGISTER, HANDSHAKE, CORDON = (
    "hami.io/node-nvidia-register",
    "hami.io/node-handshake",
    "hami.io/device-cordon",
)
CORE, MIG = "hami-core", "mig"
MOST_SLICES = 32
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
    mode = MIG if all(entry.get("mode") == MIG for entry in entries) else CORE
    gpus = unique([_gpu(entry, mode, cordoned) for entry in entries], REGISTER)
    products = frozenset(product_label(str(entry.get("type", ""))) for entry in entries)
    return Division(RESOURCE, REGISTER, gpus, products, RESOURCE, replaces=frozenset({RESOURCE}), mode=mode)


def _gpu(entry: Mapping[str, object], mode: str, cordoned: set[str]) -> Gpu:
    uuid = str(entry.get("id", ""))
    instances = _instances(entry.get("migProfiles") or []) if mode == MIG else ()
    fit = bool(instances) if mode == MIG else entry.get("mode", CORE) in (CORE, "")
    return Gpu(
        instances[-1].memory_mib if instances else count(entry.get("devmem", 0), REGISTER),
        fit and entry.get("health") in (True, "true") and uuid not in cordoned,
        instances[-1].compute_milli if instances else count(entry.get("devcore", 0), REGISTER) * 10,
        count(entry.get("count", 0), REGISTER),
        uuid,
        instances,
    )


def _instances(profiles: object) -> Instances:
    """The instances of a GPU, in the order in which HAMi looks for one that is large enough."""
    found = [(count(one.get("sliceCount", 0), REGISTER), _instance(one)) for one in table(profiles, REGISTER)]
    found.sort(key=lambda one: (one[1].memory_mib, one[0]))
    return _shared(tuple(instance for _, instance in found if instance.windows))


@lru_cache(maxsize=64)
def _shared(instances: Instances) -> Instances:
    return instances  # the GPUs of a cluster are of few kinds: the first of equal ones stands for all


def _instance(profile: Mapping[str, object]) -> Instance:
    name = str(profile.get("name", ""))
    places = [
        (count(one.get("start", 0), REGISTER), count(one.get("size", 0), REGISTER))
        for one in table(profile.get("placements") or [], REGISTER)
    ]
    if not all(size and start + size <= MOST_SLICES for start, size in places):
        raise InventoryError(f"{REGISTER}: the placements of MIG profile {name[:63]!r} cannot be true")
    compute = count(profile.get("core", 0), REGISTER) * 10
    if compute > WHOLE:
        raise InventoryError(f"{REGISTER}: MIG profile {name[:63]!r} has more than a GPU")
    places.sort(reverse=name.startswith(("1g.", "3g.")))
    windows = tuple(window(start, size) for start, size in places)
    return Instance(name, compute, count(profile.get("memoryMB", 0), REGISTER), windows)


def _entries(text: str) -> list[Mapping[str, object]]:
    if not text.lstrip().startswith("["):
        parts = [part.split(",") for part in text.split(":") if part.strip()]
        if not all(len(part) in (7, 9) for part in parts):
            raise InventoryError(f"{REGISTER} cannot be read")
        return [dict(zip(_FIELDS, part, strict=False)) for part in parts]
    try:
        return table(from_json(text), REGISTER)
    except ValueError as error:
        raise InventoryError(f"{REGISTER} cannot be read: {error}") from error
