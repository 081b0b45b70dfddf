"""Nodes and pods of the wire, and the records made from them.

A pod of the API is 4 KB of JSON of which placement needs a tenth. These models read that tenth and skip the
rest; any field may be absent or null. ``record()`` shares what many objects have in common.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, Field, ValidationError
from typing_extensions import TypedDict

from extender.dra import reading
from extender.dra.records import DeviceClass, ResourceClaim, ResourceSlice
from extender.inventory import health
from extender.limits import NAME, NODE_TAINTS
from extender.mig_layouts import KEY, NODE_LABEL, layouts_of
from extender.objects import (
    Card,
    Cards,
    Container,
    MigLayouts,
    Node,
    Pairs,
    Pod,
    PodClaim,
    PodSpec,
)
from extender.taints import Taint
from extender.wire_rules import WireAffinity, WireOwner, WireToleration, rules_of

# Domains (with their sub-domains) and bare names of annotations and pod labels that speak of GPUs, queues or
# gangs. All others are dropped: on most pods they outweigh everything that is kept.
_DOMAINS = (
    *(".stowage.dev", ".nvidia.com", ".hami.io", ".koordinator.sh", ".volcano.sh", ".scheduling.k8s.io"),
    *(".kai.scheduler", ".run.ai", ".kueue.x-k8s.io", ".kwok.x-k8s.io", ".aliyun.com"),
)
_BARE_PREFIXES = ("ALIYUN_COM_GPU", "gpu-", "runai-", "pod-group-name")


# The parts are typed dicts: pydantic fills them at half the cost of models, and the garbage collector leaves
# dicts of text alone. Quantities may be written as plain numbers ("cpu: 1"); Kubernetes takes them too.
WireText: TypeAlias = Annotated[str, Field(coerce_numbers_to_str=True)]
_Map: TypeAlias = dict[str, WireText | None] | None


class WireMetadata(TypedDict, total=False):
    name: str | None
    generateName: str | None
    namespace: str | None
    uid: str | None
    labels: _Map
    annotations: _Map
    creationTimestamp: str | None
    deletionTimestamp: str | None
    resourceVersion: str | None
    ownerReferences: list[WireOwner] | None


class _Taint(TypedDict, total=False):
    key: str | None
    value: str | None
    effect: str | None


class _NodeSpec(TypedDict, total=False):
    unschedulable: bool | None
    taints: list[_Taint] | None


class _Condition(TypedDict, total=False):
    type: str | None
    status: str | None


class _NodeStatus(TypedDict, total=False):
    allocatable: _Map
    conditions: list[_Condition] | None


class _Resources(TypedDict, total=False):
    requests: _Map
    limits: _Map


class _Container(TypedDict, total=False):
    name: str | None
    resources: _Resources | None
    restartPolicy: str | None


class _Claim(TypedDict, total=False):
    name: str | None
    resourceClaimName: str | None
    resourceClaimTemplateName: str | None


class WirePodSpec(TypedDict, total=False):
    containers: list[_Container] | None
    initContainers: list[_Container] | None
    resources: _Resources | None
    overhead: _Map
    nodeSelector: _Map
    resourceClaims: list[_Claim] | None
    nodeName: str | None
    schedulerName: str | None
    priority: int | None
    affinity: WireAffinity | None
    tolerations: list[WireToleration] | None


class _Device(TypedDict, total=False):
    resourceID: str | None


class _DeviceResource(TypedDict, total=False):
    name: str | None
    resources: list[_Device] | None


class _ContainerStatus(TypedDict, total=False):
    allocatedResourcesStatus: list[_DeviceResource] | None


class _PodStatus(TypedDict, total=False):
    phase: str | None
    nominatedNodeName: str | None
    startTime: str | None
    containerStatuses: list[_ContainerStatus] | None
    resourceClaimStatuses: list[_Claim] | None


class WireNode(BaseModel):
    """A Node of the wire."""

    metadata: WireMetadata | None = None
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None

    def record(self) -> Node:
        """The node that this manifest describes."""
        metadata, spec, status = self.metadata or {}, self.spec or {}, self.status or {}
        return Node(
            name=sys.intern(metadata.get("name") or ""),
            uid=metadata.get("uid") or "",
            labels=_interned(metadata.get("labels")),
            annotations=_kept(metadata.get("annotations")),
            allocatable=_interned(status.get("allocatable")),
            unschedulable=bool(spec.get("unschedulable")),
            taints=tuple([_taint(t) for t in spec.get("taints") or ()]),
            created=_seconds(metadata.get("creationTimestamp")),
            conditions=_conditions(status.get("conditions") or ()),
        )


class WirePod(BaseModel):
    """A Pod of the wire."""

    metadata: WireMetadata | None = None
    spec: WirePodSpec | None = None
    status: _PodStatus | None = None

    def record(self) -> Pod:
        """The pod that this manifest describes; a namespace that is not given is ``default``."""
        metadata, spec, status = self.metadata or {}, self.spec or {}, self.status or {}
        return Pod(
            namespace=sys.intern(metadata.get("namespace") or "default"),
            name=metadata.get("name") or metadata.get("generateName") or "",
            uid=metadata.get("uid") or "",
            spec=_shared(_spec(spec)),
            node_name=sys.intern(spec.get("nodeName") or ""),
            phase=sys.intern(status.get("phase") or "Pending"),
            scheduler_name=sys.intern(spec.get("schedulerName") or "default-scheduler"),
            priority=spec.get("priority") or 0,
            nominated_node=sys.intern(status.get("nominatedNodeName") or ""),
            deleting=metadata.get("deletionTimestamp") is not None,
            created=_seconds(metadata.get("creationTimestamp")),
            started=_seconds(status.get("startTime")),
            annotations=_kept(metadata.get("annotations")),
            labels=_kept(metadata.get("labels")),
            devices=_devices(status.get("containerStatuses") or ()),
            claims=_claims(status.get("resourceClaimStatuses") or ()),
            rules=rules_of(
                spec.get("affinity"),
                spec.get("tolerations"),
                metadata.get("ownerReferences"),
                len(spec.get("nodeSelector") or ()),
            ),
        )


class WireSlice(BaseModel):
    """A ResourceSlice of the wire."""

    metadata: WireMetadata | None = None
    spec: Any = None

    def record(self) -> ResourceSlice:
        """The slice that this manifest describes."""
        return reading.slice_of((self.metadata or {}).get("name") or "", self.spec)


class WireDeviceClass(BaseModel):
    """A DeviceClass of the wire."""

    metadata: WireMetadata | None = None
    spec: Any = None

    def record(self) -> DeviceClass:
        """The class that this manifest describes."""
        return reading.class_of((self.metadata or {}).get("name") or "", self.spec)


class _Card(TypedDict, total=False):
    type: str | None
    id: str | None
    minor: int | None
    health: bool | None
    resources: _Map


class _CardsSpec(TypedDict, total=False):
    devices: list[_Card] | None


class WireCards(BaseModel):
    """A Device of Koordinator's (``scheduling.koordinator.sh/v1alpha1``) of the wire."""

    metadata: WireMetadata | None = None
    spec: _CardsSpec | None = None

    def record(self) -> Cards:
        """The GPUs that this manifest describes; one without a number is none that pods could be given."""
        cards = [
            Card(minor, one.get("id") or "", one.get("health") is True, _pairs(one.get("resources")))
            for one in (self.spec or {}).get("devices") or ()
            if one.get("type") == "gpu" and (minor := one.get("minor")) is not None
        ]
        return Cards((self.metadata or {}).get("name") or "", tuple(cards))


