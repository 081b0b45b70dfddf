"""Nodes and pods as far as Stowage knows them, and the events that carry them.

Records are what is kept for every object of a cluster, so they are small: slots, shared strings, and one spec
for all pods of a template. Nothing here knows the wire, nor what a resource name, label or annotation means.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

from extender.k8s.resource_api.objects import DeviceClass, ResourceClaim, ResourceSlice
from extender.k8s.scheduling_rules import NO_RULES, Rules
from extender.k8s.taints import Taint

Kind: TypeAlias = Literal[
    "Node", "Pod", "ResourceSlice", "ResourceClaim", "DeviceClass", "Device", "ConfigMap"
]
DEVICE_KINDS: frozenset[Kind] = frozenset({"ResourceSlice", "ResourceClaim", "DeviceClass"})
"""What Dynamic Resource Allocation consists of."""
Pairs: TypeAlias = tuple[tuple[str, str], ...]
"""A small map from name to value that hashes: sorted by name. Quantities stay as they were written."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node: what it is (labels, annotations) and what it offers (``allocatable``).

    ``unreadable`` names labels and annotations that were left out because they are too large; ``problem``
    says what else exceeds a limit of ``limits.py``, "" for nothing: then the record is not all of the node.
    """

    kind: ClassVar[Literal["Node"]] = "Node"
    name: str
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    created: float = 0.0  # Unix seconds, 0 where unknown
    conditions: Pairs = ()  # (type, status) of those that speak of GPUs
    unreadable: tuple[str, ...] = ()
    problem: str = ""

    @property
    def key(self) -> str:
        """The name: nodes have no namespace."""
        return self.name


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU of a node. Quantities stay as they were written."""

    minor: int
    uuid: str
    healthy: bool
    resources: Pairs = ()


@dataclass(frozen=True, slots=True)
class KoordinatorDevice:
    """The GPUs of a node one by one: Koordinator's ``Device``, which goes by the node's name."""

    kind: ClassVar[Literal["Device"]] = "Device"
    name: str
    gpus: tuple[Card, ...] = ()

    @property
    def key(self) -> str:
        """The name of the node."""
        return self.name


@dataclass(frozen=True, slots=True)
class MigGroup:
    """An entry of a MIG layout: which GPUs it is for, and what each of them is divided into.

    ``indices`` None is every GPU, ``models`` (PCI device ids, lower case) empty is any model. ``instances``
    are how many of each profile, as the names are written; None where MIG is off.
    """

    indices: tuple[int, ...] | None
    models: tuple[str, ...]
    instances: tuple[tuple[str, int], ...] | None


MigLayout: TypeAlias = tuple[MigGroup, ...]
"""How the GPUs of a node are divided: of two entries for one GPU the later one counts."""


@dataclass(frozen=True, slots=True)
class MigLayouts:
    """The layouts that NVIDIA's MIG manager knows by name: its ConfigMap, which is for one node or for all.

    ``problem`` is what could not be read of it.
    """

    kind: ClassVar[Literal["ConfigMap"]] = "ConfigMap"
    name: str
    node: str = ""  # "" for all nodes that have none of their own
    layouts: Mapping[str, MigLayout] = field(default_factory=dict)
    problem: str = ""

    @property
    def key(self) -> str:
        """The name of the node, "" for all."""
        return self.node


@dataclass(frozen=True, slots=True)
class Container:
    """What one container asks for. ``requests`` are completed from ``limits``, as the API server does."""

    name: str = ""
    requests: Pairs = ()
    limits: Pairs = ()
    sidecar: bool = False  # an init container that keeps running (restartPolicy: Always)


@dataclass(frozen=True, slots=True)
class PodClaim:
    """An entry of ``spec.resourceClaims``: names a ResourceClaim, or a template that one is made from."""

    name: str
    claim: str = ""
    template: str = ""


class Hashed:
    """Where a record keeps its hash, if it is large and looked up several times for each event."""

    __slots__ = ("_hash",)
    _hash: int


