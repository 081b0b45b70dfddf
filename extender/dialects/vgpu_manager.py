"""vgpu-manager: ``nvidia.com/vgpu-number`` with ``vgpu-memory`` (MiB) and ``vgpu-cores`` (percent).

Facts (coldzerofear/vgpu-manager at 3d7f66d): names and annotations are in ``pkg/util/consts.go``, the format
``container[index_UUID_cores_MiB,...];...`` in ``pkg/device/types.go``, the defaults in
``pkg/device/allocator`` (neither cores nor memory: all cores; no memory: all memory), manifests in
``README.md``. ``memory-scheduler-policy`` requests virtual or physical memory (GetMemoryPolicyFunc in
``pkg/scheduler/filter/filter_predicate.go``). The device plugin writes ``real-allocated`` container by
container as they start; it overrides ``pre-allocated``.

Nodes. vgpu-manager registers the GPUs in ``nvidia.com/node-device-register``: a JSON list of id (index),
type, uuid, core (percent), memory (MiB), number (shares), numa, mig, healthy (``pkg/device/types.go``).
``node-config-info`` has a factor by which the memory of requests is multiplied. GPUs with ``mig`` belong to
NVIDIA's plugin and hold no shares. Its scheduler uses no node without ``node-config-info``, or with a
``deviceSplit`` or a ``memoryFactor`` of 0, and Go reads a missing number as 0. With a ``memoryScaling`` above
1 the memory is virtual, and pods may request either kind (CheckNode, GetMemoryPolicyFunc in
``pkg/scheduler/filter/filter_predicate.go``).

If vgpu-manager no longer advertises devices and NVIDIA's plugin does, vgpu-manager's pods may still hold
shares of the GPUs. So the GPUs remain accounted for, and the node accepts no new pods.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from pydantic_core import from_json

from extender.dialects.dialect import (
    Claim,
    Claims,
    Dialect,
    GpuLists,
    check_limits,
    container_stages,
    parse_number,
)
from extender.dialects.per_device import PERCENT, PerDeviceResources
from extender.dialects.shared_gpus import InventoryError, ListedGpu, Parser, SharedGpus
from extender.k8s.objects import Node, Pod
from extender.untrusted.limits import GPU_MIB, quoted
from packing.model.node_spec import Gpu
from packing.model.request import Shares

RESOURCE = "nvidia.com/vgpu-number"
REGISTER, CONFIG = "nvidia.com/node-device-register", "nvidia.com/node-config-info"
VIRTUAL, PHYSICAL = "virtual memory", "physical memory"
_PARSER = Parser(REGISTER)


def shared_gpus(node: Node) -> SharedGpus | None:
    """The node's GPUs if vgpu-manager shares them. Raises InventoryError."""
    text = node.annotations.get(REGISTER)
    if not text:
        return None
    try:
        entries = _PARSER.objects(from_json(text))
        config = from_json(node.annotations.get(CONFIG) or "null")
    except ValueError as error:
        raise InventoryError(f"{REGISTER} or {CONFIG} cannot be read: {error}") from error
    entries.sort(key=lambda entry: _PARSER.number(entry.get("id")))
    shared = _PARSER.unless_gone(_PARSER.shared(RESOURCE, map(_listed, entries)), node)
    if shared is None or (shared.problem and all(entry.get("mig") is True for entry in entries)):
        return None  # all of them belong to NVIDIA's plugin
    scaling, problem = _read_config(config)
    return replace(shared, mode=VIRTUAL if scaling > 1 else PHYSICAL, problem=shared.problem or problem)


def _listed(entry: Mapping[str, object]) -> ListedGpu:
    healthy = entry.get("healthy") is True
    memory_mib, shares = _PARSER.number(entry.get("memory"), GPU_MIB), _PARSER.number(entry.get("number"))
    compute, uuid = _PARSER.number(entry.get("core")) * 10, _PARSER.text(entry.get("uuid", ""))
    gpu = Gpu(memory_mib, healthy and entry.get("mig") is not True, compute, shares, uuid)
    return ListedGpu(gpu, entry.get("type", ""), healthy)


