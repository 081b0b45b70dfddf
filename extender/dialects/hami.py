"""HAMi: ``nvidia.com/gpu`` with ``gpumem``, ``gpumem-percentage`` and ``gpucores``, or GPUs named by UUID.

Facts (Project-HAMi/HAMi at 4707fb02); manifests are in ``examples/nvidia``:

Requests. Resources and defaults are in ``pkg/device/nvidia/device.go`` (GenerateResourceRequests,
MutateAdmission). Memory is in MiB (``memoryFactor`` 1). A container that requests neither memory nor cores is
allocated an exclusive GPU: the default ``defaultMemory: 0`` is all memory, and the webhook then adds all
cores. ``gpumem`` and ``gpumem-percentage`` are not meant to be used together; Stowage rejects that. A pod
with ``nvidia.com/gpu`` alone does not use this dialect: it requests a counted device, which is a whole GPU on
a HAMi node (``packing/model/node_spec.py``). Stowage does not place pods for HAMi's MPS mode.

``hami.io/gpu-scheduler-policy: mutex`` selects GPUs that no other pod uses (Fit in
``pkg/device/nvidia/device.go``, PolicyContains in ``pkg/util/util.go``). Until such a pod is bound, it counts
with whole GPUs, and then with its allocation, because other pods may join it.

Claims. The annotation has ``UUID,type,MiB,cores:`` for each device and ``;`` after each container, init
containers first (``pkg/device/devices.go``). The device plugin expects an entry for every container. HAMi's
scheduler writes none for containers that request no GPU (allocateAppContainers in
``pkg/scheduler/score.go``), and older versions wrote none for init containers. From 2.4 to 2.5.3 it wrote
``,,0,0:`` for a container without a GPU, and no entry for containers before the first one with a GPU
(calcScore in ``pkg/scheduler/score.go`` at v2.5.3).

MIG mode. A device is a MIG instance. ``hami.io/vgpu-mig-allocations`` has the profile and the placement of
each device of each container, init containers first (``pkg/device/nvidia/mig_allocations.go``). The plugin
creates the instance when the container starts (GetContainerDeviceStrArray in its ``plugin/util.go``) and
keeps it until the pod ends. HAMi compares ``gpucores`` with the GPU, Stowage compares it with the instance.

Binding. ``bind`` writes the annotations that HAMi's scheduler writes in its ``filter`` and ``bind`` (Filter
and Bind in ``pkg/scheduler/scheduler.go``, PatchAnnotations in ``device.go``). kubelet does not tell the
device plugin which pod it starts. The plugin picks the pod that the lock on the Node names; without a lock,
the first listed pod that is Pending, names the node, and is ``allocating`` or ``success`` (GetPendingPod in
``pkg/util/util.go``). Stowage does not take the lock, so it binds a pod only if there is no such pod
(``_plugin_may_confuse``).

Nodes. HAMi's device plugin registers the GPUs in ``hami.io/node-nvidia-register``: a JSON list of id, index,
count, devmem (MiB), devcore (percent), type, numa, mode, health. Go omits zero values, so a GPU without
``health`` is unhealthy (``pkg/device/devices.go``: DeviceInfo). Older versions write
``id,count,devmem,devcore,type,numa,health[,index,mode]:`` (``docs/develop/protocol.md``).
``hami.io/device-cordon`` lists UUIDs of GPUs that accept no new pods. HAMi's scheduler up to 2.9 writes
``Deleted`` to ``hami.io/node-handshake`` when the plugin no longer responds (MarkAnnotationsToDelete in
``pkg/util/util.go``). Up to 2.8 that remains, even when the plugin runs again; 2.9 replaces it after a minute
(CheckHealth in ``pkg/device/devices.go``, in ``pkg/util/util.go`` before 2.7). The plugin advertises
``nvidia.com/gpu`` as the sum of the counts of its healthy GPUs (``nvinternal/plugin/server.go``:
ListAndWatch; kubelet excludes unhealthy devices from ``allocatable``).

HAMi's chart can rename its resources (``resourceName`` in ``charts/hami/values.yaml``). A node that
advertises as many of another resource as its healthy GPUs have shares accepts no new pods.

A node with a register counts as HAMi's, because otherwise its GPUs might be allocated twice. If HAMi possibly
no longer manages the GPUs (see ``_leftover_problem``), the pods there keep their allocations, and the node
accepts no new pods until the annotation is removed.

AMD (``pkg/device/amd/device.go``). From 2.10 on ``hami.io/node-amd-register`` lists AMD GPUs in the same
format, with ``devcore`` in compute units, and ``hami.io/amd-devices-allocated`` what a pod was allocated.
Containers request ``amd.com/gpu`` with ``amd.com/gpumem`` (MiB) and ``gpucores`` (percent); without cores
they have all compute units (GenerateResourceRequests). ``bind`` assigns none: HAMi's repository contains the
scheduler's half of the protocol only (``docs/develop/amd-vgpu.md``), no plugin that reads the annotations.

All GPUs of a node are in one mode. In MIG mode each lists ``migProfiles``: name, memoryMB, core (percent),
sliceCount, and placements with start and size in memory slices (``pkg/device/devices.go``: MigProfile). HAMi
creates instances on demand, the smallest by memory, 1g and 3g from the high end (selectMigCandidate in
``pkg/device/nvidia/device.go``, ``mig_topology.go``). These GPUs are listed and accept no pods here: GPUs in
MPS mode, in MIG mode of older versions (their layouts are in HAMi's own configuration), and in MIG mode on a
node with other modes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import zip_longest
from typing import TypeAlias

from pydantic_core import from_json

from extender.dialects.dialect import Chosen, Claim, Claims, Dialect, GpuLists, check_limits, container_stages
from extender.dialects.per_device import PERCENT, PerDeviceResources, parse_devices, per_container_gpus
from extender.dialects.pod_resources import Amounts, RequestError, parse_quantities
from extender.dialects.shared_gpus import (
    AMD_GPU,
    InventoryError,
    ListedGpu,
    Parser,
    SharedGpus,
    advertises_nvidia,
)
from extender.k8s.objects import Container, Node, Pod, PodSpec
from extender.k8s.quantity import whole
from extender.untrusted.limits import GPU_MIB, MIG_PROFILES, MIG_SLICES, NAME, POD_ANNOTATION, quoted
from packing.model.mig_instances import Instance, Instances, smallest, window
from packing.model.node_spec import Gpu, NodeSpec
from packing.model.request import WHOLE, Shares, share_memory_mib, whole_gpus

RESOURCE = "nvidia.com/gpu"
REGISTER, AMD_REGISTER = "hami.io/node-nvidia-register", "hami.io/node-amd-register"
_PARSER = Parser(REGISTER)
HANDSHAKE, CORDON = "hami.io/node-handshake", "hami.io/device-cordon"
CORE, MIG = "hami-core", "mig"
_FIELDS = ("id", "count", "devmem", "devcore", "type", "numa", "health", "index", "mode")


def shared_gpus(node: Node) -> SharedGpus | None:
    """The node's NVIDIA GPUs if HAMi shares them. Raises InventoryError."""
    return _shared_gpus(node, RESOURCE, _PARSER, advertises_nvidia(node))


