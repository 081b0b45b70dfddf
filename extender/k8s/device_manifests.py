"""Reads the objects that describe devices from their manifests.

These are the kinds of Dynamic Resource Allocation, Koordinator's ``Device``, and the ConfigMap of
NVIDIA's MIG manager.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import BaseModel
from typing_extensions import TypedDict

from extender.k8s.device_objects import KoordinatorDevice, KoordinatorGpu, MigLayouts
from extender.k8s.metadata import Metadata, TextMap, sorted_pairs
from extender.k8s.mig_config import CONFIG_KEY, NODE_LABEL, parse_layouts
from extender.k8s.resource_api.claim_parser import parse_claim
from extender.k8s.resource_api.objects import (
    DeviceClass,
    DeviceTaintRule,
    DeviceTaintRuleKind,
    ResourceClaim,
    ResourceSlice,
)
from extender.k8s.resource_api.slice_parser import parse_class, parse_slice, parse_taint_rule


class _DeviceManifest(BaseModel):
    """A manifest with a name. ``spec`` and ``status`` that are ``Any`` are checked by another module."""

    metadata: Metadata | None = None
    spec: Any = None

    @property
    def _name(self) -> str:
        return (self.metadata or {}).get("name") or ""


class ResourceSliceManifest(_DeviceManifest):
    def record(self) -> ResourceSlice:
        return parse_slice(self._name, self.spec)


class DeviceClassManifest(_DeviceManifest):
    def record(self) -> DeviceClass:
        return parse_class(self._name, self.spec)


class ResourceClaimManifest(_DeviceManifest):
    status: Any = None

    def record(self) -> ResourceClaim:
        """The claim. Its namespace is ``default`` if the manifest has none."""
        metadata = self.metadata or {}
        claim = parse_claim(
            sys.intern(metadata.get("namespace") or "default"), self._name, self.spec, self.status
        )
        owners = (one for one in metadata.get("ownerReferences") or () if one.get("controller") is True)
        made_for = next((one.get("uid") or "" for one in owners if one.get("kind") == "Pod"), "")
        return replace(claim, made_for=made_for, deleting=metadata.get("deletionTimestamp") is not None)


class DeviceTaintRuleManifest(_DeviceManifest):
    """A DeviceTaintRule of v1, or of any version in a file, which has one version of each object."""

    kind_in_lists: ClassVar[DeviceTaintRuleKind] = "DeviceTaintRule"

    def record(self) -> DeviceTaintRule:
        return parse_taint_rule(self.kind_in_lists, self._name, self.spec)


class BetaDeviceTaintRuleManifest(DeviceTaintRuleManifest):
    kind_in_lists = "BetaDeviceTaintRule"


class AlphaDeviceTaintRuleManifest(DeviceTaintRuleManifest):
    kind_in_lists = "AlphaDeviceTaintRule"


class _KoordinatorGpu(TypedDict, total=False):
    type: str | None
    id: str | None
    minor: int | None
    health: bool | None
    resources: TextMap


class _KoordinatorSpec(TypedDict, total=False):
    devices: list[_KoordinatorGpu] | None


class KoordinatorDeviceManifest(_DeviceManifest):
    """A ``Device`` of ``scheduling.koordinator.sh/v1alpha1``."""

    spec: _KoordinatorSpec | None = None

    def record(self) -> KoordinatorDevice:
        """The GPUs of the node. A GPU without minor number is left out, because no pod can name it."""
        gpus = [
            KoordinatorGpu(
                minor,
                device.get("id") or "",
                device.get("health") is True,
                sorted_pairs(device.get("resources")),
            )
            for device in (self.spec or {}).get("devices") or ()
            if device.get("type") == "gpu" and (minor := device.get("minor")) is not None
        ]
        return KoordinatorDevice(self._name, tuple(gpus))


class MigLayoutsManifest(BaseModel):
    """A ConfigMap of NVIDIA's MIG manager."""

    metadata: Metadata | None = None
    data: TextMap = None

    def record(self) -> MigLayouts:
        """The layouts that could be read, with the problem of the others."""
        metadata = self.metadata or {}
        name = f"{metadata.get('namespace') or 'default'}/{metadata.get('name') or ''}"
        node = (metadata.get("labels") or {}).get(NODE_LABEL) or ""
        return MigLayouts(name, node, *parse_layouts((self.data or {}).get(CONFIG_KEY) or ""))