def _read_config(config: object) -> tuple[float, str]:
    """The memory scaling, and the reason vgpu-manager places no pods. Raises InventoryError."""
    if not isinstance(config, dict):
        return 1, f"{CONFIG} is missing, so vgpu-manager does not use this node"
    names = ("deviceSplit", "memoryFactor", "memoryScaling")
    split, factor, scaling = (config.get(name, 0) for name in names)
    if not all(isinstance(number, int | float) for number in (split, factor, scaling)):
        raise InventoryError(f"{CONFIG} cannot be read")
    if factor not in (0, 1):
        raise InventoryError(f"{CONFIG}: a memory factor other than 1 is not supported")
    zero = "memoryFactor" if not factor else "deviceSplit" if split <= 0 else ""
    return scaling, f"{CONFIG}: {zero} is 0, so vgpu-manager does not use this node" if zero else ""


_LISTS = GpuLists(
    *("nvidia.com/include-gpu-uuid", "nvidia.com/exclude-gpu-uuid"),
    *("nvidia.com/include-gpu-type", "nvidia.com/exclude-gpu-type"),
)
POLICY = "nvidia.com/memory-scheduler-policy"
PLANNED, REAL, NODE = "nvidia.com/pre-allocated", "nvidia.com/real-allocated", "nvidia.com/predicate-node"

_RESOURCES = PerDeviceResources(RESOURCE, "nvidia.com/vgpu-memory", "", "nvidia.com/vgpu-cores")
_CONTAINER = re.compile(r"([^\[\]]*)\[([^\[\]]*)\]")
_DEVICE = re.compile(r"\d+_([^_]+)_(\d+)_(\d+)", re.ASCII)


def _memory_mode(metadata: Mapping[str, str], shares: Shares | None) -> str:
    policy = metadata.get(POLICY, "").strip().lower()
    kinds = {"virt": VIRTUAL, "phy": PHYSICAL}
    return next((kind for prefix, kind in kinds.items() if policy.startswith(prefix)), "")


def _claims(pod: Pod, requested: Shares | None) -> Claims | None:
    texts = [pod.annotations[key] for key in (PLANNED, REAL) if pod.annotations.get(key)]
    if not texts:
        return None
    node = pod.annotations.get(NODE, "")
    by_container: dict[str, list[Claim]] = {}
    try:
        for text in texts:
            check_limits(text.count(",") + text.count("["), text.count(";"))
            by_container |= dict(map(_parse_container, filter(None, text.replace(" ", "").split(";"))))
        check_limits(sum(map(len, by_container.values())), len(by_container))
    except ValueError as error:
        return Claims(RESOURCE, problem=f"{PLANNED} or {REAL} cannot be read: {error}", node=node)
    containers = zip(pod.spec.all_containers, container_stages(pod.spec), strict=True)
    known = [(container, stage, by_container.pop(container.name, [])) for container, stage in containers]
    unknown = [(None, 0, devices) for devices in by_container.values()]
    return _RESOURCES.claims([*known, *unknown], node=node)


def _parse_container(text: str) -> tuple[str, list[Claim]]:
    match = _CONTAINER.fullmatch(text)
    if match is None:
        raise ValueError(f"{quoted(text)} is not a container's devices")
    return match[1], [_parse_device(part) for part in match[2].split(",") if part]


def _parse_device(text: str) -> Claim:
    match = _DEVICE.fullmatch(text)
    if match is None:
        raise ValueError(f"{quoted(text)} is not a device")
    return Claim(match[1], parse_number(match[2]) * PERCENT, parse_number(match[3]))


DIALECT = Dialect(
    "vgpu-manager", RESOURCE, lambda spec, *_: _RESOURCES.of_pod(spec), _claims, mode=_memory_mode,
    giving=frozenset({RESOURCE}),
    request_annotations=frozenset({POLICY}), lists=(_LISTS,),
    assignment_annotations=frozenset({PLANNED, REAL, NODE}),
)  # fmt: skip