class WireMigLayouts(BaseModel):
    """A ConfigMap of NVIDIA's MIG manager of the wire."""

    metadata: WireMetadata | None = None
    data: _Map = None

    def record(self) -> MigLayouts:
        """The layouts that this manifest describes, without those that cannot be read."""
        metadata = self.metadata or {}
        name = f"{metadata.get('namespace') or 'default'}/{metadata.get('name') or ''}"
        node = (metadata.get("labels") or {}).get(NODE_LABEL) or ""
        return MigLayouts(name, node, *layouts_of((self.data or {}).get(KEY) or ""))


class WireClaim(BaseModel):
    """A ResourceClaim of the wire."""

    metadata: WireMetadata | None = None
    spec: Any = None
    status: Any = None

    def record(self) -> ResourceClaim:
        """The claim that this manifest describes; a namespace that is not given is ``default``."""
        metadata = self.metadata or {}
        namespace = sys.intern(metadata.get("namespace") or "default")
        return reading.claim_of(namespace, metadata.get("name") or "", self.spec, self.status)


def _spec(spec: WirePodSpec) -> PodSpec:
    requests, limits = _completed(spec.get("resources"))
    return PodSpec(
        containers=tuple([_container(c) for c in spec.get("containers") or ()]),
        init_containers=tuple([_container(c) for c in spec.get("initContainers") or ()]),
        requests=requests,
        limits=limits,
        overhead=_pairs(spec.get("overhead")),
        node_selector=_pairs(spec.get("nodeSelector")),
        claims=tuple([_claim(c) for c in spec.get("resourceClaims") or ()]),
    )


def _container(container: _Container) -> Container:
    requests, limits = _completed(container.get("resources"))
    return Container(
        container.get("name") or "", requests, limits, container.get("restartPolicy") == "Always"
    )


def _claim(claim: _Claim) -> PodClaim:
    template = claim.get("resourceClaimTemplateName") or ""
    return PodClaim(claim.get("name") or "", claim.get("resourceClaimName") or "", template)


def _taint(taint: _Taint) -> Taint:
    return Taint(taint.get("key") or "", taint.get("value") or "", taint.get("effect") or "")


def _conditions(conditions: Iterable[_Condition]) -> Pairs:
    """Those that speak of GPUs: heartbeats change the others every few minutes."""
    named = ((one.get("type") or "", one.get("status") or "") for one in conditions)
    kept = ((sys.intern(kind), sys.intern(status[:NAME])) for kind, status in named if health.matters(kind))
    return tuple(islice(kept, NODE_TAINTS))


def _devices(statuses: Iterable[_ContainerStatus]) -> Pairs:
    resources = [r for s in statuses for r in s.get("allocatedResourcesStatus") or ()]
    devices = [(r.get("name") or "", d) for r in resources for d in r.get("resources") or ()]
    return tuple([(name, device.get("resourceID") or "") for name, device in devices])


def _claims(statuses: Iterable[_Claim]) -> Pairs:
    return tuple([(s.get("name") or "", claim) for s in statuses if (claim := s.get("resourceClaimName"))])


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
    if not resources:
        return (), ()
    limits = _pairs(resources.get("limits"))
    return tuple(sorted({**dict(limits), **dict(_pairs(resources.get("requests")))}.items())), limits


def _seconds(timestamp: str | None) -> float:
    try:
        return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0
    except (ValueError, OverflowError):
        return 0.0  # only orders pods by age: not worth losing the object


def complaint(error: ValidationError) -> str:
    """The first thing that is wrong, and where, in one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    what = "Input should be an object" if first["type"] in ("model_type", "dict_type") else first["msg"]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), what)))
