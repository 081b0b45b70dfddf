"""Devices, claims and classes as far as their allocation depends on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import ClassVar, Literal, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

from extender.k8s.affinity import NodeSelectorTerm, Taint, Toleration
from extender.k8s.resource_api.values import Amount, Value

Number: TypeAlias = int | Fraction
Counters: TypeAlias = Mapping[tuple[str, str], Number]
"""Amounts by (counter set, counter)."""
ByDomain: TypeAlias = Mapping[str, Mapping[str, Value]]


class DeviceId(NamedTuple):
    """The name of a device in its cluster."""

    driver: str
    pool: str
    device: str


@dataclass(frozen=True, slots=True)
class NodeScope:
    """The nodes that a slice or a device is for: one, all, or those that meet any of ``terms``."""

    node: str = ""
    everywhere: bool = False
    terms: tuple[NodeSelectorTerm, ...] = ()

    def includes(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether the node of this name and these labels is among them."""
        if self.node or self.everywhere:
            return self.everywhere or self.node == name
        return any(term.matches(name, labels) for term in self.terms)


@dataclass(frozen=True, slots=True)
class CapacityRequestPolicy:
    """In which portions a capacity is given out: one of ``values`` (ascending), or from ``least`` to ``most``
    in whole ``step``s. ``default`` goes to a request that does not say; without it that takes everything."""

    default: Fraction | None = None
    values: tuple[Fraction, ...] = ()
    least: Fraction | None = None
    most: Fraction | None = None
    step: Fraction | None = None

    def portion(self, asked: Fraction) -> Fraction | None:
        """What is given where so much is asked for, None where there is no such portion."""
        if self.values:
            return next((value for value in self.values if asked <= value), None)
        if self.least is None:
            return asked
        given = max(asked, self.least)
        if self.step and asked >= self.least:
            step, first = ceil(self.step), ceil(self.least)
            given = Fraction(first + -((first - ceil(asked)) // step) * step)
        return given if self.most is None or given <= self.most else None


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a slice.

    ``attributes`` and ``capacity`` are by domain (the driver's where none is written) and name, ``named`` the
    names of the capacities as they are written. ``consumes`` is what it takes of its pool's counters.
    ``shared``: several claims may have parts of it, ``policies`` in which portions, by the names as written.
    ``reach``, where not ``None``, is its own and not its slice's. ``later``: it is bound in
    steps, and its pool comes last. ``unreadable`` says what of it is not understood, "" where nothing.
    """

    name: str
    attributes: ByDomain = field(default_factory=dict)
    capacity: Mapping[str, Mapping[str, Amount]] = field(default_factory=dict)
    named: Mapping[str, Amount] = field(default_factory=dict)
    consumes: Counters = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    reach: NodeScope | None = None
    shared: bool = False
    policies: Mapping[str, CapacityRequestPolicy] = field(default_factory=dict)
    later: bool = False
    unreadable: str = ""

    def text(self, name: str) -> str:
        """An attribute as a text, in whichever domain it is; "" where there is none."""
        values = (domain[name] for domain in self.attributes.values() if name in domain)
        value = next(values, "")
        return value if isinstance(value, str) else str(getattr(value, "text", value))


@dataclass(frozen=True, slots=True)
class ResourceSlice:
    """A part of a pool of devices. ``slices`` is how many such parts the pool's ``generation`` has.

    ``problem``: what makes it unreadable, "" where nothing does.
    """

    kind: ClassVar[Literal["ResourceSlice"]] = "ResourceSlice"
    uid: ClassVar[str] = ""  # nothing depends on it
    name: str
    driver: str = ""
    pool: str = ""
    generation: int = 0
    slices: int = 0
    reach: NodeScope = NodeScope()
    per_device: bool = False
    devices: tuple[Device, ...] = ()
    counters: tuple[tuple[str, Mapping[str, Number]], ...] = ()  # by counter set; a name may come twice
    problem: str = ""

    @property
    def key(self) -> str:
        """The name: slices have no namespace."""
        return self.name


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A class of devices: those that all CEL ``selectors`` match."""

    kind: ClassVar[Literal["DeviceClass"]] = "DeviceClass"
    uid: ClassVar[str] = ""
    name: str
    selectors: tuple[str, ...] = ()
    resource: str = ""  # the extended resource that pods may ask for in its place
    problem: str = ""

    @property
    def key(self) -> str:
        """The name: classes have no namespace."""
        return self.name


@dataclass(frozen=True, slots=True)
class DeviceSubRequest:
    """So many devices of a class. ``count`` ``None``: all there are. ``capacity``: what of each.
    ``watching``: they are looked at (admin access), whoever has them."""

    name: str
    device_class: str
    selectors: tuple[str, ...] = ()
    count: int | None = 1
    capacity: tuple[tuple[str, Amount], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    watching: bool = False


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """An entry of a claim: one request, or several of which the first that can be met counts."""

    name: str
    options: tuple[DeviceSubRequest, ...]
    ranked: bool = False


@dataclass(frozen=True, slots=True)
class DeviceConstraint:
    """A constraint: the devices of these requests (of all, where none are named) have an attribute that is
    the same, or ``distinct``, in all of them."""

    attribute: str
    requests: frozenset[str] = frozenset()
    distinct: bool = False


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Demand:
    """What a claim asks for. ``unclear`` says what of it is not understood, "" where nothing.

    Equal demands are one object, which ``of`` gives: many claims are of one template.
    """

    choices: tuple[DeviceRequest, ...] = ()
    agreements: tuple[DeviceConstraint, ...] = ()
    unclear: str = ""

    @classmethod
    def of(
        cls,
        choices: tuple[DeviceRequest, ...] = (),
        agreements: tuple[DeviceConstraint, ...] = (),
        unclear: str = "",
    ) -> Demand:
        """The one object of this demand."""
        key = choices, agreements, unclear
        if (known := _DEMANDS.get(key)) is None:
            known = _DEMANDS[key] = cls(choices, agreements, unclear)
        return known


_DEMANDS: WeakValueDictionary[tuple[object, ...], Demand] = WeakValueDictionary()
_NO_DEMAND = Demand.of()


@dataclass(frozen=True, slots=True)
class AllocationResult:
    """A device that a claim has. ``shared``: a part of it, which takes ``consumed`` of its capacities (None:
    it is not said). ``watching``: it is looked at (admin access), and others may have it."""

    id: DeviceId
    shared: bool = False
    consumed: tuple[tuple[str, Amount], ...] | None = None
    watching: bool = False


ANY_POOL = ("", "")


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """A claim: what it asks for, what it has been given (``None``: nothing yet), and the pods that use it.

    ``hidden`` are pools (driver, name) of which it holds devices that could not be read, ``ANY_POOL`` where
    it is not known of which.
    """

    kind: ClassVar[Literal["ResourceClaim"]] = "ResourceClaim"
    uid: ClassVar[str] = ""
    namespace: str
    name: str
    demand: Demand = _NO_DEMAND
    grants: tuple[AllocationResult, ...] | None = None
    pods: tuple[str, ...] = ()
    hidden: tuple[tuple[str, str], ...] = ()
    problem: str = ""

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


Record: TypeAlias = ResourceSlice | ResourceClaim | DeviceClass
