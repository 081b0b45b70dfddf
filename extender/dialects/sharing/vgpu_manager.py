"""vgpu-manager: ``nvidia.com/vgpu-number`` with ``vgpu-memory`` (MiB) and ``vgpu-cores`` (per cent).

Facts (coldzerofear/vgpu-manager at 3d7f66d): names and annotations in ``pkg/util/consts.go``, the form
``container[index_UUID_cores_MiB,...];...`` in ``pkg/device/types.go``, the rules for what is left out
(neither cores nor memory: all cores; no memory: all memory) in ``pkg/device/allocator``; manifests in
``README.md``. ``real-allocated`` is written container by container as they start and goes before
``pre-allocated``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from extender.dialects.dialect import Claim, Claims, number, stages
from extender.dialects.sharing.per_device import PERCENT, PerDevice, check_size
from extender.inventory.sharing import vgpu_manager as nodes
from extender.k8s.objects import Pod, PodSpec
from extender.untrusted.limits import quoted
from packing.model.request import Shares

RESOURCE = nodes.RESOURCE
USE_UUID, DENY_UUID = "nvidia.com/include-gpu-uuid", "nvidia.com/exclude-gpu-uuid"
USE_TYPE, DENY_TYPE = "nvidia.com/include-gpu-type", "nvidia.com/exclude-gpu-type"
READS = frozenset({USE_UUID, DENY_UUID, USE_TYPE, DENY_TYPE})
READS_LABELS: frozenset[str] = frozenset()
PLANNED, REAL, NODE = "nvidia.com/pre-allocated", "nvidia.com/real-allocated", "nvidia.com/predicate-node"
ASSIGNED_BY = frozenset({PLANNED, REAL, NODE})

_NAMES = PerDevice(RESOURCE, "nvidia.com/vgpu-memory", "", "nvidia.com/vgpu-cores")
_CONTAINER = re.compile(r"([^\[\]]*)\[([^\[\]]*)\]")
_DEVICE = re.compile(r"\d+_([^_]+)_(\d+)_(\d+)", re.ASCII)


def shares(spec: PodSpec, resources: Mapping[str, int], said: Mapping[str, str]) -> Shares | None:
    """See ``Dialect.shares``."""
    return _NAMES.of_pod(spec)


def grantable(pod: Pod, resources: Mapping[str, int]) -> Shares | None:
    """See ``Dialect.grantable``."""
    return _NAMES.grantable(pod.spec, resources)


def claims(pod: Pod) -> Claims | None:
    """See ``Dialect.claims``."""
    texts = [pod.annotations[key] for key in (PLANNED, REAL) if pod.annotations.get(key)]
    if not texts:
        return None
    node = pod.annotations.get(NODE, "")
    named: dict[str, list[Claim]] = {}
    try:
        for text in texts:
            check_size(text.count(",") + text.count("["), text.count(";"))
            named |= dict(map(_container, filter(None, text.replace(" ", "").split(";"))))
        check_size(sum(map(len, named.values())), len(named))
    except ValueError as error:
        return Claims(RESOURCE, complaint=f"{PLANNED} or {REAL} cannot be read: {error}", node=node)
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    known = [(c, s, named.pop(c.name, [])) for c, s in zip(containers, stages(pod.spec), strict=True)]
    return _NAMES.claims([*known, *((None, 0, found) for found in named.values())], node=node)


def _container(text: str) -> tuple[str, list[Claim]]:
    match = _CONTAINER.fullmatch(text)
    if match is None:
        raise ValueError(f"{quoted(text)} is not a container's devices")
    return match[1], [_device(part) for part in match[2].split(",") if part]


def _device(text: str) -> Claim:
    match = _DEVICE.fullmatch(text)
    if match is None:
        raise ValueError(f"{quoted(text)} is not a device")
    return Claim(match[1], number(match[2]) * PERCENT, number(match[3]))
