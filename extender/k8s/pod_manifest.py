"""Reads a Pod from its manifest: the tenth of its 4 KB of JSON that placement needs.

Any field may be absent or null. Whatever the author of the pod wrote, every text and list of the record is
bounded by ``limits.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from pydantic import BaseModel
from typing_extensions import TypedDict

from extender.k8s.affinity_parser import AffinityManifest, TolerationManifest, scheduling_constraints
from extender.k8s.metadata import Metadata, Name, drop_large_entries, relevant_entries, unix_seconds
from extender.k8s.objects import Pairs, Pod
from extender.k8s.pod_spec_parser import ClaimManifest, PlacementSpecManifest, parse_spec
from extender.untrusted.limits import KEY, POD_ANNOTATION, POD_ANNOTATIONS, REPORTED_DEVICES


class PodSpecManifest(PlacementSpecManifest, total=False):
    nodeName: Name | None
    schedulerName: str | None
    priority: int | None
    affinity: AffinityManifest | None
    tolerations: list[TolerationManifest] | None


class _Device(TypedDict, total=False):
    resourceID: str | None


class _DeviceResource(TypedDict, total=False):
    name: str | None
    resources: list[_Device] | None


class _ContainerStatus(TypedDict, total=False):
    allocatedResourcesStatus: list[_DeviceResource] | None


class _Status(TypedDict, total=False):
    phase: str | None
    nominatedNodeName: Name | None
    startTime: str | None
    containerStatuses: list[_ContainerStatus] | None
    resourceClaimStatuses: list[ClaimManifest] | None


class PodManifest(BaseModel):
    metadata: Metadata | None = None
    spec: PodSpecManifest | None = None
    status: _Status | None = None

    def record(self) -> Pod:
        """The pod. Its namespace is ``default`` if the manifest has none."""
        metadata, spec, status = self.metadata or {}, self.spec or {}, self.status or {}
        labels, annotations, unreadable, too_many = drop_large_entries(
            relevant_entries(metadata.get("labels")),
            relevant_entries(metadata.get("annotations")),
            POD_ANNOTATION,
            POD_ANNOTATIONS,
        )
        parsed_spec, problem = parse_spec(spec)
        devices = _devices(status.get("containerStatuses") or ())
        if len(devices) > REPORTED_DEVICES:
            devices = devices[:REPORTED_DEVICES]
            problem = f"kubelet reports more than {REPORTED_DEVICES} devices"
        return Pod(
            namespace=sys.intern(metadata.get("namespace") or "default"),
            name=metadata.get("name") or metadata.get("generateName") or "",
            uid=metadata.get("uid") or "",
            spec=parsed_spec,
            node_name=sys.intern(spec.get("nodeName") or ""),
            phase=sys.intern((status.get("phase") or "Pending")[:KEY]),
            scheduler_name=sys.intern((spec.get("schedulerName") or "default-scheduler")[:KEY]),
            priority=spec.get("priority") or 0,
            nominated_node=sys.intern(status.get("nominatedNodeName") or ""),
            deleting=metadata.get("deletionTimestamp") is not None,
            created=unix_seconds(metadata.get("creationTimestamp")),
            started=unix_seconds(status.get("startTime")),
            annotations=annotations,
            labels=labels,
            devices=devices,
            claims=_claims(status.get("resourceClaimStatuses") or ()),
            scheduling_constraints=scheduling_constraints(
                spec.get("affinity"),
                spec.get("tolerations"),
                metadata.get("ownerReferences"),
                len(spec.get("nodeSelector") or ()),
            ),
            unreadable=unreadable,
            problem=problem or too_many,
        )


def _devices(statuses: Iterable[_ContainerStatus]) -> Pairs:
    resources = [r for s in statuses for r in s.get("allocatedResourcesStatus") or ()]
    devices = [(r.get("name") or "", d) for r in resources for d in r.get("resources") or ()]
    return tuple([(name, device.get("resourceID") or "") for name, device in devices])


def _claims(statuses: Iterable[ClaimManifest]) -> Pairs:
    return tuple([(s.get("name") or "", claim) for s in statuses if (claim := s.get("resourceClaimName"))])
