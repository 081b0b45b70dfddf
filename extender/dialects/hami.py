"""HAMi: ``nvidia.com/gpu`` with ``gpumem``, ``gpumem-percentage`` and ``gpucores``, or GPUs named by UUID.

Facts (Project-HAMi/HAMi at 4707fb02): resources and defaults in ``pkg/device/nvidia/device.go``
(GenerateResourceRequests, MutateAdmission), the annotation ``UUID,type,MiB,cores:`` per device and ``;`` per
container, init containers first, in ``pkg/device/devices.go``; manifests in ``examples/nvidia``. Memory is
in MiB (``memoryFactor`` 1). A container that names neither memory nor cores gets a GPU to itself (the
default ``defaultMemory: 0`` is all memory, and the webhook then adds all cores). ``gpumem`` beside
``gpumem-percentage`` is not for use together, and refused here.

A pod with ``nvidia.com/gpu`` alone is not in this vocabulary: it is a counted device, which a HAMi node
hands out as a whole GPU (``packing/shape.py``). HAMi's MIG and MPS modes are not placed by Stowage.

What is written is what HAMi's scheduler writes in its ``filter`` and ``bind`` (Filter and Bind in
``pkg/scheduler/scheduler.go``, PatchAnnotations in ``device.go``). The device plugin is not told which pod
kubelet asks for: it takes the pod that the lock on the Node names, and without a lock the first in the list
that is Pending, names the node, and is ``allocating`` or ``success`` (GetPendingPod in ``pkg/util/util.go``).
Stowage takes no lock, so it binds a pod only where there is no such pod (``busy``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import zip_longest

from extender.dialects.effective import RequestError
from extender.dialects.per_device import PERCENT, PerDevice, dealt, devices
from extender.dialects.vocabulary import Claim, Claims, stages
from extender.inventory import hami as nodes
from extender.objects import Container, Node, Pod, PodSpec
from packing.request import WHOLE, Shares
from packing.shape import NodeShape

RESOURCE = nodes.RESOURCE
USE_UUID, DENY_UUID = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"
USE_TYPE, DENY_TYPE = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
MODE, NUMA = "nvidia.com/vgpu-mode", "nvidia.com/numa-bind"
READS = frozenset({USE_UUID, DENY_UUID, USE_TYPE, DENY_TYPE, MODE, NUMA})
READS_LABELS: frozenset[str] = frozenset()
ALLOCATED, NODE, MIG = "hami.io/vgpu-devices-allocated", "hami.io/vgpu-node", "hami.io/vgpu-mig-allocations"
TO_ALLOCATE, ASSIGNED_AT = "hami.io/vgpu-devices-to-allocate", "hami.io/vgpu-time"
PHASE, BOUND_AT, LOCK = "hami.io/bind-phase", "hami.io/bind-time", "hami.io/mutex.lock"

_NAMES = PerDevice(RESOURCE, "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores")


def shares(spec: PodSpec, resources: Mapping[str, int], said: Mapping[str, str]) -> Shares | None:
    """See ``Vocabulary.shares``."""
    if not (_NAMES.speaks(spec) or said.get(USE_UUID) or said.get(DENY_UUID) or MODE in said):
        return None
    asked = _NAMES.of_pod(spec)
    if asked and "hami-core" not in said.get(MODE, "hami-core"):
        raise RequestError(f"{MODE}: {said[MODE]} is not supported: only hami-core is")
    if asked and asked.count > 1 and said.get(NUMA, "").lower() in ("true", "1", "t"):
        raise RequestError(f"{NUMA} is not supported for several GPUs: which share a NUMA node is not known")
    return asked


def claims(pod: Pod) -> Claims | None:
    """See ``Vocabulary.claims``."""
    text = pod.annotations.get(ALLOCATED)
    if text is None:
        return None
    node = pod.annotations.get(NODE, "")
    try:
        named = devices(text)
    except ValueError:
        return Claims(RESOURCE, complaint=f"{ALLOCATED} cannot be read", node=node)
    containers, stage = (*pod.spec.init_containers, *pod.spec.containers), stages(pod.spec)
    if len(named) == len(pod.spec.containers):  # older versions left init containers out
        containers, stage = pod.spec.containers, [0] * len(named)
    nothing: list[Claim] = []
    rows = [(c, s or 0, n or nothing) for c, s, n in zip_longest(containers, stage, named)]
    return _NAMES.claims(rows, node=node, exact=MIG not in pod.annotations)


def assignment(pod: Pod, shape: NodeShape, chosen: tuple[int, ...], now: float) -> dict[str, str]:
    """See ``Writer.assignment``."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    hands = dealt(pod.spec, chosen, _NAMES.count_of)
    text = "".join(
        "".join(_device(shape, container, gpu) for gpu in hand) + ";"
        for container, hand in zip(containers, hands, strict=True)
    )
    return {
        NODE: shape.name,
        ASSIGNED_AT: str(int(now)),
        ALLOCATED: text,
        TO_ALLOCATE: text,
        PHASE: "allocating",
        BOUND_AT: str(int(now)),
    }


def busy(node: Node, others: Iterable[Pod]) -> bool:
    """See ``Writer.busy``: HAMi's scheduler is binding there, or a pod's containers have not all started."""
    return LOCK in node.annotations or any(_in_the_way(pod, node.name) for pod in others)


def _in_the_way(pod: Pod, node: str) -> bool:
    said = pod.annotations
    starting = pod.phase == "Pending" and BOUND_AT in said and said.get(NODE) == node
    return starting and said.get(PHASE) in ("allocating", "success")


def _device(shape: NodeShape, container: Container, gpu: int) -> str:
    """One device of a container, with the memory and the cores that HAMi would give it."""
    asked, has = _NAMES.of_container(container), shape.gpus[gpu]
    assert asked is not None  # who asks for nothing is dealt nothing
    memory = _NAMES.memory_of(container) or has.memory_mib * asked.memory_milli // WHOLE
    return f"{has.uuid},NVIDIA,{memory},{asked.compute_milli // PERCENT}:"