def amd_gpus(node: Node) -> SharedGpus | None:
    """The node's AMD GPUs if HAMi shares them. Raises InventoryError."""
    return _shared_gpus(node, AMD_GPU, Parser(AMD_REGISTER), whole(node.allocatable.get(AMD_GPU, "0")) > 0)


def _shared_gpus(node: Node, resource: str, parser: Parser, is_advertised: bool) -> SharedGpus | None:
    text = node.annotations.get(parser.name)
    if not text:
        return None
    entries = sorted(_entries(text, parser), key=lambda entry: parser.number(entry.get("index", 0)))
    renamed = "" if is_advertised else _renamed(node, entries)
    if not (renamed or is_advertised) and any(map(_healthy, entries)):  # no device plugin runs
        return None
    cordoned = {uuid.strip() for uuid in node.annotations.get(CORDON, "").split(",")}
    mode = MIG if all(entry.get("mode") == MIG for entry in entries) else CORE
    listed = (
        ListedGpu(_gpu(entry, parser, mode, cordoned), entry.get("type", ""), _healthy(entry))
        for entry in entries
    )
    problem = f"HAMi counts its shares as {quoted(renamed)} here, but Stowage reads only HAMi's default names"
    return replace(
        parser.shared(resource, listed),
        whole_gpu=resource,
        replaced=frozenset({resource}),
        mode=mode,
        problem=problem if renamed else _leftover_problem(node, entries, resource, parser),
        counted_as=renamed,
    )


