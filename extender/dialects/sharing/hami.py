"""HAMi: ``nvidia.com/gpu`` with ``gpumem``, ``gpumem-percentage`` and ``gpucores``, or GPUs named by UUID.

Facts (Project-HAMi/HAMi at 4707fb02): resources and defaults in ``pkg/device/nvidia/device.go``
(GenerateResourceRequests, MutateAdmission), the annotation ``UUID,type,MiB,cores:`` per device and ``;`` per
container, init containers first, in ``pkg/device/devices.go``; manifests in ``examples/nvidia``. The device
plugin takes every container to have a place. HAMi's scheduler gives none to those that ask for no GPU
(allocateAppContainers in ``pkg/scheduler/score.go`` files their places under the GPU's model, from where they
are not written), and older versions gave none to init containers. Memory is in MiB (``memoryFactor`` 1). A
container that names neither memory nor cores gets a GPU to itself (the default ``defaultMemory: 0`` is all
memory, and the webhook then adds all cores). ``gpumem`` beside ``gpumem-percentage`` is not for use together,
and refused here.

A pod with ``nvidia.com/gpu`` alone is not in this vocabulary: it is a counted device, which a HAMi node
hands out as a whole GPU (``packing/model/node_spec.py``). HAMi's MPS mode is not placed by Stowage.

In MIG mode a device is an instance, and ``hami.io/vgpu-mig-allocations`` says which: profile and placement of
each device of each container, init containers first (``pkg/device/nvidia/mig_allocations.go``); the plugin
makes it when the container starts (GetContainerDeviceStrArray in its ``plugin/util.go``), and keeps it until
the pod ends. HAMi holds ``gpucores`` against the GPU, Stowage against the instance.

What is written is what HAMi's scheduler writes in its ``filter`` and ``bind`` (Filter and Bind in
``pkg/scheduler/scheduler.go``, PatchAnnotations in ``device.go``). The device plugin is not told which pod
kubelet asks for: it takes the pod that the lock on the Node names, and without a lock the first in the list
that is Pending, names the node, and is ``allocating`` or ``success`` (GetPendingPod in ``pkg/util/util.go``).
Stowage takes no lock, so it binds a pod only where there is no such pod (``busy``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import zip_longest

from pydantic_core import from_json

from extender.dialects.dialect import Claim, Claims, stages
from extender.dialects.pod_resources import RequestError
from extender.dialects.sharing.per_device import PERCENT, PerDevice, check_size, devices, per_container_gpus
from extender.inventory.sharing import hami as nodes
from extender.k8s.objects import Container, Node, Pod, PodSpec
from extender.untrusted.limits import POD_ANNOTATION, quoted
from packing.model.mig_instances import Instance, smallest, window
from packing.model.node_spec import NodeSpec
from packing.model.request import Shares, share_memory_mib

RESOURCE = nodes.RESOURCE
USE_UUID, DENY_UUID = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"
USE_TYPE, DENY_TYPE = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
MODE, NUMA = "nvidia.com/vgpu-mode", "nvidia.com/numa-bind"
READS = frozenset({USE_UUID, DENY_UUID, USE_TYPE, DENY_TYPE, MODE, NUMA})
READS_LABELS: frozenset[str] = frozenset()
ALLOCATED, NODE, MIG = "hami.io/vgpu-devices-allocated", "hami.io/vgpu-node", "hami.io/vgpu-mig-allocations"
TO_ALLOCATE, ASSIGNED_AT = "hami.io/vgpu-devices-to-allocate", "hami.io/vgpu-time"
PHASE, BOUND_AT, LOCK = "hami.io/bind-phase", "hami.io/bind-time", "hami.io/mutex.lock"
ASSIGNED_BY = frozenset({ALLOCATED, NODE, MIG, TO_ALLOCATE, ASSIGNED_AT, PHASE, BOUND_AT})

_NAMES = PerDevice(RESOURCE, "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores")


def shares(spec: PodSpec, resources: Mapping[str, int], said: Mapping[str, str]) -> Shares | None:
    """See ``Dialect.shares``."""
    if not (_NAMES.speaks(spec) or said.get(USE_UUID) or said.get(DENY_UUID) or MODE in said):
        return None
    asked = _NAMES.of_pod(spec)
    if asked and not any(mode in said.get(MODE, nodes.CORE) for mode in (nodes.CORE, nodes.MIG)):
        raise RequestError(f"{MODE}: {quoted(said[MODE])} is not supported: only hami-core and mig are")
    if asked and asked.count > 1 and said.get(NUMA, "").lower() in ("true", "1", "t"):
        raise RequestError(f"{NUMA} is not supported for several GPUs: which share a NUMA node is not known")
    return asked


def grantable(pod: Pod, resources: Mapping[str, int]) -> Shares | None:
    """See ``Dialect.grantable``."""
    return _NAMES.grantable(pod.spec, resources)


def claims(pod: Pod) -> Claims | None:
    """See ``Dialect.claims``."""
    text = pod.annotations.get(ALLOCATED)
    if text is None:
        return None
    node = pod.annotations.get(NODE, "")
    try:
        named = devices(text)
    except ValueError as error:
        return Claims(RESOURCE, complaint=f"{ALLOCATED} cannot be read: {error}", node=node)
    try:
        named, others = _with_instances(named, pod.annotations.get(MIG, "[]"))
    except (ValueError, TypeError, KeyError):
        return Claims(RESOURCE, complaint=f"{MIG} cannot be read", node=node)
    nobody: tuple[Container | None, int] = (None, 0)
    whose = _named_containers(pod.spec, list(map(len, named)))
    rows = [(*(one or nobody), hand or []) for one, hand in zip_longest(whose, named)]
    rows += [(None, 0, [other]) for other in others]
    return _NAMES.claims(rows, node=node, exact=MIG not in pod.annotations)


def assignment(
    pod: Pod, shape: NodeSpec, chosen: tuple[int, ...], now: float, taken: Mapping[int, int]
) -> dict[str, str]:
    """See ``AssignmentWriter.assignment``."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    hands = per_container_gpus(pod.spec, chosen, _NAMES.count_of)
    instances = _chosen_instances(pod.spec, shape, chosen, taken)
    text = "".join(
        "".join(_device(shape, container, gpu, instances.get(gpu)) for gpu in hand) + ";"
        for container, hand in zip(containers, hands, strict=True)
    )
    reservations = [
        {
            "containerIndex": index,
            "deviceIndex": number,
            "gpuUUID": shape.gpus[gpu].uuid,
            "profile": instances[gpu][0].profile,
            "placement": {"start": _start(instances[gpu][1]), "size": instances[gpu][1].bit_count()},
        }
        for index, hand in enumerate(hands)
        for number, gpu in enumerate(hand)
        if gpu in instances
    ]
    return {
        NODE: shape.name,
        ASSIGNED_AT: str(int(now)),
        ALLOCATED: text,
        TO_ALLOCATE: text,
        PHASE: "allocating",
        BOUND_AT: str(int(now)),
        **({MIG: json.dumps(reservations, separators=(",", ":"))} if reservations else {}),
    }


