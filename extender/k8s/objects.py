"""Records of the parts of Kubernetes objects that Stowage needs, and the events that carry them.

Every object of a cluster has a record, so records are small: slots, shared strings, and one spec for all pods
of a template. The manifest modules create them; ``inventory`` and ``dialects`` interpret resource names,
labels and annotations.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeGuard, get_args

from extender.k8s.admission_objects import AdmissionKind, AdmissionRecord, PodDisruptionBudget, PriorityClass
from extender.k8s.affinity import NO_CONSTRAINTS, SchedulingConstraints, Taint
from extender.k8s.manifest import Named, Namespaced, Pairs
from extender.k8s.node_topology import NodeTopology
from extender.k8s.resource_claims import DeviceClaim, DeviceClass, ResourceClaim, ResourceClaimTemplate
from extender.k8s.resource_slices import DeviceTaintRule, DeviceTaintRuleKind, ResourceSlice
from extender.untrusted.limits import KEY, LABEL

KubeflowKind: TypeAlias = Literal[
    "PyTorchJob", "TFJob", "MPIJob", "OldMPIJob", "XGBoostJob", "JAXJob", "PaddleJob"
]
JobKind: TypeAlias = Literal[
    KubeflowKind, "JobSet", "PodGang", "LeaderWorkerSet", "RayCluster", "KueueWorkload"
]
PodGroupKind: TypeAlias = Literal[
    "PodGroup",
    "AlphaPodGroup",
    "OldAlphaPodGroup",
    "CoschedulingPodGroup",
    "KoordinatorPodGroup",
    "VolcanoPodGroup",
    "KaiPodGroup",
    JobKind,
]
"""Kinds that declare how many pods run together: PodGroup of several APIs ("PodGroup" is Kubernetes's own),
and the jobs of ``job_kinds``."""
Kind: TypeAlias = (
    Literal[
        "Node",
        "Pod",
        "ResourceSlice",
        "ResourceClaim",
        "ResourceClaimTemplate",
        "DeviceClass",
        "Device",
        "ConfigMap",
        "Job",
        "ReplicaSet",
        "PriorityClass",
        "PodDisruptionBudget",
        "NodeResourceTopology",
    ]
    | AdmissionKind
    | DeviceTaintRuleKind
    | PodGroupKind
)
REQUIRED_KINDS: frozenset[Kind] = frozenset({"Node", "Pod"})
"""No decisions are made before these are listed, or while their events lag behind."""


@dataclass(frozen=True, slots=True)
class Node(Named):
    """A Node.

    ``capacity``: that of extended resources for which it differs from ``allocatable``. ``unreadable`` lists
    labels and annotations that were dropped because they are too large, and unreadable fields, such as
    ``.spec.taints``. ``problem`` names another part that exceeds a limit of ``limits.py`` and is therefore
    incomplete, "" for none.
    """

    kind: ClassVar[Literal["Node"]] = "Node"
    name: str
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    provider: str = ""  # of spec.providerID: "gce", "aws"
    created: float = 0.0  # Unix seconds, 0 where unknown
    conditions: Pairs = ()  # (type, status), only conditions about GPUs
    unreadable: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Container:
    """One container. ``requests`` default to ``limits``, as in the API server."""

    name: str = ""
    requests: Pairs = ()
    limits: Pairs = ()
    sidecar: bool = False  # an init container that keeps running (restartPolicy: Always)


@dataclass(frozen=True, slots=True)
class PodClaim:
    """An entry of ``spec.resourceClaims``: names a ResourceClaim, or the template to create it from.
    ``devices``: the template's requests, if it is in the same file as the pod."""

    name: str
    claim: str = ""
    template: str = ""
    devices: DeviceClaim | None = None


class Unchecked(StrEnum):
    """Filters of kube-scheduler that Stowage does not implement."""

    HOST_PORTS = "host ports"
    SPREAD = "topology spread"
    AFFINITY = "affinity to other pods"


class _SpecMemo:
    """Slots for the hash of a large record that is looked up several times per event, and for the results of
    ``other_resources`` and ``pod_request``. Not part of the record."""

    __slots__ = ("_hash", "asked_memo", "requests_memo")
    _hash: int
    asked_memo: object
    requests_memo: object


@dataclass(frozen=True, slots=True)
class PodSpec(_SpecMemo):
    """The immutable part of a pod's spec that placement needs. Equal specs are one object.

    ``requests`` and ``limits`` are those of the pod as a whole (``spec.resources``).
    """

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    requests: Pairs = ()
    limits: Pairs = ()
    overhead: Pairs = ()
    node_selector: Pairs = ()
    claims: tuple[PodClaim, ...] = ()

    def __hash__(self) -> int:
        known: int | None = getattr(self, "_hash", None)
        if known is None:
            first = (self.containers, self.init_containers, self.requests, self.limits)
            known = hash((*first, self.overhead, self.node_selector, self.claims))
            object.__setattr__(self, "_hash", known)
        return known

    @property
    def all_containers(self) -> tuple[Container, ...]:
        """Init containers first."""
        return self.init_containers + self.containers

    @property
    def container_requests(self) -> Pairs:
        """The requests of all containers, one after the other."""
        return tuple(chain.from_iterable(container.requests for container in self.all_containers))

    def with_containers(self, change: Callable[[Container], Container]) -> PodSpec:
        """The spec with each container changed."""
        containers, init = (tuple(map(change, some)) for some in (self.containers, self.init_containers))
        return replace(self, containers=containers, init_containers=init)

    def texts(self) -> Iterable[str]:
        containers = self.all_containers
        maps = chain.from_iterable((container.requests, container.limits) for container in containers)
        pairs = chain(*maps, self.requests, self.limits, self.overhead, self.node_selector)
        claims = chain.from_iterable((entry.name, entry.claim, entry.template) for entry in self.claims)
        return chain((container.name for container in containers), chain.from_iterable(pairs), claims)


def peak_usage(spec: PodSpec, usage_of: Callable[[Container], Mapping[str, int]]) -> Counter[str]:
    """Peak concurrent usage during a pod's life, by name, if each container uses ``usage_of`` it.

    An init container runs alone, except for the sidecars that started before it. The containers run together
    with all sidecars. Source: ``AggregateContainerRequests`` of k8s.io/component-helpers,
    resource/helpers.go. The time is linear in the number of names, because a pod may have thousands.
    """
    running: defaultdict[str, int] = defaultdict(int)  # the sidecars so far, then also the containers
    peak: defaultdict[str, int] = defaultdict(int)
    for container in spec.init_containers:
        for name, amount in usage_of(container).items():
            peak[name] = max(peak[name], running[name] + amount)
            if container.sidecar:
                running[name] += amount
    for container in spec.containers:
        for name, amount in usage_of(container).items():
            running[name] += amount
    return Counter({name: max(running[name], peak[name]) for name in {**running, **peak}})


@dataclass(frozen=True, slots=True)
class Owner:
    """The controller of a pod: a Job, a ReplicaSet, a DaemonSet, ..."""

    kind: str
    name: str
    uid: str = ""


_SAY_WHAT_IT_HOLDS = (".spec", ".status", ".metadata.annotations", ".metadata.labels")


class _Memo:
    """Slots for values that ``queues`` derives from a pod and looks up for every victim, and for its size,
    version, key and request. Not part of the record: equal pods may differ in them."""

    __slots__ = ("_size", "_version", "key", "memo", "request_memo")
    key: str
    """``namespace/name``, one string for all tables. A recreated pod has the same key."""
    memo: object
    request_memo: object
    _size: int
    _version: str


KILLING = 5.0
"""Seconds after the grace period within which the end of a pod is normal: kubelet allows containers two more
seconds if a preStop hook used all of it (``minimumGracePeriodInSeconds`` in k8s.io/kubernetes,
pkg/kubelet/kuberuntime), then kills and removes them, and the API server counts whole seconds."""
LONGEST_GRACE = 600.0
"""Remaining seconds of its grace period below which a terminating pod is expected to end soon: with more, the
time is unknown. A pod that still exists at the end may be stuck."""


@dataclass(frozen=True, slots=True)
class Pod(_Memo):
    """A Pod.

    ``gates`` are its scheduling gates: a pod with gates waits for their controllers, not for resources.
    ``unscheduled`` is the reason of its condition ``PodScheduled`` while that is false ("Unschedulable"),
    ``disruption`` that of ``DisruptionTarget`` ("PreemptionByScheduler"), "" for none, and ``disrupted`` its
    time. ``has_other_constraints``: kube-scheduler may reject a node because of filters that Stowage does not
    implement: affinity between pods, topology spread, host ports, volumes.

    ``resized``: its spec with the CPU and memory that it holds during an in-place resize, None if it holds
    the requests of the spec. ``held`` is what counts on its node.

    ``unreadable`` lists annotations and labels that were dropped because they are too large, and unreadable
    fields, such as ``.spec.containers``. ``problem`` names another part that exceeds a limit of
    ``limits.py``, "" for none. A pod with a problem is not placed, and its ``spec`` has one container that
    uses the resources of the whole pod.
    """

    kind: ClassVar[Literal["Pod"]] = "Pod"
    namespace: str
    name: str
    uid: str = ""
    spec: PodSpec = PodSpec()
    node_name: str = ""  # "" until it is bound
    phase: str = "Pending"
    ready: bool = False
    scheduler_name: str = "default-scheduler"
    priority: int = 0
    priority_class: str = ""
    never_preempts: bool = False  # preemptionPolicy: Never
    nominated_node: str = ""
    deleting: bool = False
    ends: float = 0.0  # when its grace period ends, in Unix seconds; 0 unless it is being deleted
    deleted: float = 0.0  # start of the grace period
    created: float = 0.0  # Unix seconds, 0 where unknown
    started: float = 0.0  # when kubelet accepted it; 0 where unknown
    finished: float = 0.0  # when the containers of a terminated pod ended; 0 where unknown
    deadline: float = math.inf  # activeDeadlineSeconds
    grace: float = 0.0  # seconds from the deadline, or a deletion, until kubelet kills it
    is_service: bool = False  # restartPolicy: Always, so it ends only when it is deleted
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)  # all of them: budgets may select by any
    devices: Pairs = ()  # (resource, device id) in allocatedResourcesStatus, reported by kubelet
    claims: Pairs = ()  # (name in spec.claims, name of the ResourceClaim)
    scheduling_constraints: SchedulingConstraints = NO_CONSTRAINTS
    owner: Owner | None = None
    pod_group: str = ""  # of spec.schedulingGroup, in the pod's namespace
    gates: tuple[str, ...] = ()
    unscheduled: str = ""
    disruption: str = ""
    disrupted: float = 0.0  # Unix seconds, 0 where unknown
    has_other_constraints: bool = False
    has_local_data: bool = False  # an emptyDir on disk, or a hostPath that is not a socket or device
    volume_claims: tuple[str, ...] = ()  # the names of its PersistentVolumeClaims
    ephemeral_claims: tuple[str, ...] = ()  # those that are made with the pod
    runtime_class: str = ""
    unchecked: tuple[Unchecked, ...] = ()  # kube-scheduler's filters for it that Stowage does not implement
    depends_on_pods: bool = False  # affinity between pods, topology spread, host ports
    only_pauses: bool = False  # every container runs a pause image
    resized: PodSpec | None = None
    complete: bool = False  # of a manifest: as the API server would create it
    misaligned: bool = False  # kubelet rejected it with TopologyAffinityError
    not_admitted: bool = False  # kubelet rejected it, because a device plugin did not allocate its devices
    unreadable: tuple[str, ...] = ()
    problem: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"{self.namespace}/{self.name}")

    def is_about_to_go(self, now: float) -> bool:
        """Whether it is terminating and expected to release its resources soon after ``now`` (Unix
        seconds)."""
        killing = KILLING * (self.ends > self.deleted)  # without a grace period a finalizer holds it
        return self.deleting and (not self.ends or now - killing < self.ends <= now + LONGEST_GRACE)

    @property
    def held(self) -> PodSpec:
        """The spec with the resources that the pod holds on its node."""
        return self.resized or self.spec

    @property
    def is_obscure(self) -> bool:
        """Whether it may hold more than the record shows, because fields are unreadable."""
        return any(name.startswith(_SAY_WHAT_IT_HOLDS) for name in self.unreadable)

    @property
    def version(self) -> str:
        """The resourceVersion of an unbound pod that was read from a manifest, else ""."""
        return getattr(self, "_version", "")

    def with_version(self, version: str) -> Pod:
        """The same record with this version of the pod."""
        object.__setattr__(self, "_version", version)
        return self

    @property
    def size(self) -> int:
        """Approximate bytes that it keeps alive: 64 for each text plus its characters, 2,000 for the rest."""
        known: int | None = getattr(self, "_size", None)
        if known is None:
            pairs = chain(self.annotations.items(), self.labels.items(), self.devices, self.claims)
            names = self.namespace, self.name, self.uid, self.node_name, self.scheduler_name
            more = self.nominated_node, self.priority_class, self.pod_group, self.unscheduled, self.disruption
            held = self.resized.texts() if self.resized else ()
            texts = [*chain(names, more, self.gates, *pairs, self.spec.texts(), held)]
            known = 2000 + sum(map(len, texts)) + 64 * len(texts)
            object.__setattr__(self, "_size", known)
        return known

    @property
    def terminated(self) -> bool:
        """Whether its containers have ended, so that it no longer holds resources."""
        return self.phase in ("Succeeded", "Failed")


