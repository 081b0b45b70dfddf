"""Reads a Pod from its manifest: the fields that placement needs, about a tenth of its 4 KB of JSON.

Any field may be absent or null. Every text and list of the record is bounded by ``limits.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from functools import lru_cache
from itertools import islice
from typing import Any

from msgspec import Struct
from pydantic import BaseModel
from typing_extensions import TypedDict

from extender.k8s.constraints_parser import AffinityManifest, TolerationManifest, parse_constraints
from extender.k8s.metadata import (
    Metadata,
    Name,
    OwnerManifest,
    all_entries,
    drop_large_entries,
    relevant_entries,
    unix_seconds,
)
from extender.k8s.objects import Owner, Pairs, Pod, PodSpec
from extender.k8s.pod_resize import HeldByContainer, HeldManifest, held_spec
from extender.k8s.pod_spec_parser import ClaimManifest, PlacementSpecManifest, parse_spec
from extender.k8s.quantity import QuantityError
from extender.untrusted.limits import (
    KEY,
    POD_ANNOTATION,
    POD_ANNOTATIONS,
    REPORTED_DEVICES,
    SCHEDULING_GATES,
)


class _Volume(TypedDict, total=False):
    persistentVolumeClaim: Any
    ephemeral: Any
    hostPath: Any


class _SchedulingGroup(TypedDict, total=False):
    podGroupName: Name | None


class _SchedulingGate(TypedDict, total=False):
    name: Name | None


class _Spec(PlacementSpecManifest, total=False):
    nodeName: Name | None
    schedulerName: str | None
    priority: int | None
    priorityClassName: Name | None
    preemptionPolicy: str | None
    schedulingGroup: _SchedulingGroup | None
    schedulingGates: list[_SchedulingGate] | None
    affinity: AffinityManifest | None
    tolerations: list[TolerationManifest] | None
    topologySpreadConstraints: list[Any] | None
    volumes: list[_Volume] | None


class _Device(TypedDict, total=False):
    resourceID: str | None


class _DeviceResource(TypedDict, total=False):
    name: str | None
    resources: list[_Device] | None


class _ContainerStatus(HeldByContainer, total=False):
    allocatedResourcesStatus: list[_DeviceResource] | None


class _Condition(TypedDict, total=False):
    type: str | None
    status: str | None
    reason: str | None
    lastTransitionTime: str | None


class _Status(HeldManifest, total=False):
    phase: str | None
    conditions: list[_Condition] | None
    nominatedNodeName: Name | None
    startTime: str | None
    containerStatuses: list[_ContainerStatus] | None
    initContainerStatuses: list[HeldByContainer] | None
    resourceClaimStatuses: list[ClaimManifest] | None


class PodManifest(BaseModel):
    metadata: Metadata | None = None
    spec: _Spec | None = None
    status: _Status | None = None

    def record(self) -> Pod:
        """The pod. Its namespace is ``default`` if the manifest has none."""
        return _record(self.metadata or {}, self.spec or {}, self.status or {})


class NarrowPod(Struct, gc=False):
    """The same fields for the narrow decoder (``extender/source/narrow.py``)."""

    metadata: Metadata | None = None
    spec: _Spec | None = None
    status: _Status | None = None

    def record(self) -> Pod:
        """As ``PodManifest.record``."""
        return _record(self.metadata or {}, self.spec or {}, self.status or {})


def _record(metadata: Metadata, spec: _Spec, status: _Status) -> Pod:
    raw = all_entries(metadata.get("labels")), relevant_entries(metadata.get("annotations"))
    labels, annotations, unreadable, too_many = drop_large_entries(*raw, POD_ANNOTATION, POD_ANNOTATIONS)
    owners = metadata.get("ownerReferences") or []
    parsed_spec, problem = parse_spec(spec)
    devices = _devices(status.get("containerStatuses") or ())
    conditions, volumes = status.get("conditions") or (), spec.get("volumes") or ()
    has_volume_claims = any([v.get("persistentVolumeClaim") or v.get("ephemeral") for v in volumes])
    disruption, disrupted = _reason(conditions, "DisruptionTarget", "True")
    if len(devices) > REPORTED_DEVICES:
        devices = devices[:REPORTED_DEVICES]
        problem = f"kubelet reports more than {REPORTED_DEVICES} devices"
    resized, unread = _resized(spec, status, conditions) if spec.get("nodeName") else (None, "")
    pod = Pod(
        namespace=sys.intern(metadata.get("namespace") or "default"),
        name=metadata.get("name") or metadata.get("generateName") or "",
        uid=metadata.get("uid") or "",
        spec=parsed_spec,
        resized=resized,
        node_name=sys.intern(spec.get("nodeName") or ""),
        phase=sys.intern((status.get("phase") or "Pending")[:KEY]),
        scheduler_name=sys.intern((spec.get("schedulerName") or "default-scheduler")[:KEY]),
        priority=spec.get("priority") or 0,
        priority_class=sys.intern(spec.get("priorityClassName") or ""),
        never_preempts=spec.get("preemptionPolicy") == "Never",
        nominated_node=sys.intern(status.get("nominatedNodeName") or ""),
        deleting=metadata.get("deletionTimestamp") is not None,
        ends=unix_seconds(metadata.get("deletionTimestamp")),
        created=unix_seconds(metadata.get("creationTimestamp")),
        started=unix_seconds(status.get("startTime")),
        annotations=annotations,
        labels=labels,
        devices=devices,
        claims=_claims(status.get("resourceClaimStatuses") or ()),
        scheduling_constraints=parse_constraints(
            spec.get("nodeSelector"), spec.get("affinity"), spec.get("tolerations"), _owner_kind(owners)
        ),
        owner=_owner(owners),
        pod_group=sys.intern((spec.get("schedulingGroup") or {}).get("podGroupName") or ""),
        gates=_gates(spec.get("schedulingGates") or ()),
        unscheduled=_reason(conditions, "PodScheduled", "False")[0],
        disruption=disruption,
        disrupted=disrupted,
        has_other_constraints=has_volume_claims or _has_other_constraints(spec),
        has_local_data=any([_is_host_directory(v) for v in volumes if "hostPath" in v]),
        has_volume_claims=has_volume_claims,
        only_pauses=_only_pauses(spec),
        unreadable=unreadable,
        problem=problem or too_many or unread,
    )
    return pod if pod.node_name else pod.with_version(metadata.get("resourceVersion") or "")


def _resized(spec: _Spec, status: _Status, conditions: Collection[_Condition]) -> tuple[PodSpec | None, str]:
    """What the pod holds if that is not what its spec requests, and what of that cannot be read."""
    statuses = (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ()))

    def is_infeasible() -> bool:
        pending = (one.get("reason") for one in conditions if one.get("type") == "PodResizePending")
        return next(pending, "") == "Infeasible"

    try:
        held = held_spec(spec, statuses, status, is_infeasible)
    except QuantityError as error:
        return None, f"what it holds while it is resized: {error}"
    return (parse_spec(held)[0], "") if held else (None, "")


def _owner(owners: Iterable[OwnerManifest]) -> Owner | None:
    """The controller, None without one."""
    for owner in owners:
        if owner.get("controller") is True:
            return _owner_of((owner.get("kind") or "")[:KEY], owner.get("name") or "", owner.get("uid") or "")
    return None


@lru_cache(maxsize=1024)  # of three names each, so its size is bounded
def _owner_of(kind: str, name: str, uid: str) -> Owner:
    """Pods of one owner share one object."""
    return Owner(sys.intern(kind), sys.intern(name), sys.intern(uid))


def _owner_kind(owners: Iterable[OwnerManifest]) -> str:
    """The kind of the controller; without a controller, the kind that is last in the alphabet."""
    kinds = [(owner.get("controller") is True, owner.get("kind") or "") for owner in owners]
    return sys.intern(max(kinds, default=(False, ""))[1][:KEY])


def _reason(conditions: Iterable[_Condition], kind: str, status: str) -> tuple[str, float]:
    """The reason of the condition of this type and its time, "" and 0 unless it has this status."""
    for condition in conditions:
        if condition.get("type") == kind and condition.get("status") == status:
            reason = sys.intern((condition.get("reason") or "unknown")[:KEY])
            return reason, unix_seconds(condition.get("lastTransitionTime"))
    return "", 0.0


def _has_other_constraints(spec: _Spec) -> bool:
    affinity, containers = spec.get("affinity") or {}, spec.get("containers") or ()
    return bool(
        affinity.get("podAffinity")
        or affinity.get("podAntiAffinity")
        or spec.get("topologySpreadConstraints")
        or any([port.get("hostPort") for one in containers for port in one.get("ports") or ()])
    )


def _is_host_directory(volume: _Volume) -> bool:
    """Whether the volume may hold data of the node: ``HostPathType`` of k8s.io/api core/v1."""
    host_path = volume.get("hostPath")
    if not isinstance(host_path, dict):
        return False
    return host_path.get("type") not in ("Socket", "CharDevice", "BlockDevice")


def _only_pauses(spec: _Spec) -> bool:
    """Whether all containers run an image named ``pause``, as registry.k8s.io/pause:3.10 and its mirrors, or
    ``pause-amd64``, as in older releases."""
    containers = spec.get("containers") or ()
    for container in containers:
        if not _is_pause(container.get("image")):
            return False
    return bool(containers)


def _is_pause(image: object) -> bool:
    if not isinstance(image, str) or "pause" not in image:
        return False
    name = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
    return name == "pause" or name.startswith("pause-")


def _gates(gates: Collection[_SchedulingGate]) -> tuple[str, ...]:
    return tuple(sys.intern(gate.get("name") or "") for gate in islice(gates, SCHEDULING_GATES))


def _devices(statuses: Iterable[_ContainerStatus]) -> Pairs:
    resources = [r for s in statuses for r in s.get("allocatedResourcesStatus") or ()]
    devices = [(r.get("name") or "", d) for r in resources for d in r.get("resources") or ()]
    return tuple([(name, device.get("resourceID") or "") for name, device in devices])


def _claims(statuses: Iterable[ClaimManifest]) -> Pairs:
    return tuple([(s.get("name") or "", claim) for s in statuses if (claim := s.get("resourceClaimName"))])
