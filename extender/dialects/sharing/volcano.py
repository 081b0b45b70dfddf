"""Volcano vGPU: ``volcano.sh/vgpu-number``, ``vgpu-memory``, ``vgpu-memory-percentage``, ``vgpu-cores``.

Facts (volcano-sh/volcano at ed72c7c8): names in ``pkg/scheduler/api/devices/config/vgpu.go``, requests of
containers (init containers are not looked at, memory alone is one device) in ``devices/util.go``, annotations
and their form ``UUID,type,MiB,cores:`` per device, ``;`` between the containers that ask, in
``devices/nvidia/vgpu/{type,utils}.go``; manifests in ``docs/user-guide/how_to_use_volcano_vgpu.md``.
Memory is in MiB. Volcano's dynamic MIG mode is not placed by Stowage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import zip_longest

from extender.dialects.dialect import Claim, Claims
from extender.dialects.pod_resources import RequestError
from extender.dialects.sharing.per_device import PerDevice, devices
from extender.inventory.sharing import volcano as nodes
from extender.k8s.objects import Pod, PodSpec
from extender.untrusted.limits import quoted
from packing.model.request import Shares

RESOURCE = nodes.RESOURCE
USE_UUID, DENY_UUID = "volcano.sh/vgpu-use-gpuuuid", "volcano.sh/vgpu-nouse-gpuuuid"
MODE = "volcano.sh/vgpu-mode"
READS = frozenset({USE_UUID, DENY_UUID, MODE})
READS_LABELS: frozenset[str] = frozenset()
ALLOCATED, NODE = "volcano.sh/vgpu-ids-new", "volcano.sh/vgpu-node"
TO_ALLOCATE, ASSIGNED_AT = "volcano.sh/devices-to-allocate", "volcano.sh/vgpu-time"
PHASE, BOUND_AT = "volcano.sh/bind-phase", "volcano.sh/bind-time"
ASSIGNED_BY = frozenset({ALLOCATED, NODE, TO_ALLOCATE, ASSIGNED_AT, PHASE, BOUND_AT})

_NAMES = PerDevice(
    RESOURCE,
    "volcano.sh/vgpu-memory",
    "volcano.sh/vgpu-memory-percentage",
    "volcano.sh/vgpu-cores",
    memory_means_one=True,
)


def shares(spec: PodSpec, resources: Mapping[str, int], said: Mapping[str, str]) -> Shares | None:
    """See ``Dialect.shares``."""
    asked = _NAMES.of_pod(replace(spec, init_containers=()))
    if asked and said.get(MODE, "hami-core") != "hami-core":
        raise RequestError(f"{MODE}: {quoted(said[MODE])} is not supported: only hami-core is")
    return asked


def grantable(pod: Pod, resources: Mapping[str, int]) -> Shares | None:
    """See ``Dialect.grantable``."""
    return _NAMES.grantable(replace(pod.spec, init_containers=()), resources)


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
    asking = [
        c for c in pod.spec.containers if any(name.startswith("volcano.sh/vgpu") for name, _ in c.requests)
    ]
    nothing: list[Claim] = []
    return _NAMES.claims([(c, 0, n or nothing) for c, n in zip_longest(asking, named)], node=node)
