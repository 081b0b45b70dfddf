"""Reads a Pod from its manifest: the fields that placement needs, about a tenth of its 4 KB of JSON.

Any field may be absent or null. Every text and list of the record is bounded by ``limits.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, TypeAlias

from pydantic import BaseModel
from typing_extensions import TypedDict

from extender.k8s.affinity import (
    NO_CONSTRAINTS,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    SchedulingConstraints,
    Toleration,
)
from extender.k8s.metadata import (
    Metadata,
    Name,
    OwnerManifest,
    Text,
    all_entries,
    drop_large_entries,
    relevant_entries,
    unix_seconds,
)
from extender.k8s.objects import Owner, Pairs, Pod
from extender.k8s.pod_spec_parser import ClaimManifest, PlacementSpecManifest, parse_spec
from extender.untrusted.bounded_cache import bounded_cache
from extender.untrusted.limits import KEY, POD_ANNOTATION, POD_ANNOTATIONS, REPORTED_DEVICES, SELECTOR_ITEMS


class _Requirement(TypedDict, total=False):
    key: str | None
    operator: str | None
    values: list[Text] | None


class _Term(TypedDict, total=False):
    matchExpressions: list[_Requirement] | None
    matchFields: list[_Requirement] | None


class _NodeSelector(TypedDict, total=False):
    nodeSelectorTerms: list[_Term] | None


class _NodeAffinity(TypedDict, total=False):
    requiredDuringSchedulingIgnoredDuringExecution: _NodeSelector | None


class _Affinity(TypedDict, total=False):
    nodeAffinity: _NodeAffinity | None
    podAffinity: Any
    podAntiAffinity: Any


class _Toleration(TypedDict, total=False):
    key: str | None
    operator: str | None
    value: Text | None
    effect: str | None


class _Volume(TypedDict, total=False):
    persistentVolumeClaim: Any
    ephemeral: Any


class _SchedulingGroup(TypedDict, total=False):
    podGroupName: Name | None


class _Spec(PlacementSpecManifest, total=False):
    nodeName: Name | None
    schedulerName: str | None
    priority: int | None
    priorityClassName: Name | None
    preemptionPolicy: str | None
    schedulingGroup: _SchedulingGroup | None
    affinity: _Affinity | None
    tolerations: list[_Toleration] | None
    topologySpreadConstraints: list[Any] | None
    volumes: list[_Volume] | None


class _Device(TypedDict, total=False):
    resourceID: str | None


class _DeviceResource(TypedDict, total=False):
    name: str | None
    resources: list[_Device] | None


class _ContainerStatus(TypedDict, total=False):
    allocatedResourcesStatus: list[_DeviceResource] | None


class _Condition(TypedDict, total=False):
    type: str | None
    status: str | None
    reason: str | None
    lastTransitionTime: str | None


class _Status(TypedDict, total=False):
    phase: str | None
    conditions: list[_Condition] | None
    nominatedNodeName: Name | None
    startTime: str | None
    containerStatuses: list[_ContainerStatus] | None
    resourceClaimStatuses: list[ClaimManifest] | None


class PodManifest(BaseModel):
    metadata: Metadata | None = None
    spec: _Spec | None = None
    status: _Status | None = None

    def record(self) -> Pod:
        """The pod. Its namespace is ``default`` if the manifest has none."""
        metadata, spec, status = self.metadata or {}, self.spec or {}, self.status or {}
        raw = all_entries(metadata.get("labels")), relevant_entries(metadata.get("annotations"))
        labels, annotations, unreadable, too_many = drop_large_entries(*raw, POD_ANNOTATION, POD_ANNOTATIONS)
        owners = metadata.get("ownerReferences") or []
        parsed_spec, problem = parse_spec(spec)
        devices = _devices(status.get("containerStatuses") or ())
        conditions = status.get("conditions") or ()
        disruption, disrupted = _reason(conditions, "DisruptionTarget", "True")
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
            priority_class=sys.intern(spec.get("priorityClassName") or ""),
            never_preempts=spec.get("preemptionPolicy") == "Never",
            nominated_node=sys.intern(status.get("nominatedNodeName") or ""),
            deleting=metadata.get("deletionTimestamp") is not None,
            created=unix_seconds(metadata.get("creationTimestamp")),
            started=unix_seconds(status.get("startTime")),
            annotations=annotations,
            labels=labels,
            devices=devices,
            claims=_claims(status.get("resourceClaimStatuses") or ()),
            scheduling_constraints=_scheduling_constraints(spec, owners),
            owner=_owner(owners),
            pod_group=sys.intern((spec.get("schedulingGroup") or {}).get("podGroupName") or ""),
            unscheduled=_reason(conditions, "PodScheduled", "False")[0],
            disruption=disruption,
            disrupted=disrupted,
            has_other_constraints=_has_other_constraints(spec),
            unreadable=unreadable,
            problem=problem or too_many,
        )


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
        or any(v.get("persistentVolumeClaim") or v.get("ephemeral") for v in spec.get("volumes") or ())
        or any(p.get("hostPort") for c in containers for p in c.get("ports") or ())
    )


def _devices(statuses: Iterable[_ContainerStatus]) -> Pairs:
    resources = [r for s in statuses for r in s.get("allocatedResourcesStatus") or ()]
    devices = [(r.get("name") or "", d) for r in resources for d in r.get("resources") or ()]
    return tuple([(name, device.get("resourceID") or "") for name, device in devices])


def _claims(statuses: Iterable[ClaimManifest]) -> Pairs:
    return tuple([(s.get("name") or "", claim) for s in statuses if (claim := s.get("resourceClaimName"))])


# Node affinity and tolerations of a manifest as tuples: hashable, so that equal constraints are parsed once.
_RawRequirement: TypeAlias = tuple[str, str, tuple[str, ...]]
_RawTerm: TypeAlias = tuple[tuple[_RawRequirement, ...], tuple[_RawRequirement, ...]]
_RawToleration: TypeAlias = tuple[str, str, str, str]

_LARGE_SELECTOR = "node selector is too large to be read"
_LARGE_AFFINITY = "node affinity is too large to be read"
_LARGE_TOLERATIONS = "tolerations are too large to be read"


def _scheduling_constraints(spec: _Spec, owners: list[OwnerManifest]) -> SchedulingConstraints:
    """The constraints of a pod; equal ones are one object. Beyond a limit they have only a problem."""
    owner, tolerations = _owner_kind(owners), spec.get("tolerations") or ()
    node_affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = (required or {}).get("nodeSelectorTerms") or ()
    for entries, problem in (
        (spec.get("nodeSelector") or (), _LARGE_SELECTOR),
        (terms, _LARGE_AFFINITY),
        (tolerations, _LARGE_TOLERATIONS),
    ):
        if len(entries) > SELECTOR_ITEMS:
            return SchedulingConstraints(owner_kind=owner, problem=problem)
    raw_terms = None if required is None else tuple(map(_raw_term, terms))
    return _constraints(raw_terms, tuple(map(_raw_toleration, tolerations)), owner)


def _raw_term(term: _Term) -> _RawTerm:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    return tuple(map(_raw_requirement, expressions)), tuple(map(_raw_requirement, fields))


def _raw_requirement(requirement: _Requirement) -> _RawRequirement:
    key, operator = requirement.get("key") or "", requirement.get("operator") or ""
    return key, operator, tuple(requirement.get("values") or ())


def _raw_toleration(toleration: _Toleration) -> _RawToleration:
    key, operator = toleration.get("key") or "", toleration.get("operator") or ""
    return key, operator, toleration.get("value") or "", toleration.get("effect") or ""


def _owner_kind(owners: Iterable[OwnerManifest]) -> str:
    """The kind of the controller; without a controller, the kind that is last in the alphabet."""
    kinds = [(owner.get("controller") is True, owner.get("kind") or "") for owner in owners]
    return sys.intern(max(kinds, default=(False, ""))[1][:KEY])


def _texts(term: _RawTerm) -> Iterator[str]:
    return (text for part in term for key, operator, values in part for text in (key, operator, *values))


def _size(terms: tuple[_RawTerm, ...] | None, tolerations: tuple[_RawToleration, ...], owner: str) -> int:
    """Characters of all texts, plus 16 for each text and term."""
    texts = [text for term in terms or () for text in _texts(term)]
    texts += [text for toleration in tolerations for text in toleration]
    return 16 + sum(map(len, texts)) + 16 * (len(texts) + len(terms or ()))


@bounded_cache(8192, weigh=_size)
def _constraints(
    terms: tuple[_RawTerm, ...] | None, tolerations: tuple[_RawToleration, ...], owner: str
) -> SchedulingConstraints:
    # Cached because a cluster with 30,000 pods has a few hundred templates.
    longest_of_terms = _longest(text for term in terms or () for text in _texts(term))
    if _items(terms or ()) > SELECTOR_ITEMS or longest_of_terms > KEY:
        return SchedulingConstraints(owner_kind=owner, problem=_LARGE_AFFINITY)
    if _longest(text for toleration in tolerations for text in toleration) > KEY:
        return SchedulingConstraints(owner_kind=owner, problem=_LARGE_TOLERATIONS)
    node_affinity = (
        None if terms is None else tuple(NodeSelectorTerm(*map(_requirements, term)) for term in terms)
    )
    constraints = SchedulingConstraints(node_affinity, tuple(Toleration(*raw) for raw in tolerations), owner)
    return NO_CONSTRAINTS if constraints == NO_CONSTRAINTS else constraints


def _requirements(raw: tuple[_RawRequirement, ...]) -> tuple[NodeSelectorRequirement, ...]:
    return tuple(NodeSelectorRequirement(*one) for one in raw)


def _items(terms: tuple[_RawTerm, ...]) -> int:
    """How many values all terms have; each term, and each requirement without values, counts as one more."""
    return sum(1 + sum(max(1, len(values)) for part in term for _, _, values in part) for term in terms)


def _longest(texts: Iterable[str]) -> int:
    return max(map(len, texts), default=0)
