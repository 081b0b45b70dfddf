"""The kinds of objects that Stowage watches.

A new kind is one row here, a record in ``k8s.objects``, a parser in ``k8s.manifests`` and a case in
``cluster.state``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from extender.k8s.manifests import (
    WireCards,
    WireClaim,
    WireDeviceClass,
    WireMigLayouts,
    WireNode,
    WirePod,
    WireSlice,
)
from extender.k8s.mig_config import OWN
from extender.k8s.objects import Kind

Manifest: TypeAlias = (
    WireNode | WirePod | WireSlice | WireClaim | WireDeviceClass | WireCards | WireMigLayouts
)


@dataclass(frozen=True, slots=True)
class WatchedKind:
    """A kind, the path of its list in the API, the model that parses one object, and which objects to list.

    ``optional``: 404 and 403 count as an empty list, for not every cluster serves this kind.
    ``awaited``: the service is not ready before the first list.
    ``selector``: query parameters.
    """

    kind: Kind
    path: str
    manifest: type[Manifest]
    optional: bool = False
    awaited: bool = False
    selector: Mapping[str, str] = field(default_factory=dict)

    @property
    def resource(self) -> str:
        """The plural name in the API, such as ``pods``."""
        return self.path.rpartition("/")[2]


_DRA = "/apis/resource.k8s.io/v1"
_KOORDINATOR = "/apis/scheduling.koordinator.sh/v1alpha1"
_ROWS = (
    WatchedKind("Node", "/api/v1/nodes", WireNode, awaited=True),
    WatchedKind("Pod", "/api/v1/pods", WirePod, awaited=True),
    WatchedKind("DeviceClass", f"{_DRA}/deviceclasses", WireDeviceClass, optional=True, awaited=True),
    WatchedKind("ResourceSlice", f"{_DRA}/resourceslices", WireSlice, optional=True, awaited=True),
    WatchedKind("ResourceClaim", f"{_DRA}/resourceclaims", WireClaim, optional=True, awaited=True),
    WatchedKind("Device", f"{_KOORDINATOR}/devices", WireCards, optional=True),
)
WATCHED_KINDS: Mapping[Kind, WatchedKind] = {row.kind: row for row in _ROWS}
"""What is watched under any settings."""
AWAITED_KINDS = frozenset(row.kind for row in _ROWS if row.awaited)
REQUIRED_KINDS = frozenset(row.kind for row in _ROWS if row.awaited and not row.optional)
MANIFESTS: Mapping[str, type[Manifest]] = {
    **{row.kind: row.manifest for row in _ROWS},
    "ConfigMap": WireMigLayouts,
}
"""The models of all kinds that a snapshot may contain."""


def mig_layouts(namespace: str, name: str) -> WatchedKind:
    """The ConfigMap of this name with layouts of NVIDIA's MIG manager; "" for the ConfigMaps that the MIG
    manager itself writes, one for each node."""
    selector = {"fieldSelector": f"metadata.name={name}"} if name else {"labelSelector": OWN}
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    return WatchedKind("ConfigMap", path, WireMigLayouts, selector=selector)
