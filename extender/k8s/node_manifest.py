"""Reads a Node from its manifest, within the limits of ``limits.py``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from itertools import islice

from msgspec import Struct

from extender.k8s.affinity import Taint
from extender.k8s.gpu_health import is_gpu_condition
from extender.k8s.manifest import (
    Manifest,
    Pairs,
    Texts,
    drop_large_entries,
    interned,
    relevant_entries,
    unix_seconds,
)
from extender.k8s.objects import Node
from extender.untrusted import limits


class _Spec(Struct, frozen=True, gc=False):
    unschedulable: bool = False
    providerID: str = ""
    taints: tuple[Taint, ...] = ()


class _Condition(Struct, frozen=True, gc=False):
    type: str = ""
    status: str = ""


class _Status(Struct, frozen=True, gc=False):
    allocatable: Texts = {}
    capacity: Texts = {}
    conditions: tuple[_Condition, ...] = ()


class NodeManifest(Manifest, frozen=True, gc=False):
    spec: _Spec = _Spec()
    status: _Status = _Status()

    def record(self) -> Node:
        metadata, spec, status = self.metadata, self.spec, self.status
        raw = interned(metadata.labels), relevant_entries(metadata.annotations)
        labels, annotations, unreadable, too_large = drop_large_entries(
            *raw, limits.NODE_ANNOTATION, limits.NODE_ANNOTATIONS
        )
        allocatable, too_many = _allocatable(interned(status.allocatable))
        if len(spec.taints) > limits.NODE_TAINTS:
            too_many = f"more than {limits.NODE_TAINTS} taints"
        return Node(
            name=sys.intern(metadata.name),
            uid=metadata.uid,
            labels=labels,
            annotations=annotations,
            allocatable=allocatable,
            capacity=_differing(status.capacity, allocatable),
            unschedulable=spec.unschedulable,
            taints=spec.taints[: limits.NODE_TAINTS],
            provider=sys.intern(spec.providerID.partition("://")[0][: limits.NAME]),
            created=unix_seconds(metadata.creationTimestamp),
            conditions=_conditions(status.conditions),
            unreadable=unreadable,
            problem=too_large or too_many,
        )


def _differing(capacity: Texts, allocatable: Mapping[str, str]) -> Mapping[str, str]:
    """The extended resources whose capacity differs from ``allocatable``. Kubelet counts unhealthy devices,
    including those of a stopped device plugin, only in ``capacity`` (``GetCapacity`` of
    pkg/kubelet/cm/devicemanager/manager.go in kubernetes/kubernetes)."""
    found = [(k, v) for k, v in capacity.items() if v and v != "0" and "/" in k and allocatable.get(k) != v]
    return interned(dict(found[: limits.RESOURCES]))


def _allocatable(resources: Texts) -> tuple[Texts, str]:
    """The resources that are kept, and the limit that they exceed."""
    if (
        len(resources) > limits.RESOURCES
    ):  # kubelet keeps the MIG profiles of earlier layouts, with 0 instances
        resources = {name: text for name, text in resources.items() if text != "0"}
    return (
        (resources, "")
        if len(resources) <= limits.RESOURCES
        else ({}, f"offers more than {limits.RESOURCES} resources")
    )


def _conditions(conditions: Iterable[_Condition]) -> Pairs:
    """The conditions about GPUs, then those with a domain, such as agents write. Others, which change often,
    are dropped."""
    short = [c for c in islice(conditions, limits.NODE_CONDITIONS) if len(c.type) <= limits.KEY]
    kept = [c for c in short if is_gpu_condition(c.type)]
    kept += [c for c in short if "/" in c.type and c not in kept]
    return tuple(
        [(sys.intern(c.type), sys.intern(c.status[: limits.NAME])) for c in kept[: limits.NODE_TAINTS]]
    )
