"""Volcano vGPU: ``volcano.sh/vgpu-number``, ``vgpu-memory``, ``vgpu-memory-percentage``, ``vgpu-cores``.

Facts (volcano-sh/volcano at ed72c7c8): names are in ``pkg/scheduler/api/devices/config/vgpu.go``, the
requests of containers in ``devices/util.go`` (init containers are ignored, memory alone is one device),
annotations in ``devices/nvidia/vgpu/{type,utils}.go``: ``UUID,type,MiB,cores:`` per device, ``;`` between the
containers that request devices. Manifests are in ``docs/user-guide/how_to_use_volcano_vgpu.md``. Memory is in
MiB. Stowage does not place pods for Volcano's dynamic MIG mode.

Nodes. Volcano's vGPU device plugin registers the GPUs in ``volcano.sh/node-vgpu-register``:
``uuid,count,MiB,type,health,mode`` per GPU, separated by ``:``. The node counts only if
``volcano.sh/vgpu-number`` is allocatable. GPUs in MIG mode are listed and accept no pods here.

If that resource is gone and NVIDIA's plugin advertises the same GPUs, Volcano's pods may still hold shares of
them. So the GPUs remain accounted for, and the node accepts no new pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import zip_longest

from extender.dialects.dialect import Claims, Dialect, GpuLists
from extender.dialects.per_device import PerDeviceResources, parse_devices
from extender.dialects.pod_resources import Amounts, RequestError
from extender.dialects.shared_gpus import InventoryError, ListedGpu, Parser, SharedGpus
from extender.k8s.objects import Node, Pod, PodSpec
from extender.untrusted.limits import GPU_MIB, quoted
from packing.model.node_spec import Gpu
from packing.model.request import WHOLE, Shares

RESOURCE = "volcano.sh/vgpu-number"
REGISTER = "volcano.sh/node-vgpu-register"
_PARSER = Parser(REGISTER)


def shared_gpus(node: Node) -> SharedGpus | None:
    """The node's GPUs if Volcano shares them. Raises InventoryError."""
    text = node.annotations.get(REGISTER)
    if not text:
        return None
    entries = _PARSER.rows(text)
    if not all(len(entry) in (5, 6) for entry in entries):
        raise InventoryError(f"{REGISTER} cannot be read")
    return _PARSER.unless_gone(_PARSER.shared(RESOURCE, map(_listed, entries)), node)


def _listed(entry: list[str]) -> ListedGpu:
    uuid, slots, memory, model, health, *mode = (field.strip() for field in entry)
    divisible = health == "true" and mode in ([], [""], ["hami-core"])
    memory_mib, shares = _PARSER.number(memory, GPU_MIB), _PARSER.number(slots)
    return ListedGpu(Gpu(memory_mib, divisible, WHOLE, shares, _PARSER.text(uuid)), model, health == "true")


MODE = "volcano.sh/vgpu-mode"
_LISTS = GpuLists("volcano.sh/vgpu-use-gpuuuid", "volcano.sh/vgpu-nouse-gpuuuid")
ALLOCATED, NODE = "volcano.sh/vgpu-ids-new", "volcano.sh/vgpu-node"
TO_ALLOCATE, ASSIGNED_AT = "volcano.sh/devices-to-allocate", "volcano.sh/vgpu-time"
PHASE, BOUND_AT = "volcano.sh/bind-phase", "volcano.sh/bind-time"

_OF_EACH = "volcano.sh/vgpu-memory", "volcano.sh/vgpu-memory-percentage", "volcano.sh/vgpu-cores"
_RESOURCES = PerDeviceResources(RESOURCE, *_OF_EACH, memory_implies_one=True)


def _requested_shares(spec: PodSpec, resources: Amounts, metadata: Mapping[str, str]) -> Shares | None:
    shares = _RESOURCES.of_pod(replace(spec, init_containers=()))
    if shares and metadata.get(MODE, "hami-core") != "hami-core":
        raise RequestError(f"{MODE}: {quoted(metadata[MODE])} is not supported, use 'hami-core'")
    return shares


def _claims(pod: Pod, requested: Shares | None) -> Claims | None:
    text = pod.annotations.get(ALLOCATED)
    if text is None:
        return None
    node = pod.annotations.get(NODE, "")
    try:
        per_container = parse_devices(text)
    except ValueError as error:
        return Claims(RESOURCE, problem=f"{ALLOCATED} cannot be read: {error}", node=node)
    containers = [
        c for c in pod.spec.containers if any(name.startswith("volcano.sh/vgpu") for name, _ in c.requests)
    ]
    claimed = [(c, 0, devices or []) for c, devices in zip_longest(containers, per_container)]
    return _RESOURCES.claims(claimed, node=node)


DIALECT = Dialect(
    "Volcano", RESOURCE, _requested_shares, _claims,
    giving=frozenset({RESOURCE, _RESOURCES.memory}),
    request_annotations=frozenset({MODE}), lists=(_LISTS,),
    assignment_annotations=frozenset({ALLOCATED, NODE, TO_ALLOCATE, ASSIGNED_AT, PHASE, BOUND_AT}),
)  # fmt: skip