class Stage(NamedTuple):
    """Roles of a job whose pods run at the same time, and the number of these pods."""

    pods: int
    roles: frozenset[str]


class JobTemplate(NamedTuple):
    """A pod that a job creates ``copies`` times. ``role``: the end of the template's path in the job."""

    pod: Pod
    copies: int
    role: str = ""


class Admission(NamedTuple):
    """A Workload of Kueue that has not finished. ``runs``: it is admitted, and not being evicted.
    ``preempted``: number of times. ``boost``: its priority boost, 0 for none, None if another writer set it;
    ``boosted``: when Stowage last changed it (Unix seconds). ``version``: its resourceVersion."""

    version: str
    cluster_queue: str
    priority: int
    runs: bool
    preempted: int
    boost: int | None
    boosted: float


class RequiredDomain(NamedTuple):
    """A topology domain that pods of a gang must share: the nodes with one value of the label ``key``, no
    nodes if it is "", because it cannot be read. ``group``: which pods of the gang, "" for all. ``size``:
    number of pods of a slice, 0 if it is none."""

    key: str
    group: str = ""
    size: int = 0

    @property
    def level(self) -> str:
        """The key without its prefix, such as "rack"."""
        return self.key.rpartition("/")[2]


_LABEL_KEY = re.compile(rf"([a-z0-9.-]{{1,253}}/)?{LABEL}", re.ASCII)