def busy(node: Node, others: Iterable[Pod]) -> bool:
    """See ``AssignmentWriter.busy``: HAMi's scheduler is binding there, or a pod's containers have not all started."""
    return LOCK in node.annotations or any(_in_the_way(pod, node.name) for pod in others)


def _in_the_way(pod: Pod, node: str) -> bool:
    said = pod.annotations
    starting = pod.phase == "Pending" and BOUND_AT in said and said.get(NODE) == node
    return starting and said.get(PHASE) in ("allocating", "success")


def _device(shape: NodeSpec, container: Container, gpu: int, made: tuple[Instance, int] | None = None) -> str:
    """One device of a container, with the memory and the cores that HAMi would give it."""
    asked, has = _NAMES.of_container(container), shape.gpus[gpu]
    assert asked is not None  # who asks for nothing is dealt nothing
    memory = _NAMES.memory_of(container) or share_memory_mib(has.memory_mib, 0, asked.memory_milli)
    compute = asked.compute_milli
    if made is not None:
        memory, compute = made[0].memory_mib, made[0].compute_milli
    return f"{has.uuid},NVIDIA,{memory},{compute // PERCENT}:"


def _chosen_instances(
    spec: PodSpec, shape: NodeSpec, chosen: tuple[int, ...], taken: Mapping[int, int]
) -> dict[int, tuple[Instance, int]]:
    """The MIG instance, and its window, on each of these GPUs that has any; large enough for every container,
    for an init container has the one that a container has later. Raises RequestError."""
    asked = _NAMES.of_pod(spec)
    assert asked is not None  # else no GPU is chosen for it
    made = {}
    for gpu in chosen:
        has = shape.gpus[gpu]
        need = share_memory_mib(has.memory_mib, asked.memory_mib, asked.memory_milli)
        if found := smallest(has.instances, taken.get(gpu, 0), asked.compute_milli, need):
            made[gpu] = found
        elif has.instances:
            raise RequestError("no MIG instance that is large enough can be made")
    return made


def _start(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def _named_containers(spec: PodSpec, counts: list[int]) -> list[tuple[Container, int]]:
    """The containers, and their stages, whose devices are named: the first reading that agrees with what they
    ask for, else that has as many. Every container has a place, or each that asks for devices, or none of the
    init containers."""
    containers = (*spec.init_containers, *spec.containers)
    every = list(zip(containers, stages(spec), map(_count, containers), strict=True))
    readings = every, [one for one in every if one[2]], every[len(spec.init_containers) :]
    agreeing = (reading for reading in readings if [count for *_, count in reading] == counts)
    as_many = (reading for reading in reversed(readings) if len(reading) == len(counts))
    found = next(agreeing, None) or next(as_many, every)
    return [(container, stage) for container, stage, _ in found]


def _count(container: Container) -> int:
    try:
        return _NAMES.count_of(container)
    except RequestError:
        return 0


def _with_instances(named: list[list[Claim]], text: str) -> tuple[list[list[Claim]], list[Claim]]:
    """The devices with the slices that are reserved for them, and the reservations for none of them. Raises
    ValueError, TypeError or KeyError."""
    if len(text) > POD_ANNOTATION:
        raise ValueError("too long")
    reserved, entries = {}, from_json(text)
    check_size(len(entries), 0)
    for one in entries:
        start, size = one["placement"]["start"], one["placement"]["size"]
        if not (isinstance(start, int) and isinstance(size, int) and start >= 0 < size):
            raise ValueError("no placement")
        if start + size > nodes.MOST_SLICES:
            raise ValueError("no GPU has so many memory slices")
        place = one["containerIndex"], one["deviceIndex"], str(one["gpuUUID"])
        if place in reserved:
            raise ValueError("two reservations for one device")
        reserved[place] = window(start, size)
    with_slices = [
        [
            replace(claim, slices=reserved.pop((index, number, claim.device), 0)) if reserved else claim
            for number, claim in enumerate(claims)
        ]
        for index, claims in enumerate(named)
    ]
    return with_slices, [Claim(uuid, slices=mask) for (_, _, uuid), mask in reserved.items()]
