"""Reads a Node from its manifest, within the limits of ``limits.py``. Any field may be absent or null."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from itertools import islice

from msgspec import Struct
from pydantic import BaseModel
from typing_extensions import TypedDict

from extender.k8s.affinity import Taint
from extender.k8s.gpu_health import is_gpu_condition
from extender.k8s.metadata import (
    Metadata,
    TextMap,
    drop_large_entries,
    interned,
    relevant_entries,
    unix_seconds,
)
from extender.k8s.objects import Node, Pairs
from extender.untrusted.limits import (
    NAME,
    NODE_ANNOTATION,
    NODE_ANNOTATIONS,
    NODE_CONDITIONS,
    NODE_TAINTS,
    RESOURCES,
)


class _Taint(TypedDict, total=False):
    key: str | None
    value: str | None
    effect: str | None


class _Spec(TypedDict, total=False):
    unschedulable: bool | None
    taints: list[_Taint] | None


class _Condition(TypedDict, total=False):
    type: str | None
    status: str | None


class _Status(TypedDict, total=False):
    allocatable: TextMap
    capacity: TextMap
    conditions: list[_Condition] | None


class NodeManifest(BaseModel):
    metadata: Metadata | None = None
    spec: _Spec | None = None
    status: _Status | None = None

    def record(self) -> Node:
        """The node."""
        return _record(self.metadata or {}, self.spec or {}, self.status or {})


class NarrowNode(Struct, gc=False):
    """The same fields for the narrow decoder (``extender/source/narrow.py``)."""

    metadata: Metadata | None = None
    spec: _Spec | None = None
    status: _Status | None = None

    def record(self) -> Node:
        """As ``NodeManifest.record``."""
        return _record(self.metadata or {}, self.spec or {}, self.status or {})


def _record(metadata: Metadata, spec: _Spec, status: _Status) -> Node:
    raw = interned(metadata.get("labels")), relevant_entries(metadata.get("annotations"))
    labels, annotations, unreadable, problem = drop_large_entries(*raw, NODE_ANNOTATION, NODE_ANNOTATIONS)
    allocatable, taints = interned(status.get("allocatable")), spec.get("taints") or []
    if len(allocatable) > RESOURCES or len(taints) > NODE_TAINTS:
        allocatable, taints, too_many = _within_limits(allocatable, taints)
        problem = problem or too_many
    others = _differing(status.get("capacity") or {}, allocatable)
    return Node(
        name=sys.intern(metadata.get("name") or ""),
        uid=metadata.get("uid") or "",
        labels=labels,
        annotations=annotations,
        allocatable=allocatable,
        capacity=others,
        unschedulable=bool(spec.get("unschedulable")),
        taints=tuple([_taint(taint) for taint in taints]),
        created=unix_seconds(metadata.get("creationTimestamp")),
        conditions=_gpu_conditions(status.get("conditions") or ()),
        unreadable=unreadable,
        problem=problem,
    )


def _differing(capacity: Mapping[str, str | None], allocatable: Mapping[str, str]) -> Mapping[str, str]:
    """The extended resources of which there is another amount than ``allocatable`` says. Kubelet counts
    unhealthy devices in ``capacity`` only, and so those of a device plugin that is gone (``GetCapacity`` of
    pkg/kubelet/cm/devicemanager/manager.go in kubernetes/kubernetes)."""
    found = [(k, v) for k, v in capacity.items() if v and v != "0" and "/" in k and allocatable.get(k) != v]
    return interned(dict(found[:RESOURCES]))


def _within_limits(
    allocatable: Mapping[str, str], taints: list[_Taint]
) -> tuple[Mapping[str, str], list[_Taint], str]:
    """The resources and taints that are kept, and which limit they exceed."""
    problem = ""
    if len(allocatable) > RESOURCES:  # kubelet keeps the MIG profiles of earlier layouts, with 0 instances
        allocatable = {name: text for name, text in allocatable.items() if text != "0"}
    if len(allocatable) > RESOURCES:
        allocatable, problem = {}, f"offers more than {RESOURCES} resources"
    if len(taints) > NODE_TAINTS:
        problem = f"more than {NODE_TAINTS} taints"
    return allocatable, taints[:NODE_TAINTS], problem


def _taint(taint: _Taint) -> Taint:
    return Taint(taint.get("key") or "", taint.get("value") or "", taint.get("effect") or "")


def _gpu_conditions(conditions: Iterable[_Condition]) -> Pairs:
    """Only the conditions about GPUs: heartbeats change the others every few minutes."""
    pairs = ((one.get("type") or "", one.get("status") or "") for one in islice(conditions, NODE_CONDITIONS))
    about_gpus = islice((pair for pair in pairs if is_gpu_condition(pair[0])), NODE_TAINTS)
    return tuple([(sys.intern(kind), sys.intern(status[:NAME])) for kind, status in about_gpus])