def _renamed(node: Node, entries: Iterable[Mapping[str, object]]) -> str:
    """The resource by which HAMi appears to count its shares here instead of its default, "" if there is
    none."""
    shares = sum(map(_shares, filter(_healthy, entries)))
    others = (name for name in sorted(node.allocatable) if "/" in name and not name.startswith("hugepages"))
    return next((name for name in others if shares and whole(node.allocatable[name]) == shares), "")


def _leftover_problem(node: Node, entries: list[Mapping[str, object]], resource: str, parser: Parser) -> str:
    """The problem if HAMi possibly no longer manages the GPUs, "" if it certainly does.

    HAMi advertises more devices than GPUs, or as many as its healthy GPUs have shares. Fewer devices may be
    from the vendor's plugin, and then the annotation is a leftover.
    """
    remedy = f"remove annotation {parser.name} if HAMi no longer runs here"
    if node.annotations.get(HANDSHAKE, "").startswith("Deleted"):
        return (
            f"annotation {HANDSHAKE} is Deleted, which HAMi up to 2.8 never undoes: "
            f"remove it if HAMi runs here; {remedy}"
        )
    advertised = whole(node.allocatable.get(resource, "0"))
    shares = sum(_shares(entry) for entry in entries)
    healthy = sum(_shares(entry) for entry in entries if _healthy(entry))
    if advertised > len(entries) or advertised == healthy or (advertised and shares <= len(entries)):
        return ""
    return f"{advertised} {resource} are advertised, and HAMi's healthy GPUs have {healthy}: {remedy}"


def _shares(entry: Mapping[str, object]) -> int:
    return _PARSER.number(entry.get("count", 0))


def _healthy(entry: Mapping[str, object]) -> bool:
    return entry.get("health") in (True, "true")


def _gpu(entry: Mapping[str, object], parser: Parser, mode: str, cordoned: set[str]) -> Gpu:
    uuid = parser.text(entry.get("id", ""))
    instances = _instances(entry.get("migProfiles") or []) if mode == MIG else ()
    divisible = bool(instances) if mode == MIG else entry.get("mode", CORE) in (CORE, "")
    cores = parser.number(entry.get("devcore", 0))
    compute_milli = cores * PERCENT if parser is _PARSER else WHOLE * (cores > 0)  # AMD: compute units
    return Gpu(
        instances[-1].memory_mib if instances else parser.number(entry.get("devmem", 0), GPU_MIB),
        divisible and _healthy(entry) and uuid not in cordoned,
        instances[-1].compute_milli if instances else compute_milli,
        _shares(entry),
        uuid,
        instances,
    )


def _instances(profiles: object) -> Instances:
    """The MIG instances of a GPU, in the order in which HAMi tries them."""
    listed = _PARSER.objects(profiles, MIG_PROFILES)
    by_slices = [(_PARSER.number(profile.get("sliceCount", 0)), _instance(profile)) for profile in listed]
    by_slices.sort(key=lambda sized: (sized[1].memory_mib, sized[0]))
    return _interned(tuple(instance for _, instance in by_slices if instance.windows))


@lru_cache(maxsize=64)
def _interned(instances: Instances) -> Instances:
    return instances  # one object for equal GPUs: a cluster has few kinds


