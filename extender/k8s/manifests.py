"""The manifest class of each kind that Stowage reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from extender.k8s.device_manifests import (
    DeviceClassManifest,
    KoordinatorDeviceManifest,
    MigLayoutsManifest,
    ResourceClaimManifest,
    ResourceSliceManifest,
)
from extender.k8s.node_manifest import NodeManifest
from extender.k8s.pod_manifest import PodManifest

Manifest: TypeAlias = (
    NodeManifest
    | PodManifest
    | ResourceSliceManifest
    | ResourceClaimManifest
    | DeviceClassManifest
    | KoordinatorDeviceManifest
    | MigLayoutsManifest
)
MANIFESTS: Mapping[str, type[Manifest]] = {
    "Node": NodeManifest,
    "Pod": PodManifest,
    "ResourceSlice": ResourceSliceManifest,
    "ResourceClaim": ResourceClaimManifest,
    "DeviceClass": DeviceClassManifest,
    "Device": KoordinatorDeviceManifest,
    "ConfigMap": MigLayoutsManifest,
}
