"""Fence, a sharing system that does not exist: ``fence.example.com/container.<name>.mib`` MiB of one GPU.

``fence.example.com/only`` lists the GPUs that the pod allows. ``fence.example.com/container.<name>.gpus``
names the GPU that the container was assigned. Nodes have the condition ``fence.example.com/GpuReady``.
"""

from __future__ import annotations

from collections.abc import Mapping

from extender.dialects import stowage
from extender.dialects.dialect import (
    Chosen,
    Claim,
    Claims,
    Dialect,
    GpuLists,
    is_named,
    parse_positive,
    validate_claims,
)
from extender.dialects.pod_resources import Amounts
from extender.k8s.objects import Pod, PodSpec
from packing.model.node_spec import NodeSpec
from packing.model.request import Shares

MIB, GPUS = "fence.example.com/container.*.mib", "fence.example.com/container.*.gpus"


def requested_shares(spec: PodSpec, resources: Amounts, metadata: Mapping[str, str]) -> Shares | None:
    names = [MIB.replace("*", container.name) for container in spec.containers]
    mib = sum(parse_positive(name, metadata[name]) for name in names if name in metadata)
    return Shares(1, 0, mib, resource=stowage.RESOURCE) if mib else None


def claims(pod: Pod, requested: Shares | None) -> Claims | None:
    uuids = [text for name, text in pod.annotations.items() if is_named(frozenset({GPUS}), name)]
    mib = requested.memory_mib if requested else 0
    found = [Claim(uuid, memory_mib=mib) for uuid in uuids]
    return Claims(stowage.RESOURCE, *validate_claims(found, requested)) if uuids else None


def assignment(chosen: Chosen) -> dict[str, str]:
    uuid = chosen.node.gpus[chosen.gpus[0]].uuid
    names = [c.name for c in chosen.pod.spec.containers if MIB.replace("*", c.name) in chosen.pod.annotations]
    return {GPUS.replace("*", name): uuid for name in names}


def assigns(pod: Pod, node: NodeSpec) -> bool:
    return any(is_named(frozenset({MIB}), name) for name in pod.annotations)


DIALECT = Dialect(
    "Fence",
    stowage.RESOURCE,
    requested_shares,
    claims,
    request_annotations=frozenset({MIB}),
    assignment_annotations=frozenset({GPUS}),
    lists=(GpuLists("fence.example.com/only"),),
    assignment=assignment,
    assigns=assigns,
    conditions=("fence.example.com/GpuReady",),
)