def _instance(profile: Mapping[str, object]) -> Instance:
    profile_name = _PARSER.text(profile.get("name", ""))
    listed = _PARSER.objects(profile.get("placements") or [], MIG_SLICES)
    placements = [_placement(placement, profile_name) for placement in listed]
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


def _entries(text: str, parser: Parser) -> list[Mapping[str, object]]:
    if not text.lstrip().startswith("["):
        rows = parser.rows(text)
        if not all(len(row) in (7, 9) for row in rows):
            raise InventoryError(f"{parser.name} cannot be read")
        return [dict(zip(_FIELDS, row, strict=False)) for row in rows]
    try:
        return parser.objects(from_json(text))
    except ValueError as error:
        raise InventoryError(f"{parser.name} cannot be read: {error}") from error


_LISTS = GpuLists(
    *("nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"),
    *("nvidia.com/use-gputype", "nvidia.com/nouse-gputype"),
)
_AMD_LISTS = GpuLists(
    *("amd.com/use-gpu-uuid", "amd.com/nouse-gpu-uuid", "amd.com/use-gputype", "amd.com/nouse-gputype")
)
MODE, NUMA, POLICY = "nvidia.com/vgpu-mode", "nvidia.com/numa-bind", "hami.io/gpu-scheduler-policy"
ALLOCATED, NODE, MIG_ALLOCATIONS = (
    "hami.io/vgpu-devices-allocated",
    "hami.io/vgpu-node",
    "hami.io/vgpu-mig-allocations",
)
TO_ALLOCATE, ASSIGNED_AT = "hami.io/vgpu-devices-to-allocate", "hami.io/vgpu-time"
PHASE, BOUND_AT, LOCK = "hami.io/bind-phase", "hami.io/bind-time", "hami.io/mutex.lock"
AMD_ALLOCATED, _AMD_TO_ALLOCATE = "hami.io/amd-devices-allocated", "hami.io/amd-devices-to-allocate"

_RESOURCES = PerDeviceResources(
    RESOURCE, "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"
)
_AMD = PerDeviceResources(AMD_GPU, "amd.com/gpumem", "", "amd.com/gpucores", all_cores=True)
_Staged: TypeAlias = tuple[Container | None, int]
"""A container and its stage."""
_UNKNOWN: _Staged = None, 0
_Placed: TypeAlias = tuple[Instance, int]
"""A MIG instance and the mask of its memory slices."""


def _requested_shares(spec: PodSpec, resources: Amounts, metadata: Mapping[str, str]) -> Shares | None:
    names_amd_gpus, names_gpus = (
        metadata.get(lists.allow_uuids) or metadata.get(lists.deny_uuids) for lists in (_AMD_LISTS, _LISTS)
    )
    if _AMD.uses(spec) or names_amd_gpus:
        shares = _AMD.of_pod(spec)
    elif _RESOURCES.uses(spec) or names_gpus or MODE in metadata:
        shares = _RESOURCES.of_pod(spec)
    else:
        return None
    if shares and not any(mode in metadata.get(MODE, CORE) for mode in (CORE, MIG)):
        raise RequestError(f"{MODE}: {quoted(metadata[MODE])} is not supported, use 'hami-core' or 'mig'")
    if shares and shares.count > 1 and metadata.get(NUMA, "").lower() in ("true", "1", "t"):
        raise RequestError(f"{NUMA} is not supported for several GPUs: Stowage does not choose by NUMA node")
    if shares and "mutex" in map(str.strip, metadata.get(POLICY, "").split(",")):
        return whole_gpus(shares.count, shares.resource)
    return shares


