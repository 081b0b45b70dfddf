"""GPUs as HAMi's device plugin registers them: the node annotation ``hami.io/node-nvidia-register``.

Facts (Project-HAMi/HAMi at 4707fb02): a JSON list of id, index, count, devmem (MiB), devcore (per cent),
type, numa, mode, health. Go omits zero values, so a GPU without ``health`` is unhealthy
(``pkg/device/devices.go``: DeviceInfo). Older versions write
``id,count,devmem,devcore,type,numa,health[,index,mode]:`` (``docs/develop/protocol.md``).
``hami.io/device-cordon`` lists UUIDs of GPUs that take no new pods. HAMi's scheduler up to 2.9 writes
``Deleted`` to ``hami.io/node-handshake`` when it no longer hears the plugin (MarkAnnotationsToDelete in
``pkg/util/util.go``). Up to 2.8 that stays, also when the plugin runs again; 2.9 replaces it after a minute
(CheckHealth in ``pkg/device/devices.go``, in ``pkg/util/util.go`` before 2.7). The plugin advertises
``nvidia.com/gpu`` as the sum of the counts of its healthy GPUs (``nvinternal/plugin/server.go``:
ListAndWatch; kubelet leaves unhealthy devices out of ``allocatable``).

HAMi's chart can rename its resources (``resourceName`` in ``charts/hami/values.yaml``). A node that
advertises as many of another resource as its healthy GPUs have shares takes no new pods.

A node with a register counts as HAMi's, because otherwise its GPUs might be allocated twice. If HAMi may not
manage the GPUs any more (see ``_leftover_problem``), the pods there keep what they hold, and the node takes
no new pods until the annotation is removed.

All GPUs of a node are in one mode. In MIG mode each lists ``migProfiles``: name, memoryMB, core (per cent),
sliceCount, and placements with start and size in memory slices (``pkg/device/devices.go``: MigProfile). HAMi
creates instances on demand, the smallest by memory, 1g and 3g from the high end (selectMigCandidate in
``pkg/device/nvidia/device.go``, ``mig_topology.go``). These GPUs are listed and take no pods here: GPUs in
MPS mode, in MIG mode of older versions (their layouts are in HAMi's own configuration), and in MIG mode on a
node with other modes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from pydantic_core import from_json

from extender.inventory.shared_gpus import InventoryError, Parser, SharedGpus, advertises_nvidia
from extender.k8s.objects import Node
from extender.k8s.quantity import whole
from extender.untrusted.limits import GPU_MIB, MIG_PROFILES, MIG_SLICES, quoted
from packing.model.mig_instances import Instance, Instances, window
from packing.model.node_spec import Gpu
from packing.model.request import WHOLE

RESOURCE = "nvidia.com/gpu"
REGISTER = "hami.io/node-nvidia-register"
_PARSER = Parser(REGISTER)
HANDSHAKE, CORDON = "hami.io/node-handshake", "hami.io/device-cordon"
CORE, MIG = "hami-core", "mig"
_FIELDS = ("id", "count", "devmem", "devcore", "type", "numa", "health", "index", "mode")


def shared_gpus(node: Node) -> SharedGpus | None:
    """The node's GPUs if HAMi shares them. Raises InventoryError."""
    text = node.annotations.get(REGISTER)
    renamed = "" if advertises_nvidia(node) else _renamed(node, text or "")
    if not text or not (renamed or advertises_nvidia(node)):  # no device plugin runs
        return None
    entries = sorted(_entries(text), key=lambda entry: _PARSER.number(entry.get("index", 0)))
    cordoned = {uuid.strip() for uuid in node.annotations.get(CORDON, "").split(",")}
    mode = MIG if all(entry.get("mode") == MIG for entry in entries) else CORE
    gpus = _PARSER.checked(_gpu(entry, mode, cordoned) for entry in entries)
    return SharedGpus(
        RESOURCE,
        REGISTER,
        _PARSER.with_products(gpus, (entry.get("type", "") for entry in entries)),
        _PARSER.products(entry.get("type", "") for entry in entries),
        whole_gpu=RESOURCE,
        replaced=frozenset({RESOURCE}),
        mode=mode,
        problem=_renamed_problem(renamed) if renamed else _leftover_problem(node, entries),
        lists_unhealthy_gpus=not all(map(_healthy, entries)),
    )


def _renamed(node: Node, register: str) -> str:
    """The resource by which HAMi seems to count its shares here instead of ``RESOURCE``, "" for none."""
    shares = sum(map(_shares, filter(_healthy, _entries(register)))) if register else 0
    others = (name for name in sorted(node.allocatable) if "/" in name and not name.startswith("hugepages"))
    return next((name for name in others if shares and whole(node.allocatable[name]) == shares), "")


