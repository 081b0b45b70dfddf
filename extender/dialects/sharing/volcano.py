"""Volcano vGPU: ``volcano.sh/vgpu-number``, ``vgpu-memory``, ``vgpu-memory-percentage``, ``vgpu-cores``.

Facts (volcano-sh/volcano at ed72c7c8): names are in ``pkg/scheduler/api/devices/config/vgpu.go``, the
requests of containers in ``devices/util.go`` (init containers are ignored, memory alone is one device),
annotations in ``devices/nvidia/vgpu/{type,utils}.go``: ``UUID,type,MiB,cores:`` for each device, ``;``
between the containers that request devices. Manifests are in ``docs/user-guide/how_to_use_volcano_vgpu.md``.
Memory is in MiB. Stowage does not place pods for Volcano's dynamic MIG mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import zip_longest

from extender.dialects.claims import Claims
from extender.dialects.pod_resources import Amounts, RequestError
from extender.dialects.sharing.per_device import PerDeviceResources, parse_devices
from extender.inventory.sharing import volcano as nodes
from extender.k8s.objects import Pod, PodSpec
from extender.untrusted.limits import quoted
from packing.model.request import Shares

RESOURCE = nodes.RESOURCE
USE_UUID, DENY_UUID = "volcano.sh/vgpu-use-gpuuuid", "volcano.sh/vgpu-nouse-gpuuuid"
MODE = "volcano.sh/vgpu-mode"
REQUEST_ANNOTATIONS = frozenset({USE_UUID, DENY_UUID, MODE})
ALLOCATED, NODE = "volcano.sh/vgpu-ids-new", "volcano.sh/vgpu-node"
TO_ALLOCATE, ASSIGNED_AT = "volcano.sh/devices-to-allocate", "volcano.sh/vgpu-time"
PHASE, BOUND_AT = "volcano.sh/bind-phase", "volcano.sh/bind-time"
ASSIGNMENT_ANNOTATIONS = frozenset({ALLOCATED, NODE, TO_ALLOCATE, ASSIGNED_AT, PHASE, BOUND_AT})

_OF_EACH = "volcano.sh/vgpu-memory", "volcano.sh/vgpu-memory-percentage", "volcano.sh/vgpu-cores"
_RESOURCES = PerDeviceResources(RESOURCE, *_OF_EACH, memory_implies_one=True)


def requested_shares(spec: PodSpec, resources: Amounts, metadata: Mapping[str, str]) -> Shares | None:
    shares = _RESOURCES.of_pod(replace(spec, init_containers=()))
    if shares and metadata.get(MODE, "hami-core") != "hami-core":
        raise RequestError(f"{MODE}: {quoted(metadata[MODE])} is not supported, use 'hami-core'")
    return shares


def max_granted_shares(pod: Pod, resources: Amounts) -> Shares | None:
    return _RESOURCES.max_granted_shares(replace(pod.spec, init_containers=()), resources)


def claims(pod: Pod) -> Claims | None:
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