def _claims(pod: Pod, requested: Shares | None) -> Claims | None:
    of = _RESOURCES if ALLOCATED in pod.annotations else _AMD
    name = ALLOCATED if of is _RESOURCES else AMD_ALLOCATED
    text, node = pod.annotations.get(name), pod.annotations.get(NODE, "")
    if text is None:
        return None
    try:
        per_container = parse_devices(text)
    except ValueError as error:
        return Claims(of.count, problem=f"{name} cannot be read: {error}", node=node)
    try:
        reserved = _parse_reservations(pod.annotations.get(MIG_ALLOCATIONS, "[]"))
    except (ValueError, TypeError, KeyError):
        return Claims(of.count, problem=f"{MIG_ALLOCATIONS} cannot be read", node=node)
    if reserved:
        per_container = [
            [replace(c, slices=reserved.pop((i, j, c.device), 0)) for j, c in enumerate(devices)]
            for i, devices in enumerate(per_container)
        ]
    containers = _containers_of_claims(pod.spec, list(map(len, per_container)), of)
    claimed = [(*(c or _UNKNOWN), devices or []) for c, devices in zip_longest(containers, per_container)]
    claimed += [(*_UNKNOWN, [Claim(uuid, slices=mask)]) for (_, _, uuid), mask in reserved.items()]
    for container, _, devices in claimed if of is _AMD else ():  # in compute units: the request counts
        compute = 0 if _count_or_0(container, of) else WHOLE
        devices[:] = [replace(device, compute_milli=compute) for device in devices]
    return of.claims(claimed, node=node, exact=MIG_ALLOCATIONS not in pod.annotations)


def _mode(metadata: Mapping[str, str], shares: Shares | None) -> str:
    if len(text := metadata.get(MODE, "")) > NAME:
        raise RequestError(f"{MODE}: more than {NAME} characters")
    return text


def _containers_of_claims(spec: PodSpec, counts: list[int], of: PerDeviceResources) -> list[_Staged]:
    """The containers, with their stages, for the entries of the annotation; ``counts``: the devices of each
    entry.

    Entries without a device may be missing or shifted, and so may those of init containers. So the first
    reading counts in which the containers that request devices have matching counts, in order; if there is
    none, a reading with as many entries.
    """
    containers = spec.all_containers
    every = list(
        zip(containers, container_stages(spec), [_count_or_0(c, of) for c in containers], strict=True)
    )
    readings = every, [entry for entry in every if entry[2]], every[len(spec.init_containers) :]
    for reading in readings:
        requesting = [entry for entry in reading if entry[2]]
        if [count for *_, count in requesting] == list(filter(None, counts)):
            in_order = iter(requesting)
            return [next(in_order)[:2] if count else _UNKNOWN for count in counts]
    same_length = (reading for reading in reversed(readings) if len(reading) == len(counts))
    return [(container, stage) for container, stage, _ in next(same_length, every)]


def _count_or_0(container: Container | None, of: PerDeviceResources) -> int:
    try:
        return of.count_of(container) if container else 0
    except RequestError:
        return 0


def _parse_reservations(text: str) -> dict[tuple[int, int, str], int]:
    """The slices of each MIG instance, by container index, device index, and UUID of the GPU.

    Raises ValueError, TypeError or KeyError.
    """
    if len(text) > POD_ANNOTATION:
        raise ValueError("too long")
    entries = from_json(text)
    check_limits(len(entries))
    reserved: dict[tuple[int, int, str], int] = {}
    for entry in entries:
        start, size = entry["placement"]["start"], entry["placement"]["size"]
        if not (isinstance(start, int) and isinstance(size, int) and start >= 0 < size):
            raise ValueError("no placement")
        if start + size > MIG_SLICES:
            raise ValueError("no GPU has so many memory slices")
        device = entry["containerIndex"], entry["deviceIndex"], str(entry["gpuUUID"])
        if device in reserved:
            raise ValueError("two reservations for one device")
        reserved[device] = window(start, size)
    return reserved


