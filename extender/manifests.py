"""Nodes and pods of the wire, and the records made from them.

A pod of the API is 4 KB of JSON of which placement needs a tenth. These models read that tenth and skip the
rest; any field may be absent or null. ``record()`` shares what many objects have in common.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from extender.objects import Container, Node, Pairs, Pod, PodClaim, PodSpec, Taint

# Domains (with their sub-domains) and bare names of annotations and pod labels that speak of GPUs, queues or
# gangs. All others are dropped: on most pods they outweigh everything that is kept.
_DOMAINS = (
    *(".stowage.dev", ".nvidia.com", ".hami.io", ".koordinator.sh", ".volcano.sh", ".scheduling.k8s.io"),
    *(".kai.scheduler", ".run.ai", ".kueue.x-k8s.io", ".kwok.x-k8s.io", ".aliyun.com"),
)
_BARE_PREFIXES = ("ALIYUN_COM_GPU", "gpu-", "runai-", "pod-group-name")


class _Wire(BaseModel):
    # Quantities may be written as plain numbers ("cpu: 1" in YAML); Kubernetes takes them too.
    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", coerce_numbers_to_str=True)


_Map: TypeAlias = dict[str, str | None] | None


class _Metadata(_Wire):
    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    labels: _Map = None
    annotations: _Map = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    resource_version: str | None = None


class _Taint(_Wire):
    key: str | None = None
    value: str | None = None
    effect: str | None = None


class _NodeSpec(_Wire):
    unschedulable: bool | None = None
    taints: list[_Taint] | None = None


class _NodeStatus(_Wire):
    allocatable: _Map = None


class WireNode(_Wire):
    """A Node of the wire."""

    metadata: _Metadata | None = None
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None

    def record(self) -> Node:
        """The node that this manifest describes."""
        metadata, spec = self.metadata or _Metadata(), self.spec or _NodeSpec()
        return Node(
            name=sys.intern(metadata.name or ""),
            uid=metadata.uid or "",
            labels=_interned(metadata.labels),
            annotations=_kept(metadata.annotations),
            allocatable=_interned(self.status.allocatable if self.status else None),
            unschedulable=bool(spec.unschedulable),
            taints=tuple(Taint(t.key or "", t.value or "", t.effect or "") for t in spec.taints or ()),
            created=_seconds(metadata.creation_timestamp),
        )


class _Resources(_Wire):
    requests: _Map = None
    limits: _Map = None


class _Container(_Wire):
    name: str | None = None
    resources: _Resources | None = None
    restart_policy: str | None = None

    def record(self) -> Container:
        requests, limits = _completed(self.resources)
        return Container(self.name or "", requests, limits, self.restart_policy == "Always")


class _PodClaim(_Wire):
    name: str | None = None
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class _PodSpec(_Wire):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    resources: _Resources | None = None
    overhead: _Map = None
    node_selector: _Map = None
    resource_claims: list[_PodClaim] | None = None
    node_name: str | None = None
    scheduler_name: str | None = None
    priority: int | None = None

    def record(self) -> PodSpec:
        requests, limits = _completed(self.resources)
        return _shared(
            PodSpec(
                containers=tuple(c.record() for c in self.containers or ()),
                init_containers=tuple(c.record() for c in self.init_containers or ()),
                requests=requests,
                limits=limits,
                overhead=_pairs(self.overhead),
                node_selector=_pairs(self.node_selector),
                claims=tuple(
                    PodClaim(c.name or "", c.resource_claim_name or "", c.resource_claim_template_name or "")
                    for c in self.resource_claims or ()
                ),
            )
        )


class _Device(_Wire):
    resource_id: str | None = Field(default=None, alias="resourceID")


class _DeviceResource(_Wire):
    name: str | None = None
    resources: list[_Device] | None = None


class _ContainerStatus(_Wire):
    allocated_resources_status: list[_DeviceResource] | None = None


class _ClaimStatus(_Wire):
    name: str | None = None
    resource_claim_name: str | None = None


class _PodStatus(_Wire):
    phase: str | None = None
    nominated_node_name: str | None = None
    start_time: str | None = None
    container_statuses: list[_ContainerStatus] | None = None
    resource_claim_statuses: list[_ClaimStatus] | None = None

    def devices(self) -> Pairs:
        resources = (r for s in self.container_statuses or () for r in s.allocated_resources_status or ())
        return tuple((r.name or "", d.resource_id or "") for r in resources for d in r.resources or ())

    def claims(self) -> Pairs:
        statuses = self.resource_claim_statuses or ()
        return tuple((s.name or "", s.resource_claim_name) for s in statuses if s.resource_claim_name)


class WirePod(_Wire):
    """A Pod of the wire."""

    metadata: _Metadata | None = None
    spec: _PodSpec | None = None
    status: _PodStatus | None = None

    def record(self) -> Pod:
        """The pod that this manifest describes; a namespace that is not given is ``default``."""
        metadata, spec = self.metadata or _Metadata(), self.spec or _PodSpec()
        status = self.status or _PodStatus()
        return Pod(
            namespace=sys.intern(metadata.namespace or "default"),
            name=metadata.name or metadata.generate_name or "",
            uid=metadata.uid or "",
            spec=spec.record(),
            node_name=sys.intern(spec.node_name or ""),
            phase=sys.intern(status.phase or "Pending"),
            scheduler_name=sys.intern(spec.scheduler_name or "default-scheduler"),
            priority=spec.priority or 0,
            nominated_node=sys.intern(status.nominated_node_name or ""),
            deleting=metadata.deletion_timestamp is not None,
            created=_seconds(metadata.creation_timestamp),
            started=_seconds(status.start_time),
            annotations=_kept(metadata.annotations),
            labels=_kept(metadata.labels),
            devices=status.devices(),
            claims=status.claims(),
        )


@lru_cache(maxsize=8192)
def _shared(spec: PodSpec) -> PodSpec:
    # 30,000 pods come from a few hundred templates: the first of equal specs stands for all of them.
    return spec


@lru_cache(maxsize=4096)
def _matters(key: str) -> bool:
    domain, slash, _ = f".{key}".partition("/")
    return domain.endswith(_DOMAINS) if slash else key.startswith(_BARE_PREFIXES)


_NOTHING: Mapping[str, str] = {}


def _kept(entries: _Map) -> Mapping[str, str]:
    kept = {sys.intern(k): v or "" for k, v in (entries or {}).items() if _matters(k)}
    return kept or _NOTHING


def _interned(entries: _Map) -> Mapping[str, str]:
    return {sys.intern(k): sys.intern(v) for k, v in entries.items() if v is not None} if entries else {}


def _pairs(entries: Mapping[str, str | None] | None) -> Pairs:
    return tuple(sorted([(k, v) for k, v in entries.items() if v is not None])) if entries else ()


def _completed(resources: _Resources | None) -> tuple[Pairs, Pairs]:
    # SetDefaults_Pod of k8s.io/kubernetes: what has a limit and no request requests its limit.
    if resources is None:
        return (), ()
    limits = _pairs(resources.limits)
    return tuple(sorted({**dict(limits), **dict(_pairs(resources.requests))}.items())), limits


def _seconds(timestamp: str | None) -> float:
    try:
        return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0
    except (ValueError, OverflowError):
        return 0.0  # only orders pods by age: not worth losing the object


def complaint(error: ValidationError) -> str:
    """The first thing that is wrong, and where, in one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    what = "Input should be an object" if first["type"] == "model_type" else first["msg"]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), what)))