@dataclass(frozen=True, slots=True, weakref_slot=True)
class PodSpec(Hashed):
    """The part of a pod's spec that never changes for placement. Equal specs of the wire are one object.

    ``requests`` and ``limits`` are those of the pod as a whole (``spec.resources``), as they were written.
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
            known = hash(
                (
                    *(self.containers, self.init_containers, self.requests, self.limits),
                    *(self.overhead, self.node_selector, self.claims),
                )
            )
            object.__setattr__(self, "_hash", known)
        return known

    @property
    def size(self) -> int:
        """Characters of the texts that it keeps alive, about."""
        containers = (*self.containers, *self.init_containers)
        lists = [pairs for one in containers for pairs in (one.requests, one.limits)]
        lists += [self.requests, self.limits, self.overhead, self.node_selector]
        claims = sum(len(one.name) + len(one.claim) + len(one.template) for one in self.claims)
        return sum(len(one.name) for one in containers) + sum(map(_length, lists)) + claims


def over_lifetime(spec: PodSpec, of: Callable[[Container], Mapping[str, int]]) -> Counter[str]:
    """The most that is in use at once over a pod's life, by name, if a container uses ``of(container)``.

    An init container runs alone but for the sidecars that were started before it; containers run together
    with all sidecars (``AggregateContainerRequests`` of k8s.io/component-helpers, resource/helpers.go). The
    time is linear in what the containers use: a pod may have thousands of names.
    """
    together: defaultdict[str, int] = defaultdict(int)  # the sidecars so far, then all that stays
    peak: defaultdict[str, int] = defaultdict(int)
    for container in spec.init_containers:
        for name, amount in of(container).items():
            peak[name] = max(peak[name], together[name] + amount)
            if container.sidecar:
                together[name] += amount
    for container in spec.containers:
        for name, amount in of(container).items():
            together[name] += amount
    return Counter({name: max(together[name], peak[name]) for name in {**together, **peak}})


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod and where it stands.

    ``unreadable`` names annotations and labels that were left out because they are too large. ``problem``
    says what else exceeds a limit of ``limits.py``, "" for nothing: such a pod is not placed, and its
    ``spec`` has one container that uses what the whole pod uses.
    """

    kind: ClassVar[Literal["Pod"]] = "Pod"
    namespace: str
    name: str
    uid: str = ""
    spec: PodSpec = PodSpec()
    node_name: str = ""  # "" while it is not bound
    phase: str = "Pending"
    scheduler_name: str = "default-scheduler"
    priority: int = 0
    nominated_node: str = ""
    deleting: bool = False
    created: float = 0.0  # Unix seconds, 0 where unknown
    started: float = 0.0  # when a kubelet took it on
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    devices: Pairs = ()  # (resource, device id) as kubelet reports them (allocatedResourcesStatus)
    claims: Pairs = ()  # (name in spec.claims, the ResourceClaim made for it)
    rules: Rules = NO_RULES
    unreadable: tuple[str, ...] = ()  # annotations and labels that are left out because they are too long
    problem: str = ""  # what exceeds a limit, "" for nothing

    @property
    def key(self) -> str:
        """``namespace/name``. A pod that is deleted and made anew keeps its key and changes its uid."""
        return f"{self.namespace}/{self.name}"

    @property
    def size(self) -> int:
        """What it keeps alive, in characters: its texts, and 2,000 for the objects around them."""
        pairs = (self.annotations.items(), self.labels.items(), self.devices, self.claims)
        names = (
            self.namespace,
            self.name,
            self.uid,
            self.node_name,
            self.scheduler_name,
            self.nominated_node,
        )
        return 2000 + sum(map(_length, pairs)) + sum(map(len, names)) + self.spec.size

    @property
    def terminated(self) -> bool:
        """Whether it has run to its end and holds nothing any more."""
        return self.phase in ("Succeeded", "Failed")


def _length(pairs: Iterable[tuple[str, str]]) -> int:
    return sum(len(key) + len(value) for key, value in pairs)


@dataclass(frozen=True, slots=True)
class Upserted:
    """An object is new, or changed, or was seen again in a list."""

    obj: Node | Pod | ResourceSlice | ResourceClaim | DeviceClass | KoordinatorDevice | MigLayouts


@dataclass(frozen=True, slots=True)
class Deleted:
    """An object is gone."""

    kind: Kind
    key: str


@dataclass(frozen=True, slots=True)
class Listed:
    """A full list has ended: what is not among ``keys`` is gone. The first one means "synced"."""

    kind: Kind
    keys: frozenset[str]


Event: TypeAlias = Upserted | Deleted | Listed
