"""vgpu-manager: ``nvidia.com/vgpu-number`` with ``vgpu-memory`` (MiB) and ``vgpu-cores`` (per cent).

Facts (coldzerofear/vgpu-manager at 3d7f66d): names and annotations are in ``pkg/util/consts.go``, the form
``container[index_UUID_cores_MiB,...];...`` in ``pkg/device/types.go``, the defaults in
``pkg/device/allocator`` (neither cores nor memory: all cores; no memory: all memory), manifests in
``README.md``. ``memory-scheduler-policy`` asks for virtual or physical memory (GetMemoryPolicyFunc in
``pkg/scheduler/filter/filter_predicate.go``). The device plugin writes ``real-allocated`` container by
container as they start; it overrides ``pre-allocated``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from extender.dialects.claims import Claim, Claims, check_limits, container_stages, parse_number
from extender.dialects.pod_resources import Amounts
from extender.dialects.sharing.per_device import PERCENT, PerDeviceResources
from extender.inventory.sharing import vgpu_manager as nodes
from extender.k8s.objects import Pod, PodSpec
from extender.untrusted.limits import quoted
from packing.model.request import Shares

RESOURCE = nodes.RESOURCE
USE_UUID, DENY_UUID = "nvidia.com/include-gpu-uuid", "nvidia.com/exclude-gpu-uuid"
USE_TYPE, DENY_TYPE = "nvidia.com/include-gpu-type", "nvidia.com/exclude-gpu-type"
POLICY = "nvidia.com/memory-scheduler-policy"
REQUEST_ANNOTATIONS = frozenset({USE_UUID, DENY_UUID, USE_TYPE, DENY_TYPE, POLICY})
PLANNED, REAL, NODE = "nvidia.com/pre-allocated", "nvidia.com/real-allocated", "nvidia.com/predicate-node"
ASSIGNMENT_ANNOTATIONS = frozenset({PLANNED, REAL, NODE})

_RESOURCES = PerDeviceResources(RESOURCE, "nvidia.com/vgpu-memory", "", "nvidia.com/vgpu-cores")
_CONTAINER = re.compile(r"([^\[\]]*)\[([^\[\]]*)\]")
_DEVICE = re.compile(r"\d+_([^_]+)_(\d+)_(\d+)", re.ASCII)


def requested_shares(spec: PodSpec, resources: Amounts, metadata: Mapping[str, str]) -> Shares | None:
    return _RESOURCES.of_pod(spec)


def memory_mode(metadata: Mapping[str, str]) -> str:
    """The kind of memory that the pod asks for, "" for any."""
    policy = metadata.get(POLICY, "").strip().lower()
    kinds = {"virt": nodes.VIRTUAL, "phy": nodes.PHYSICAL}
    return next((kind for prefix, kind in kinds.items() if policy.startswith(prefix)), "")


def max_granted_shares(pod: Pod, resources: Amounts) -> Shares | None:
    return _RESOURCES.max_granted_shares(pod.spec, resources)


def claims(pod: Pod) -> Claims | None:
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
