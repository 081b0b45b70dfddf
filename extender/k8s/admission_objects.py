"""Objects that modify a pod at admission (RuntimeClass and LimitRange), and objects that locate its volumes.
Facts: k8s.io/api v0.36.3, ``node/v1/types.go``, ``core/v1/types.go`` and ``storage/v1/types.go``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar, Literal, TypeAlias

from msgspec import Struct

from extender.k8s.affinity import NodeSelectorManifest, NodeSelectorTerm, Toleration
from extender.k8s.manifest import Manifest, Name, Pairs, Texts
from extender.untrusted.limits import RESOURCES, SELECTOR_ITEMS


@dataclass(frozen=True, slots=True)
class _Named:
    name: str
    namespace: str = ""
    problem: str = field(default="", kw_only=True)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class RuntimeClass(_Named):
    """The additions of a RuntimeClass to its pods."""

    kind: ClassVar[Literal["RuntimeClass"]] = "RuntimeClass"
    overhead: Pairs = ()
    node_selector: Pairs = ()
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True)
class LimitRange(_Named):
    """Default requests and limits of the namespace's containers."""

    kind: ClassVar[Literal["LimitRange"]] = "LimitRange"
    requests: Pairs = ()
    limits: Pairs = ()


_GA = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
_TOPOLOGY = (*_GA, *_GA.values())


@dataclass(frozen=True, slots=True)
class PersistentVolume(_Named):
    """Only nodes that match one of the ``terms`` can use it (all if there are none), and nodes with zones or
    regions only in its ``zones``, the values of its labels."""

    kind: ClassVar[Literal["PersistentVolume"]] = "PersistentVolume"
    terms: tuple[NodeSelectorTerm, ...] = ()
    zones: tuple[tuple[str, frozenset[str]], ...] = ()

    def accepts(self, node: str, labels: Mapping[str, str]) -> bool:
        """Whether a node with this name and these labels can use it, by kube-scheduler's ``volumebinding``
        and ``volumezone`` (k8s.io/kubernetes v1.37.2, pkg/scheduler/framework/plugins)."""
        if self.terms and not any(term.matches(node, labels) for term in self.terms):
            return False
        at = (labels.get(key, labels.get(_GA.get(key, key))) in values for key, values in self.zones)
        return labels.keys().isdisjoint(_TOPOLOGY) or all(at)


@dataclass(frozen=True, slots=True)
class PersistentVolumeClaim(_Named):
    """``volume``: the name of its PersistentVolume, to which a pending claim is not bound. ``of_one_pod``:
    only one pod may use it (ReadWriteOncePod)."""

    kind: ClassVar[Literal["PersistentVolumeClaim"]] = "PersistentVolumeClaim"
    volume: str = ""
    is_pending: bool = False
    is_lost: bool = False
    is_deleted: bool = False
    of_one_pod: bool = False
    storage_class: str = ""


@dataclass(frozen=True, slots=True)
class StorageClass(_Named):
    """``waits``: the claims of this class are bound once kube-scheduler has chosen a node for a pod."""

    kind: ClassVar[Literal["StorageClass"]] = "StorageClass"
    waits: bool = False


@dataclass(frozen=True, slots=True)
class ResourceQuota(_Named):
    """The amounts of each resource that all pods of the namespace may request, and do. Only in files: the API
    server of a cluster is asked (``source/dry_run.py``)."""

    kind: ClassVar[Literal["ResourceQuota"]] = "ResourceQuota"
    hard: Pairs = ()
    used: Pairs = ()


AdmissionRecord: TypeAlias = (
    RuntimeClass | LimitRange | ResourceQuota | PersistentVolume | PersistentVolumeClaim | StorageClass
)
AdmissionKind: TypeAlias = Literal[
    "RuntimeClass",
    "LimitRange",
    "ResourceQuota",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "StorageClass",
]


class _Overhead(Struct, frozen=True, gc=False):
    podFixed: Texts = {}


class _Scheduling(Struct, frozen=True, gc=False):
    nodeSelector: Texts = {}
    tolerations: tuple[Toleration, ...] = ()


class RuntimeClassManifest(Manifest, frozen=True, gc=False):
    overhead: _Overhead = _Overhead()
    scheduling: _Scheduling = _Scheduling()

    def record(self) -> RuntimeClass:
        selector, tolerations = self.scheduling.nodeSelector, self.scheduling.tolerations[:SELECTOR_ITEMS]
        return RuntimeClass(
            self.metadata.name, "", _pairs(self.overhead.podFixed), _pairs(selector), tolerations
        )