def _renamed_problem(resource: str) -> str:
    return f"HAMi counts its shares as {quoted(resource)} here, and Stowage reads only {RESOURCE}"


def is_renamed(problem: str, resource: str) -> bool:
    """Whether a node's problem is that HAMi counts its shares there as this resource."""
    return _renamed_problem(resource) in problem


def _leftover_problem(node: Node, entries: list[Mapping[str, object]]) -> str:
    """The problem if HAMi may not manage the GPUs any more, "" if it certainly does.

    HAMi advertises more devices than there are GPUs, or as many as its healthy GPUs have shares. Fewer may
    come from NVIDIA's plugin, and then the annotation is a leftover.
    """
    remedy = f"remove annotation {REGISTER} if HAMi no longer runs here"
    if node.annotations.get(HANDSHAKE, "").startswith("Deleted"):
        return (
            f"annotation {HANDSHAKE} is Deleted, which HAMi up to 2.8 never undoes: "
            f"remove it if HAMi runs here; {remedy}"
        )
    advertised = whole(node.allocatable.get(RESOURCE, "0"))
    shares = sum(_shares(entry) for entry in entries)
    healthy = sum(_shares(entry) for entry in entries if _healthy(entry))
    if advertised > len(entries) or advertised == healthy or (advertised and shares <= len(entries)):
        return ""
    return f"{advertised} {RESOURCE} are advertised, and HAMi's healthy GPUs have {healthy}: {remedy}"


def _shares(entry: Mapping[str, object]) -> int:
    return _PARSER.number(entry.get("count", 0))


def _healthy(entry: Mapping[str, object]) -> bool:
    return entry.get("health") in (True, "true")


def _gpu(entry: Mapping[str, object], mode: str, cordoned: set[str]) -> Gpu:
    uuid = _PARSER.text(entry.get("id", ""))
    instances = _instances(entry.get("migProfiles") or []) if mode == MIG else ()
    divisible = bool(instances) if mode == MIG else entry.get("mode", CORE) in (CORE, "")
    return Gpu(
        instances[-1].memory_mib if instances else _PARSER.number(entry.get("devmem", 0), GPU_MIB),
        divisible and _healthy(entry) and uuid not in cordoned,
        instances[-1].compute_milli if instances else _PARSER.number(entry.get("devcore", 0)) * 10,
        _shares(entry),
        uuid,
        instances,
    )


def _instances(profiles: object) -> Instances:
    """The instances of a GPU, in the order in which HAMi tries them."""
    listed = _PARSER.objects(profiles, MIG_PROFILES)
    by_slices = [(_PARSER.number(one.get("sliceCount", 0)), _instance(one)) for one in listed]
    by_slices.sort(key=lambda one: (one[1].memory_mib, one[0]))
    return _interned(tuple(instance for _, instance in by_slices if instance.windows))


@lru_cache(maxsize=64)
def _interned(instances: Instances) -> Instances:
    return instances  # one object for equal GPUs: a cluster has few kinds


def _instance(profile: Mapping[str, object]) -> Instance:
    profile_name = _PARSER.text(profile.get("name", ""))
    listed = _PARSER.objects(profile.get("placements") or [], MIG_SLICES)
    placements = [_placement(one, profile_name) for one in listed]
    compute = _PARSER.number(profile.get("core", 0)) * 10
    if compute > WHOLE:
        raise InventoryError(f"{REGISTER}: MIG profile {quoted(profile_name)} has more compute than a GPU")
    placements.sort(reverse=profile_name.startswith(("1g.", "3g.")))
    windows = tuple(window(start, size) for start, size in placements)
    memory_mib = _PARSER.number(profile.get("memoryMB", 0), GPU_MIB)
    return Instance(profile_name, compute, memory_mib, windows)


def _placement(placement: Mapping[str, object], profile: str) -> tuple[int, int]:
    start, size = placement.get("start", 0), placement.get("size", 0)
    if type(start) is int and type(size) is int and start >= 0 < size and start + size <= MIG_SLICES:
        return start, size
    raise InventoryError(f"{REGISTER}: the placements of MIG profile {quoted(profile)} are impossible")


def _entries(text: str) -> list[Mapping[str, object]]:
    if not text.lstrip().startswith("["):
        rows = _PARSER.rows(text)
        if not all(len(row) in (7, 9) for row in rows):
            raise InventoryError(f"{REGISTER} cannot be read")
        return [dict(zip(_FIELDS, row, strict=False)) for row in rows]
    try:
        return _PARSER.objects(from_json(text))
    except ValueError as error:
        raise InventoryError(f"{REGISTER} cannot be read: {error}") from error