def _assignment(chosen: Chosen) -> dict[str, str]:
    pod, node_spec = chosen.pod, chosen.node
    per_container = per_container_gpus(pod.spec, chosen.gpus, _RESOURCES.count_of)
    instances = _instances_to_make(pod.spec, node_spec, chosen.gpus, chosen.taken)
    devices = "".join(
        "".join(_format_device(container, node_spec.gpus[gpu], instances.get(gpu)) for gpu in own_gpus) + ";"
        for container, own_gpus in zip(pod.spec.all_containers, per_container, strict=True)
    )
    reservations = [
        _reservation(container_index, device_index, node_spec.gpus[gpu].uuid, *instances[gpu])
        for container_index, own_gpus in enumerate(per_container)
        for device_index, gpu in enumerate(own_gpus)
        if gpu in instances
    ]
    return {
        NODE: node_spec.name,
        ASSIGNED_AT: str(int(chosen.now)),
        ALLOCATED: devices,
        TO_ALLOCATE: devices,
        PHASE: "allocating",
        BOUND_AT: str(int(chosen.now)),
        **({MIG_ALLOCATIONS: json.dumps(reservations, separators=(",", ":"))} if reservations else {}),
    }


def _instances_to_make(
    spec: PodSpec, node_spec: NodeSpec, gpus: tuple[int, ...], taken: Mapping[int, int]
) -> dict[int, _Placed]:
    """The instance on each of these GPUs that is in MIG mode. Raises RequestError.

    An instance is large enough for every container, because an init container uses the instance that a
    container uses later.
    """
    requested = _RESOURCES.of_pod(spec)
    assert requested is not None  # otherwise no GPU is chosen for the pod
    instances = {}
    for index in gpus:
        gpu = node_spec.gpus[index]
        memory = requested.mib_of(gpu.memory_mib)
        if found := smallest(gpu.instances, taken.get(index, 0), requested.compute_milli, memory):
            instances[index] = found
        elif gpu.instances:
            raise RequestError("no sufficiently large MIG instance can be created")
    return instances


def _format_device(container: Container, gpu: Gpu, placed: _Placed | None) -> str:
    """One device of a container, with the memory and the cores that HAMi would assign."""
    requested = _RESOURCES.of_container(container)
    assert requested is not None  # a container that requests no device is assigned no GPU
    memory = parse_quantities(container.requests)[_RESOURCES.memory]
    memory = memory or share_memory_mib(gpu.memory_mib, 0, requested.memory_milli)
    compute = requested.compute_milli
    if placed is not None:
        memory, compute = placed[0].memory_mib, placed[0].compute_milli
    return f"{gpu.uuid},NVIDIA,{memory},{compute // PERCENT}:"


def _reservation(container_index: int, device_index: int, uuid: str, instance: Instance, mask: int) -> object:
    return {
        "containerIndex": container_index,
        "deviceIndex": device_index,
        "gpuUUID": uuid,
        "profile": instance.profile,
        "placement": {"start": (mask & -mask).bit_length() - 1, "size": mask.bit_count()},
    }


def _plugin_may_confuse(node: Node, others: Iterable[Pod]) -> bool:
    """Whether HAMi's scheduler is binding a pod to this node, or a pod there has containers that have not
    started."""
    return LOCK in node.annotations or any(_is_starting(pod, node.name) for pod in others)


def _is_starting(pod: Pod, node: str) -> bool:
    annotations = pod.annotations
    bound_here = pod.phase == "Pending" and BOUND_AT in annotations and annotations.get(NODE) == node
    return bound_here and annotations.get(PHASE) in ("allocating", "success")


DIALECT = Dialect(
    "HAMi", RESOURCE, _requested_shares, _claims, mode=_mode,
    giving=frozenset({RESOURCE}),
    request_annotations=frozenset({MODE, NUMA, POLICY}), lists=(_LISTS, _AMD_LISTS),
    assignment_annotations=frozenset(
        {ALLOCATED, NODE, MIG_ALLOCATIONS, TO_ALLOCATE, ASSIGNED_AT, PHASE, BOUND_AT}
        | {AMD_ALLOCATED, _AMD_TO_ALLOCATE}
    ),
    assignment=_assignment, plugin_may_confuse=_plugin_may_confuse,
)  # fmt: skip
