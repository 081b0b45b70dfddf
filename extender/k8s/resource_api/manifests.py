"""Reads ResourceSlices, DeviceClasses, ResourceClaims and DeviceTaintRules from their manifests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from extender.k8s.manifest import Manifest
from extender.k8s.resource_api.claim_parser import parse_claim
from extender.k8s.resource_api.objects import (
    DeviceClass,
    DeviceTaintRule,
    DeviceTaintRuleKind,
    ResourceClaim,
    ResourceSlice,
)
from extender.k8s.resource_api.slice_parser import parse_class, parse_slice, parse_taint_rule


class ResourceSliceManifest(Manifest, frozen=True, gc=False):
    spec: Any = None

    def record(self) -> ResourceSlice:
        return parse_slice(self.metadata.name, self.spec)


class DeviceClassManifest(Manifest, frozen=True, gc=False):
    spec: Any = None

    def record(self) -> DeviceClass:
        return parse_class(self.metadata.name, self.spec)


class ResourceClaimManifest(Manifest, frozen=True, gc=False):
    spec: Any = None
    status: Any = None

    def record(self) -> ResourceClaim:
        """The claim. Its namespace is ``default`` if the manifest has none."""
        metadata, owner = self.metadata, self.metadata.controller
        claim = parse_claim(metadata.namespace_or_default, metadata.name, self.spec, self.status)
        made_for = owner.uid if owner and owner.kind == "Pod" else ""
        return replace(claim, made_for=made_for, deleting=metadata.deletionTimestamp is not None)


class DeviceTaintRuleManifest(Manifest, frozen=True, gc=False):
    """A DeviceTaintRule of any version. A file has one version of each object."""

    spec: Any = None

    def record(self, kind: DeviceTaintRuleKind = "DeviceTaintRule") -> DeviceTaintRule:
        return parse_taint_rule(kind, self.metadata.name, self.spec)