def required_domain(key: object, group: str = "", size: int = 0) -> tuple[RequiredDomain, ...]:
    """The domain of this topology level, () if it is empty. A level that is no label key is ""."""
    if key in ("", None):
        return ()
    is_key = isinstance(key, str) and len(key) <= KEY and _LABEL_KEY.fullmatch(key)
    return (RequiredDomain(str(key) if is_key else "", group, size),)


@dataclass(frozen=True, slots=True)
class PodGroup(Namespaced):
    """The number of pods referring to this object that must run together.

    ``minimum``: 0 if any number of them may run, None if unreadable. ``together``: number of pods that start
    all or nothing, if it differs from ``minimum``. ``by_role``: the same for pods of one role that are a
    separate gang. ``stages``: by role, the stage in which its pods run, in the order of their start; {} if
    all pods run at the same time. ``whole``: its pods are of different kinds, or declare it, so they may only
    be evicted all together. ``templates``: pods that it creates. ``in_composite``: it is part of a
    CompositePodGroup. ``problem``: its unreadable part, "" for none. ``longest``: maximum seconds that its
    pods run. ``priority``: that of all its pods, of Kubernetes' own from 1.37 on; None if any is possible.
    ``never_preempts``: by its ``preemptionPolicy`` (1.37). ``admission``: of a Workload; not about its pods.
    ``domains`` that all its pods must share, the widest first, and ``domains_of`` those of a part of them, by
    the name of that part.
    """

    kind: PodGroupKind
    namespace: str
    name: str
    minimum: int | None
    whole: bool = False
    in_composite: bool = False
    problem: str = ""
    together: int | None = None
    by_role: Mapping[str, int] = field(default_factory=dict)
    stages: Mapping[str, Stage] = field(default_factory=dict)
    templates: tuple[JobTemplate, ...] = ()
    longest: float = math.inf
    priority: int | None = None
    never_preempts: bool = False
    is_suspended: bool = False
    admission: Admission | None = field(default=None, compare=False)
    domains: tuple[RequiredDomain, ...] = ()
    domains_of: Mapping[str, tuple[RequiredDomain, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Job(Namespaced):
    """The time limit of a Job of Kubernetes: ``longest`` seconds after ``started`` its pods are deleted,
    infinite for none; ``limit`` is the field that sets this. ``started``: Unix seconds; 0 before its
    controller creates pods, and while it is suspended: it starts anew. ``problem``: its unreadable part, ""
    for none. ``unmade``: the pods that it has not created, gated if it is suspended; read for audits only."""

    kind: ClassVar[Literal["Job"]] = "Job"
    namespace: str
    name: str
    uid: str = ""
    started: float = 0.0
    longest: float = math.inf
    limit: str = ""
    problem: str = ""
    unmade: JobTemplate | None = None


@dataclass(frozen=True, slots=True)
class ReplicaSet(Job):
    """The same of a ReplicaSet, which has no time limit."""

    kind: ClassVar[Literal["ReplicaSet"]] = "ReplicaSet"  # type: ignore[assignment]


def is_pod_group(kind: str) -> TypeGuard[PodGroupKind]:
    """Whether objects of this kind are ``PodGroup``."""
    return kind in get_args(PodGroupKind)


@dataclass(frozen=True, slots=True)
class KoordinatorGpu:
    """One GPU of a ``KoordinatorDevice``."""

    minor: int
    uuid: str
    healthy: bool
    resources: Pairs = ()


@dataclass(frozen=True, slots=True)
class KoordinatorDevice(Named):
    """Koordinator's ``Device``: lists the GPUs of the node with the same name. ``problem``: its unreadable
    part, "" for none."""

    kind: ClassVar[Literal["Device"]] = "Device"
    name: str
    gpus: tuple[KoordinatorGpu, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class MigGroup:
    """An entry of a MIG layout: the GPUs that it applies to, and the MIG instances on each of them.

    ``indices`` None means every GPU. ``models`` are PCI device ids in lower case; empty means any model.
    ``instances`` pairs a profile, as it was written, with a number; None means that MIG is off.
    """

    indices: tuple[int, ...] | None
    models: tuple[str, ...]
    instances: tuple[tuple[str, int], ...] | None


MigLayout: TypeAlias = tuple[MigGroup, ...]
"""The MIG instances of a node's GPUs. If two entries apply to a GPU, the later one wins."""


@dataclass(frozen=True, slots=True)
class MigLayouts(Named):
    """A ConfigMap of NVIDIA's MIG manager: layouts by name, for one node or for all.

    ``problem`` names the unreadable layouts, "" for none.
    """

    kind: ClassVar[Literal["ConfigMap"]] = "ConfigMap"
    name: str
    node: str = ""  # "" for all nodes without their own ConfigMap
    layouts: Mapping[str, MigLayout] = field(default_factory=dict)
    problem: str = ""


KubernetesObject: TypeAlias = (
    Node
    | Pod
    | ResourceSlice
    | ResourceClaim
    | ResourceClaimTemplate
    | DeviceClass
    | DeviceTaintRule
    | KoordinatorDevice
    | MigLayouts
    | PriorityClass
    | PodDisruptionBudget
    | PodGroup
    | Job
    | NodeTopology
    | AdmissionRecord
)


@dataclass(frozen=True, slots=True)
class Upserted:
    """An object was added or changed, or appeared in a list."""

    obj: KubernetesObject

    @property
    def kind(self) -> Kind:
        return self.obj.kind


@dataclass(frozen=True, slots=True)
class Deleted:
    """An object was deleted."""

    kind: Kind
    key: str


@dataclass(frozen=True, slots=True)
class Listed:
    """A full list is complete: objects that are not in ``keys`` are deleted. The first one means "synced".

    ``absent``: the API server does not serve the kind, or Stowage may not list it. ``began``: time of the
    request in monotonic seconds; the list includes all earlier writes.
    """

    kind: Kind
    keys: frozenset[str]
    absent: bool = False
    began: float = -math.inf


@dataclass(frozen=True, slots=True)
class Unlisted:
    """The first full list has not arrived in time: the kind counts as unknown until it is ``Listed``. Sent
    again if ``why`` changes. ``resource``: kubectl's name of the kind. ``effect``: what follows for pods."""

    kind: Kind
    resource: str
    why: str
    effect: str


Event: TypeAlias = Upserted | Deleted | Listed | Unlisted


def take_in(event: Event, known: MutableMapping[str, Any]) -> None:
    """Update the known objects of the event's kind, which are indexed by key."""
    match event:
        case Upserted(obj):
            known[obj.key] = obj
        case Deleted(_, key):
            known.pop(key, None)
        case Listed(_, keys):
            for key in known.keys() - keys:
                del known[key]
