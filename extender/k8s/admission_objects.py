"""Objects that modify a pod at admission (RuntimeClass, LimitRange, PriorityClass), locate its volumes, or
control its evictions (PriorityClass, PodDisruptionBudget).
Facts: k8s.io/api v0.36.3, ``node/v1/types.go``, ``core/v1/types.go`` and ``storage/v1/types.go``."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar, Literal, TypeAlias

from msgspec import Struct

from extender.k8s.affinity import (
    LabelSelectorManifest,
    NodeSelectorManifest,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Toleration,
)
from extender.k8s.manifest import Int, Labels, Manifest, Name, Named, Namespaced, Pairs, Texts
from extender.untrusted.limits import DISRUPTED_PODS, KEY, RESOURCES, SELECTOR_ITEMS, quoted


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


class _Scheduling(Struct, frozen=True, gc=False):
    nodeSelector: Texts = {}
    tolerations: tuple[Toleration, ...] = ()


class RuntimeClassManifest(Manifest, frozen=True, gc=False):
    overhead: dict[str, Texts] = {}  # noqa: RUF012 (a new one for each)
    scheduling: _Scheduling = _Scheduling()

    def record(self) -> RuntimeClass:
        selector, tolerations = self.scheduling.nodeSelector, self.scheduling.tolerations[:SELECTOR_ITEMS]
        overhead = _pairs(self.overhead.get("podFixed", {}))
        return RuntimeClass(self.metadata.name, "", overhead, _pairs(selector), tolerations)


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


class ResourceQuotaManifest(Manifest, frozen=True, gc=False):
    spec: _QuotaSpec = _QuotaSpec()
    status: dict[str, Texts] = {}  # noqa: RUF012 (a new one for each)

    def record(self) -> ResourceQuota:
        """The quota; without limits if it is only for some pods."""
        hard = {} if self.spec.scopes or self.spec.scopeSelector else self.spec.hard
        name, namespace = self.metadata.name, self.metadata.namespace_or_default
        return ResourceQuota(name, namespace, _pairs(hard), _pairs(self.status.get("used", {})))


class _Volume(Struct, frozen=True, gc=False):
    volumeName: Name = ""
    nodeAffinity: dict[str, NodeSelectorManifest] = {}
    storageClassName: Name = ""
    accessModes: tuple[str, ...] = ()


class _ClaimStatus(Struct, frozen=True, gc=False):
    phase: str = ""


class PersistentVolumeManifest(Manifest, frozen=True, gc=False):
    spec: _Volume = _Volume()

    def record(self) -> PersistentVolume:
        """The volume; if its node affinity is too large to read, no node can use it. A list of zones with an
        empty one is ignored, as by kube-scheduler."""
        labels = self.metadata.labels
        required = self.spec.nodeAffinity.get("required", NodeSelectorManifest())
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


QUEUE_LABEL = "stowage.dev/queue"
"""A label or annotation of a pod or PriorityClass: the name of a queue."""
_TOLERATION = "preemption-toleration.scheduling.x-k8s.io/"
MINIMUM_PREEMPTABLE = f"{_TOLERATION}minimum-preemptable-priority"
TOLERATION_SECONDS = f"{_TOLERATION}toleration-seconds"
_INTEGER = re.compile(r"[-+]?[0-9]{1,19}")
ABOVE_ALL = 2**31
"""Greater than the priority of any pod."""


@dataclass(frozen=True, slots=True)
class PriorityClass(Named):
    """A PriorityClass. ``queue`` is its label or annotation ``stowage.dev/queue``, "" for none. ``value`` and
    ``never_preempts`` are what the API server writes into its pods; ``is_default``: also into pods without a
    class.

    Its pods tolerate preemption by a priority below ``minimum_preemptable`` for ``toleration`` seconds after
    they were scheduled (``inf``: always). Source: the plugin PreemptionToleration of
    kubernetes-sigs/scheduler-plugins, pkg/preemptiontoleration. ``problem`` names a toleration that could not
    be read, in which case no priority is high enough; "" for none.
    """

    kind: ClassVar[Literal["PriorityClass"]] = "PriorityClass"
    name: str
    queue: str = ""
    minimum_preemptable: int = 0
    toleration: float = 0.0
    problem: str = ""
    value: int = 0
    never_preempts: bool = False
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class PodDisruptionBudget(Namespaced):
    """A PodDisruptionBudget.

    ``selector``: all requirements must match; None selects no pod. ``allowed`` and ``disrupted`` are
    ``disruptionsAllowed`` and the names in ``disruptedPods`` of its status; ``allowed`` is 0 while the status
    is older than the spec. ``frees_unready``: pods that are not ready may always be evicted.

    ``problem`` names the part that exceeds a limit of ``limits.py``, in which case the budget selects every
    pod of its namespace and allows no disruption; "" for none.
    """

    kind: ClassVar[Literal["PodDisruptionBudget"]] = "PodDisruptionBudget"
    namespace: str
    name: str
    selector: tuple[NodeSelectorRequirement, ...] | None = None
    allowed: int = 0
    disrupted: frozenset[str] = frozenset()
    frees_unready: bool = False
    problem: str = ""

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether it selects a pod of its namespace with these labels."""
        if self.problem:
            return True
        # As in the eviction API, and in kube-scheduler since 1.38, an empty selector matches every pod.
        # Up to 1.37 kube-scheduler ignores such a budget, and all budgets for a pod without labels
        # (``FilterVictimsWithPDBViolation`` of its pkg/scheduler/framework/preemption/util.go).
        return self.selector is not None and all(r.matches(labels) for r in self.selector)


