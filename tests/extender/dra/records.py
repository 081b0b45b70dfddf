"""Records of objects with devices, from the parts of their manifests that matter to a test."""

from __future__ import annotations

from typing import Any

from extender.k8s.resource_claims import (
    DeviceClass,
    DeviceClassManifest,
    ResourceClaim,
    ResourceClaimManifest,
)
from extender.k8s.resource_slices import (
    DeviceTaintRule,
    DeviceTaintRuleKind,
    DeviceTaintRuleManifest,
    ResourceSlice,
    ResourceSliceManifest,
)


def parse_claim(namespace: str, name: str, spec: object, status: object) -> ResourceClaim:
    metadata = {"namespace": namespace, "name": name}
    return ResourceClaimManifest.from_value({"metadata": metadata, "spec": spec, "status": status}).record()


def parse_class(name: str, spec: object) -> DeviceClass:
    return DeviceClassManifest.from_value({"metadata": {"name": name}, "spec": spec}).record()


def parse_slice(name: str, spec: Any) -> ResourceSlice:
    return ResourceSliceManifest.from_value({"metadata": {"name": name}, "spec": spec}).record()


def parse_taint_rule(kind: DeviceTaintRuleKind, name: str, spec: object) -> DeviceTaintRule:
    return DeviceTaintRuleManifest.from_value({"metadata": {"name": name}, "spec": spec}).record(kind)
