"""GPUs as HAMi's device plugin registers them: the node annotation ``hami.io/node-nvidia-register``.

Facts (Project-HAMi/HAMi at 4707fb02): a JSON list of id, index, count, devmem (MiB), devcore (per cent),
type, numa, mode, health; Go leaves zero values out, so a GPU without ``health`` is sick
(``pkg/device/devices.go``: DeviceInfo). Before, ``id,count,devmem,devcore,type,numa,health[,index,mode]:``
(``docs/develop/protocol.md``). ``hami.io/device-cordon`` lists UUIDs that take nothing new,
``hami.io/node-handshake`` begins with ``Deleted`` once HAMi's scheduler has found the plugin gone (HAMi up
to 2.5). The plugin advertises ``nvidia.com/gpu`` as the sum of the counts of its healthy GPUs
(``nvinternal/plugin/server.go``: ListAndWatch; kubelet leaves unhealthy devices out of ``allocatable``).

A node with a register is HAMi's, whatever else it says: taken for a plain one by mistake, its GPUs would be
given away twice. Where it is not certain that HAMi hands out the GPUs (see ``_closed``), the pods there keep
what they hold, and the node takes nothing new until the annotation is removed.

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

from extender.inventory.shared_gpus import (
    InventoryError,
    SharedGpus,
    advertises_nvidia,
    count,
    name,
    product_label,
    rows,
    table,
    unique,
)
from extender.k8s.objects import Node
from extender.k8s.quantity import whole
from extender.untrusted.limits import GPU_MIB, MIG_PROFILES, MIG_SLICES, quoted
from packing.model.mig_instances import Instance, Instances, window
from packing.model.node_spec import Gpu
from packing.model.request import WHOLE

RESOURCE = "nvidia.com/gpu"
REGISTER, HANDSHAKE, CORDON = (
    "hami.io/node-nvidia-register",
    "hami.io/node-handshake",
    "hami.io/device-cordon",
)
CORE, MIG = "hami-core", "mig"
MOST_SLICES = MIG_SLICES
_FIELDS = ("id", "count", "devmem", "devcore", "type", "numa", "health", "index", "mode")


def divided(node: Node) -> SharedGpus | None:
    """The node's GPUs if HAMi divides them. Raises InventoryError."""
    text = node.annotations.get(REGISTER)
    if not text or not advertises_nvidia(node):  # nobody hands out these GPUs now
        return None
    entries = sorted(_entries(text), key=lambda entry: count(entry.get("index", 0), REGISTER))
    cordoned = {uuid.strip() for uuid in node.annotations.get(CORDON, "").split(",")}
    mode = MIG if all(entry.get("mode") == MIG for entry in entries) else CORE
    gpus = unique([_gpu(entry, mode, cordoned) for entry in entries], REGISTER)
    return SharedGpus(
        RESOURCE,
        REGISTER,
        gpus,
        frozenset(product_label(name(entry.get("type", ""), REGISTER)) for entry in entries),
        RESOURCE,
        replaces=frozenset({RESOURCE}),
        mode=mode,
        closed=_closed(node, entries),
        sick=not all(map(_healthy, entries)),
    )


def _closed(node: Node, entries: list[Mapping[str, object]]) -> str:
    """Why the GPUs take nothing new, "" where HAMi certainly hands them out.

    More devices than GPUs are HAMi's, and so are as many as its healthy GPUs have. Fewer may be NVIDIA's
    plugin beside an annotation that was left over.
    """
    way_out = f"remove annotation {REGISTER} if HAMi no longer runs here"
    if node.annotations.get(HANDSHAKE, "").startswith("Deleted"):
        return f"{HANDSHAKE} is Deleted, so HAMi would not read an assignment: {way_out}"
    advertised = whole(node.allocatable.get(RESOURCE, "0"))
    slots = sum(_slots(entry) for entry in entries)
    healthy = sum(_slots(entry) for entry in entries if _healthy(entry))
    if advertised > len(entries) or advertised == healthy or (advertised and slots <= len(entries)):
        return ""
    return f"{advertised} {RESOURCE} are advertised, and HAMi's healthy GPUs have {healthy}: {way_out}"


def _slots(entry: Mapping[str, object]) -> int:
    return count(entry.get("count", 0), REGISTER)


def _healthy(entry: Mapping[str, object]) -> bool:
    return entry.get("health") in (True, "true")


def _gpu(entry: Mapping[str, object], mode: str, cordoned: set[str]) -> Gpu:
    uuid = name(entry.get("id", ""), REGISTER)
    instances = _instances(entry.get("migProfiles") or []) if mode == MIG else ()
    fit = bool(instances) if mode == MIG else entry.get("mode", CORE) in (CORE, "")
    return Gpu(
        instances[-1].memory_mib if instances else count(entry.get("devmem", 0), REGISTER, GPU_MIB),
        fit and _healthy(entry) and uuid not in cordoned,
        instances[-1].compute_milli if instances else count(entry.get("devcore", 0), REGISTER) * 10,
        _slots(entry),
        uuid,
        instances,
    )


def _instances(profiles: object) -> Instances:
    """The instances of a GPU, in the order in which HAMi looks for one that is large enough."""
    listed = table(profiles, REGISTER, MIG_PROFILES)
    found = [(count(one.get("sliceCount", 0), REGISTER), _instance(one)) for one in listed]
    found.sort(key=lambda one: (one[1].memory_mib, one[0]))
    return _shared(tuple(instance for _, instance in found if instance.windows))


@lru_cache(maxsize=64)
def _shared(instances: Instances) -> Instances:
    return instances  # the GPUs of a cluster are of few kinds: the first of equal ones stands for all


def _instance(profile: Mapping[str, object]) -> Instance:
    title = name(profile.get("name", ""), REGISTER)
    places = [_place(one, title) for one in table(profile.get("placements") or [], REGISTER, MOST_SLICES)]
    compute = count(profile.get("core", 0), REGISTER) * 10
    if compute > WHOLE:
        raise InventoryError(f"{REGISTER}: MIG profile {quoted(title)} has more than a GPU")
    places.sort(reverse=title.startswith(("1g.", "3g.")))
    windows = tuple(window(start, size) for start, size in places)
    return Instance(title, compute, count(profile.get("memoryMB", 0), REGISTER, GPU_MIB), windows)


def _place(placement: Mapping[str, object], profile: str) -> tuple[int, int]:
    start, size = placement.get("start", 0), placement.get("size", 0)
    if type(start) is int and type(size) is int and start >= 0 < size and start + size <= MOST_SLICES:
        return start, size
    raise InventoryError(f"{REGISTER}: the placements of MIG profile {quoted(profile)} cannot be true")


def _entries(text: str) -> list[Mapping[str, object]]:
    if not text.lstrip().startswith("["):
        parts = rows(text, REGISTER)
        if not all(len(part) in (7, 9) for part in parts):
            raise InventoryError(f"{REGISTER} cannot be read")
        return [dict(zip(_FIELDS, part, strict=False)) for part in parts]
    try:
        return table(from_json(text), REGISTER)
    except ValueError as error:
        raise InventoryError(f"{REGISTER} cannot be read: {error}") from error