class PriorityClassManifest(Manifest, frozen=True, gc=False):
    value: int = 0
    preemptionPolicy: str = ""
    globalDefault: bool = False

    def record(self) -> PriorityClass:
        """The class. An unreadable toleration protects its pods from all preemption."""
        name, annotations = self.metadata.name, self.metadata.annotations
        queue = self.metadata.labels.get(QUEUE_LABEL) or annotations.get(QUEUE_LABEL, "")
        queue = sys.intern(queue) if len(queue) <= KEY else ""
        value = self.value if abs(self.value) < ABOVE_ALL else 0
        written = value, self.preemptionPolicy == "Never", self.globalDefault
        try:
            minimum = _integer(annotations, MINIMUM_PREEMPTABLE, 32, value + 1)
            seconds = _integer(annotations, TOLERATION_SECONDS, 64, 0)
        except ValueError as error:
            return PriorityClass(name, queue, ABOVE_ALL, math.inf, str(error), *written)
        toleration = math.inf if seconds < 0 else float(seconds)
        return PriorityClass(name, queue, minimum, toleration, "", *written)


def _integer(annotations: Labels, name: str, bits: int, default: int) -> int:
    text = annotations.get(name)
    if text is None:
        return default
    number = int(text) if _INTEGER.fullmatch(text[:KEY]) else None
    if number is None or not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ValueError(f"annotation {name} cannot be read: {quoted(text)}")
    return number


class _BudgetSpec(Struct, frozen=True, gc=False):
    selector: LabelSelectorManifest | None = None
    unhealthyPodEvictionPolicy: str = ""


class _BudgetStatus(Struct, frozen=True, gc=False):
    disruptionsAllowed: Int = 0
    observedGeneration: Int = 0
    currentHealthy: Int = 0
    desiredHealthy: Int = 0
    disruptedPods: dict[str, Any] = {}


class PodDisruptionBudgetManifest(Manifest, frozen=True, gc=False):
    spec: _BudgetSpec = _BudgetSpec()
    status: _BudgetStatus = _BudgetStatus()

    def record(self) -> PodDisruptionBudget:
        """The budget. Its namespace is ``default`` if the manifest has none."""
        namespace, name = self.metadata.namespace_or_default, self.metadata.name
        selector, disrupted = self.spec.selector, self.status.disruptedPods
        if len(disrupted) > DISRUPTED_PODS or any(len(pod) > KEY for pod in disrupted):
            return PodDisruptionBudget(namespace, name, problem="disruptedPods is too large to be read")
        if selector is not None and selector.is_too_large:
            return PodDisruptionBudget(namespace, name, problem="selector is too large to be read")
        status, up_to_date = self.status, self.status.observedGeneration >= self.metadata.generation
        return PodDisruptionBudget(
            namespace,
            name,
            selector.requirements() if selector is not None else None,
            allowed=status.disruptionsAllowed if up_to_date else 0,
            disrupted=frozenset(disrupted),
            frees_unready=self.spec.unhealthyPodEvictionPolicy == "AlwaysAllow"
            or status.currentHealthy >= status.desiredHealthy > 0,
        )
