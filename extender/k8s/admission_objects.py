"""Objects that modify a pod at admission (RuntimeClass and LimitRange), and objects that locate its volumes.
Facts: k8s.io/api v0.36.3, ``node/v1/types.go`` and ``core/v1/types.go``."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar, Literal, TypeAlias

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


@dataclass(frozen=True, slots=True)
class PersistentVolume(_Named):
    """Only nodes that match one of the ``terms`` can use it; all nodes if there are no terms."""

    kind: ClassVar[Literal["PersistentVolume"]] = "PersistentVolume"
    terms: tuple[NodeSelectorTerm, ...] = ()


@dataclass(frozen=True, slots=True)
class PersistentVolumeClaim(_Named):
    """``volume``: the name of its PersistentVolume, "" until it is bound."""

    kind: ClassVar[Literal["PersistentVolumeClaim"]] = "PersistentVolumeClaim"
    volume: str = ""


AdmissionRecord: TypeAlias = RuntimeClass | LimitRange | PersistentVolume | PersistentVolumeClaim
AdmissionKind: TypeAlias = Literal["RuntimeClass", "LimitRange", "PersistentVolume", "PersistentVolumeClaim"]


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


class _Affinity(Struct, frozen=True, gc=False):
    required: NodeSelectorManifest = NodeSelectorManifest()


class _Volume(Struct, frozen=True, gc=False):
    volumeName: Name = ""
    nodeAffinity: _Affinity = _Affinity()


class PersistentVolumeManifest(Manifest, frozen=True, gc=False):
    spec: _Volume = _Volume()

    def record(self) -> PersistentVolume:
        """The volume; if its node affinity is too large to read, no node can use it."""
        required = self.spec.nodeAffinity.required
        terms = (NodeSelectorTerm(),) if required.is_too_large else required.terms()
        return PersistentVolume(self.metadata.name, "", terms)


class PersistentVolumeClaimManifest(Manifest, frozen=True, gc=False):
    spec: _Volume = _Volume()

    def record(self) -> PersistentVolumeClaim:
        metadata = self.metadata
        return PersistentVolumeClaim(metadata.name, metadata.namespace_or_default, self.spec.volumeName)


def _pairs(entries: Texts) -> Pairs:
    return tuple(sorted(islice(entries.items(), RESOURCES)))
