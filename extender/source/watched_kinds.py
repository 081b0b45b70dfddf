"""The kinds of objects that Stowage watches.

A new kind is one row here, a record in ``k8s.objects``, a manifest in ``k8s`` and a case in
``cluster.state``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from typing import get_args

from extender.k8s.admission_objects import (
    ABOVE_ALL,
    LimitRangeManifest,
    PersistentVolumeClaimManifest,
    PersistentVolumeManifest,
    PodDisruptionBudgetManifest,
    PriorityClass,
    PriorityClassManifest,
    ResourceQuotaManifest,
    RuntimeClassManifest,
    StorageClassManifest,
)
from extender.k8s.device_objects import PER_NODE_SELECTOR, KoordinatorDeviceManifest, MigLayoutsManifest
from extender.k8s.job_kinds import (
    JOB_KINDS,
    POD_GROUP_APIS,
    JobManifest,
    PodGroupManifest,
    PodOwnerManifest,
    ReplicaSetManifest,
    TimedJobManifest,
)
from extender.k8s.manifest import Manifest
from extender.k8s.node_manifest import NodeManifest
from extender.k8s.node_topology import NodeTopology, NodeTopologyManifest
from extender.k8s.objects import Kind, KubernetesObject, Node, Pod, PodGroup, PodGroupKind
from extender.k8s.pod_manifest import PodManifest
from extender.k8s.resource_claims import (
    DeviceClassManifest,
    ResourceClaimManifest,
    ResourceClaimTemplateManifest,
)
from extender.k8s.resource_slices import DeviceTaintRuleKind, DeviceTaintRuleManifest, ResourceSliceManifest


@dataclass(frozen=True, slots=True)
class WatchedKind:
    """A kind: the path of its list in the API, the manifest of one object, and how to list it.

    ``optional``: 404 and 403 count as an empty list, because some clusters do not serve this kind.
    ``selector``: query parameters.
    """

    kind: Kind
    path: str
    manifest: type[Manifest]
    optional: bool = False
    selector: Mapping[str, str] = field(default_factory=dict)

    def read(self, source: object) -> tuple[KubernetesObject, str]:
        """The record of an object of this kind, and its version. ``source``: see ``Manifest.salvaged``.
        Raises ``Unreadable`` if it has no name.

        Several APIs have a PodGroup or share a manifest, and items of a list do not name their API.
        """
        manifest, problem, left_out = self.manifest.salvaged(source)
        one_of_several = isinstance(manifest, PodGroupManifest | JobManifest | DeviceTaintRuleManifest)
        record: KubernetesObject = manifest.record(*((self.kind,) if one_of_several else ()))
        if problem:
            record = _with_problem(record, problem, left_out)
        return record, manifest.metadata.resourceVersion

    @property
    def resource(self) -> str:
        """The plural name in the API, such as ``pods``."""
        return self.path.rpartition("/")[2]

    @property
    def full_resource(self) -> str:
        """The name for kubectl: ``pods``, ``podgroups.scheduling.run.ai``."""
        parts = self.path.split("/")
        return f"{self.resource}.{parts[2]}" if parts[1] == "apis" else self.resource

    def is_absent(self, status: int) -> bool:
        """Whether this status means that the cluster does not serve the kind."""
        return self.optional and status in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN)


def _with_problem(record: KubernetesObject, problem: str, left_out: tuple[str, ...]) -> KubernetesObject:
    """The record of an object that is not fully readable, with the larger use and the stronger protection."""
    problem = record.problem or problem
    match record:
        case Pod() | Node():
            return replace(record, problem=problem, unreadable=(*record.unreadable, *left_out))
        case PriorityClass():
            return replace(record, problem=problem, minimum_preemptable=ABOVE_ALL, toleration=math.inf)
        case PodGroup():
            return replace(record, problem=problem, minimum=None)
        case NodeTopology():
            return NodeTopology(record.name, problem=problem)
        case _:
            return replace(record, problem=problem)


_DRA = "/apis/resource.k8s.io/v1"
_optional = partial(WatchedKind, optional=True)
_ROWS = (
    WatchedKind("Node", "/api/v1/nodes", NodeManifest),
    WatchedKind("Pod", "/api/v1/pods", PodManifest),
    _optional("ResourceSlice", f"{_DRA}/resourceslices", ResourceSliceManifest),
    _optional("ResourceClaim", f"{_DRA}/resourceclaims", ResourceClaimManifest),
    _optional("DeviceClass", f"{_DRA}/deviceclasses", DeviceClassManifest),
    _optional("ResourceClaimTemplate", f"{_DRA}/resourceclaimtemplates", ResourceClaimTemplateManifest),
    # v1: Kubernetes 1.37, v1beta2: 1.36, v1alpha3: 1.33 to 1.38 (k8s.io/api v0.37.1, ``resource/*/types.go``)
    _optional("DeviceTaintRule", f"{_DRA}/devicetaintrules", DeviceTaintRuleManifest),
    _optional("BetaDeviceTaintRule", f"{_DRA}beta2/devicetaintrules", DeviceTaintRuleManifest),
    _optional("AlphaDeviceTaintRule", f"{_DRA}alpha3/devicetaintrules", DeviceTaintRuleManifest),
    _optional("Device", "/apis/scheduling.koordinator.sh/v1alpha1/devices", KoordinatorDeviceManifest),
    *(_optional(kind, f"/apis/{api}/podgroups", PodGroupManifest) for api, kind in POD_GROUP_APIS.items()),
    *(_optional(kind, f"/apis/{job.path}", JobManifest) for kind, job in JOB_KINDS.items()),
    _optional("Job", "/apis/batch/v1/jobs", TimedJobManifest),
    _optional(
        "NodeResourceTopology",
        "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies",
        NodeTopologyManifest,
    ),
    _optional("PriorityClass", "/apis/scheduling.k8s.io/v1/priorityclasses", PriorityClassManifest),
    _optional("RuntimeClass", "/apis/node.k8s.io/v1/runtimeclasses", RuntimeClassManifest),
    _optional("LimitRange", "/api/v1/limitranges", LimitRangeManifest),
    _optional("PersistentVolume", "/api/v1/persistentvolumes", PersistentVolumeManifest),
    _optional("PersistentVolumeClaim", "/api/v1/persistentvolumeclaims", PersistentVolumeClaimManifest),
    _optional("StorageClass", "/apis/storage.k8s.io/v1/storageclasses", StorageClassManifest),
    _optional("PodDisruptionBudget", "/apis/policy/v1/poddisruptionbudgets", PodDisruptionBudgetManifest),
)
WATCHED_KINDS: Mapping[Kind, WatchedKind] = {row.kind: row for row in _ROWS}
"""The kinds that are watched under any settings."""
_NO_FORECAST = "no devices are predicted for claims, which kube-scheduler allocates"
_NO_SIZE = "how many pods its gangs need is unknown: those that exist count"
_NO_EVICTION = "no pod is evicted, because it may be protected"
_NO_VOLUMES = "volumes are not checked, except by kube-scheduler"
_NOT_ADDED = "explanations lack what the API server adds to new pods because of it"
UNKNOWN: Mapping[Kind, str] = {
    **dict.fromkeys(("DeviceClass", "ResourceClaimTemplate", *get_args(DeviceTaintRuleKind)), _NO_FORECAST),
    "Device": "the GPUs of Koordinator's nodes are known only by their number",
    **dict.fromkeys(get_args(PodGroupKind), _NO_SIZE),
    "NodeResourceTopology": "NUMA nodes are not checked, and kubelet may reject a pod",
    **dict.fromkeys(("PriorityClass", "PodDisruptionBudget"), _NO_EVICTION),
    **dict.fromkeys(("PersistentVolume", "PersistentVolumeClaim", "StorageClass"), _NO_VOLUMES),
    **dict.fromkeys(("RuntimeClass", "LimitRange"), _NOT_ADDED),
    "Job": "the time limits of Jobs are unknown, and do not count in forecasts",
    "ConfigMap": "the layouts of the MIG manager are unknown",
}
"""The effect of a kind whose first list does not arrive in time, always in the safe direction. Any other kind
is awaited without end: GPUs could seem free that are not."""
ALWAYS_AWAITED = WATCHED_KINDS.keys() - UNKNOWN.keys()
KINDS_IN_FILES: Mapping[str, WatchedKind] = {
    **{row.kind: row for row in _ROWS},  # "PodGroup" reads the apiVersion
    "Workload": next(row for row in _ROWS if row.kind == "KueueWorkload"),
    "ConfigMap": WatchedKind("ConfigMap", "", MigLayoutsManifest),
    "ResourceQuota": WatchedKind("ResourceQuota", "/api/v1/resourcequotas", ResourceQuotaManifest),
    "Job": WatchedKind("Job", "/apis/batch/v1/jobs", PodOwnerManifest),
    "ReplicaSet": WatchedKind("ReplicaSet", "/apis/apps/v1/replicasets", ReplicaSetManifest),
}
"""All kinds that a snapshot may contain."""
OF_UNMADE_PODS: Mapping[Kind, str] = dict.fromkeys(
    ("Job", "ReplicaSet", "ResourceQuota"), "pods that are not created are not counted"
)
"""Kinds that tell which pods are not created, and the effect if they cannot be listed. Only ``stowage audit``
reads all of them."""


def mig_layouts(namespace: str, name: str) -> WatchedKind:
    """The ConfigMap of this name with layouts of NVIDIA's MIG manager; "" for the ConfigMaps that the MIG
    manager itself writes, one for each node."""
    selector = {"fieldSelector": f"metadata.name={name}"} if name else {"labelSelector": PER_NODE_SELECTOR}
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    return WatchedKind("ConfigMap", path, MigLayoutsManifest, selector=selector)