class _Limit(Struct, frozen=True, gc=False):
    type: str = ""
    default: Texts = {}
    defaultRequest: Texts = {}
    max: Texts = {}
    min: Texts = {}


class _Spec(Struct, frozen=True, gc=False):
    limits: tuple[_Limit, ...] = ()


class LimitRangeManifest(Manifest, frozen=True, gc=False):
    spec: _Spec = _Spec()

    def record(self) -> LimitRange:
        """The last of several entries wins. A maximum replaces a missing limit; a limit, or else a minimum,
        a missing request (``SetDefaults_LimitRangeItem`` of k8s.io/kubernetes, pkg/apis/core/v1)."""
        requests, limits = dict[str, str](), dict[str, str]()
        for limit in self.spec.limits[:RESOURCES]:
            if limit.type == "Container":
                limits |= limit.max | limit.default
                requests |= limit.min | limit.max | limit.default | limit.defaultRequest
        name, namespace = self.metadata.name, self.metadata.namespace_or_default
        return LimitRange(name, namespace, _pairs(requests), _pairs(limits))


class _QuotaSpec(Struct, frozen=True, gc=False):
    hard: Texts = {}
    scopes: Any = None
    scopeSelector: Any = None


class _QuotaStatus(Struct, frozen=True, gc=False):
    used: Texts = {}


class ResourceQuotaManifest(Manifest, frozen=True, gc=False):
    spec: _QuotaSpec = _QuotaSpec()
    status: _QuotaStatus = _QuotaStatus()

    def record(self) -> ResourceQuota:
        """The quota; without limits if it is only for some pods."""
        hard = {} if self.spec.scopes or self.spec.scopeSelector else self.spec.hard
        name, namespace = self.metadata.name, self.metadata.namespace_or_default
        return ResourceQuota(name, namespace, _pairs(hard), _pairs(self.status.used))


class _Affinity(Struct, frozen=True, gc=False):
    required: NodeSelectorManifest = NodeSelectorManifest()


class _Volume(Struct, frozen=True, gc=False):
    volumeName: Name = ""
    nodeAffinity: _Affinity = _Affinity()
    storageClassName: Name = ""
    accessModes: tuple[str, ...] = ()


class _ClaimStatus(Struct, frozen=True, gc=False):
    phase: str = ""


class PersistentVolumeManifest(Manifest, frozen=True, gc=False):
    spec: _Volume = _Volume()

    def record(self) -> PersistentVolume:
        """The volume; if its node affinity is too large to read, no node can use it. A list of zones with an
        empty one is ignored, as by kube-scheduler."""
        required, labels = self.spec.nodeAffinity.required, self.metadata.labels
        terms = (NodeSelectorTerm(),) if required.is_too_large else required.terms()
        lists = (
            (key, frozenset(map(str.strip, labels[key].split("__")))) for key in _TOPOLOGY if key in labels
        )
        zones = tuple((key, values) for key, values in lists if "" not in values)
        return PersistentVolume(self.metadata.name, "", terms, zones)


class PersistentVolumeClaimManifest(Manifest, frozen=True, gc=False):
    spec: _Volume = _Volume()
    status: _ClaimStatus = _ClaimStatus()

    def record(self) -> PersistentVolumeClaim:
        metadata, phase = self.metadata, self.status.phase
        return PersistentVolumeClaim(
            metadata.name,
            metadata.namespace_or_default,
            self.spec.volumeName,
            phase == "Pending" and "pv.kubernetes.io/bind-completed" not in metadata.annotations,
            phase == "Lost",
            metadata.deletionTimestamp is not None,
            "ReadWriteOncePod" in self.spec.accessModes,
            metadata.annotations.get("volume.beta.kubernetes.io/storage-class", self.spec.storageClassName),
        )


class StorageClassManifest(Manifest, frozen=True, gc=False):
    volumeBindingMode: str = ""

    def record(self) -> StorageClass:
        return StorageClass(self.metadata.name, waits=self.volumeBindingMode == "WaitForFirstConsumer")


def _pairs(entries: Texts) -> Pairs:
    return tuple(sorted(islice(entries.items(), RESOURCES)))
