"""ResourceSlices, DeviceClasses, ResourceClaims and DeviceTaintRules as far as the allocation of devices
depends on them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

from pydantic import BeforeValidator, PlainSerializer

from extender.k8s.affinity import NodeSelectorTerm, Taint, Toleration
from extender.k8s.quantity import QuantityError, exact

INT64_MAX = 2**63 - 1
_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z.-]+)?",
    re.ASCII,
)
_MAX_VERSION = 64  # characters, by the API
_LARGE_EXPONENT = re.compile(r"[eE][+-]?\d{3}")
"""Such numbers may have thousands of digits; kube-scheduler rounds them to billionths."""


@dataclass(frozen=True, slots=True)
class Amount:
    """A Kubernetes quantity, exact. Its own type, because CEL tells quantities from numbers."""

    number: Fraction


@dataclass(frozen=True, slots=True)
class Version:
    """A semantic version 2.0.0: its text, and a key that sorts as versions do."""

    text: str
    key: tuple[int, int, int, int, tuple[tuple[int, int, str], ...]]


Value: TypeAlias = bool | int | str | Version
"""An attribute. In Python ``bool`` is an ``int``, in CEL it is not: test for ``bool`` first."""


def parse_version(text: str) -> Version | None:
    return _parse_version(text) if len(text) <= _MAX_VERSION else None


@lru_cache(maxsize=4096)
def _parse_version(text: str) -> Version | None:
    match = _SEMVER.fullmatch(text)
    if match is None:
        return None
    major, minor, patch, pre_release = match.groups()
    # Numbers sort before words, and by value (semver.org, item 11).
    identifiers = tuple(
        (0, int(one), "") if one.isdecimal() else (1, 0, one)
        for one in (pre_release.split(".") if pre_release else ())
    )
    return Version(text, (int(major), int(minor), int(patch), 0 if pre_release else 1, identifiers))


def parse_amount(text: str) -> Amount:
    """Raises ``QuantityError``."""
    if _LARGE_EXPONENT.search(text[:64]):
        raise QuantityError("quantity has an exponent of three digits")
    return Amount(exact(text))


Number: TypeAlias = int | Fraction
_PAIRS = (
    BeforeValidator(lambda pairs: {(one, other): amount for one, other, amount in pairs}),
    PlainSerializer(lambda amounts: [[*names, str(amount)] for names, amount in amounts.items()]),
)
"""JSON has no pairs as keys. Only dumps of the state use this."""
Counters: TypeAlias = Annotated[Mapping[tuple[str, str], Number], *_PAIRS]
"""Amounts by (counter set, counter)."""
ByDomain: TypeAlias = Mapping[str, Mapping[str, Value]]


class DeviceId(NamedTuple):
    """The name of a device, unique in the cluster."""

    driver: str
    pool: str
    device: str


@dataclass(frozen=True, slots=True)
class NodeScope:
    """The nodes that can use a slice or a device: one, all, or those that match any of ``terms``."""

    node_name: str = ""
    all_nodes: bool = False
    terms: tuple[NodeSelectorTerm, ...] = ()

    def includes(self, name: str, labels: Mapping[str, str]) -> bool:
        if self.node_name or self.all_nodes:
            return self.all_nodes or self.node_name == name
        return any(term.matches(name, labels) for term in self.terms)


@dataclass(frozen=True, slots=True)
class CapacityRequestPolicy:
    """How a request for a part of a capacity is rounded up: to one of ``valid_values`` (ascending), or to
    ``minimum`` plus a multiple of ``step``, up to ``maximum``. A request that does not name the capacity
    consumes ``default``, or all of it without a default."""

    default: Fraction | None = None
    valid_values: tuple[Fraction, ...] = ()
    minimum: Fraction | None = None
    maximum: Fraction | None = None
    step: Fraction | None = None

    def round_up(self, requested: Fraction, *, fractional: bool = True) -> Fraction | None:
        """The amount that this request consumes, or None if the policy allows none. Unless ranges may be
        ``fractional``, and where a range has parts of thousandths, steps are those of whole numbers."""
        if self.valid_values:
            return next((value for value in self.valid_values if requested <= value), None)
        if self.minimum is None:
            return requested
        rounded = max(requested, self.minimum)
        if self.step and requested >= self.minimum:
            bounds = self.minimum, self.step, self.maximum or Fraction(0)
            unit = 1000 if fractional and all((1000 * one).denominator == 1 for one in bounds) else 1
            first, step, asked = (ceil(unit * one) for one in (self.minimum, self.step, requested))
            if unit > 1 and (unit * requested).denominator != 1:
                return None  # kube-scheduler rejects it
            rounded = Fraction(first - (first - asked) // step * step, unit)
        return rounded if self.maximum is None or rounded <= self.maximum else None


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a slice.

    ``attributes`` and ``capacity`` are keyed by domain (the driver's name if the key has none) and name;
    ``capacity_by_name`` and ``capacity_policies`` by the name as written. ``node_scope`` is None unless the
    device has its own. ``problem`` names a field or attribute that is not supported, "" if there is none.
    """

    name: str
    attributes: ByDomain = field(default_factory=dict)
    capacity: Mapping[str, Mapping[str, Amount]] = field(default_factory=dict)
    capacity_by_name: Mapping[str, Amount] = field(default_factory=dict)
    consumes_counters: Counters = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    node_scope: NodeScope | None = None
    allow_multiple_allocations: bool = False
    capacity_policies: Mapping[str, CapacityRequestPolicy] = field(default_factory=dict)
    has_binding_conditions: bool = False
    problem: str = ""

    def attribute_text(self, name: str) -> str:
        """The first attribute with this name in any domain, as text; "" if there is none."""
        values = (domain[name] for domain in self.attributes.values() if name in domain)
        value = next(values, "")
        return value if isinstance(value, str) else str(getattr(value, "text", value))

    def consumed_capacity(
        self, requested: Mapping[str, Amount], *, fractional: bool = True
    ) -> dict[str, Fraction] | None:
        """What a request consumes of each capacity, or None if even the unused device is too small.

        Read from k8s.io/dynamic-resource-allocation v0.36.3,
        ``structured/internal/incubating/consumable_capacity.go``, and for ranges that may be ``fractional``
        (``DRAFractionalCapacityRange``) from v0.37.
        """
        if not requested.keys() <= self.capacity_by_name.keys():
            return None
        consumed: dict[str, Fraction] = {}
        for name, total in self.capacity_by_name.items():
            policy = self.capacity_policies.get(name, CapacityRequestPolicy())
            if name in requested:
                amount = policy.round_up(requested[name].number, fractional=fractional)
            else:
                amount = total.number if policy.default is None else policy.default
            if amount is None or amount > total.number:
                return None
            consumed[name] = amount
        return consumed


@dataclass(frozen=True, slots=True)
class ResourceSlice:
    """A part of a pool of devices. A generation of the pool is complete with ``slice_count`` slices.
    ``shared_counters`` are (counter set, counters); invalid slices may name a set twice. ``problem`` says why
    the slice cannot be read, "" if it can."""

    kind: ClassVar[Literal["ResourceSlice"]] = "ResourceSlice"
    name: str
    driver: str = ""
    pool: str = ""
    generation: int = 0
    slice_count: int = 0
    node_scope: NodeScope = NodeScope()
    per_device_node_selection: bool = False
    devices: tuple[Device, ...] = ()
    shared_counters: tuple[tuple[str, Mapping[str, Number]], ...] = ()
    problem: str = ""

    @property
    def key(self) -> str:
        return self.name

    def scope_of(self, device: Device) -> NodeScope:
        if self.per_device_node_selection:
            return device.node_scope or NodeScope()
        return self.node_scope


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A class of devices: those that match all CEL ``selectors``."""

    kind: ClassVar[Literal["DeviceClass"]] = "DeviceClass"
    name: str
    selectors: tuple[str, ...] = ()
    extended_resource: str = ""
    problem: str = ""

    @property
    def key(self) -> str:
        return self.name


DeviceTaintRuleKind: TypeAlias = Literal["DeviceTaintRule", "BetaDeviceTaintRule", "AlphaDeviceTaintRule"]
"""All these objects have the kind DeviceTaintRule: of v1, v1beta2 and v1alpha3. A cluster may serve several
versions of one object."""


@dataclass(frozen=True, slots=True)
class DeviceTaintRule:
    """A taint on the devices of ``driver``, in ``pool`` and with the name ``device``; "" is any. ``problem``
    says why it is not known which devices it taints, or how."""

    kind: DeviceTaintRuleKind
    name: str
    taint: Taint
    driver: str = ""
    pool: str = ""
    device: str = ""
    problem: str = ""

    @property
    def key(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class DeviceSubRequest:
    """A number of devices of one class. ``count`` is None for allocation mode ``All``; ``capacity`` is what
    the request needs of each device."""

    name: str
    device_class: str
    selectors: tuple[str, ...] = ()
    count: int | None = 1
    capacity: tuple[tuple[str, Amount], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    admin_access: bool = False


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A request of a claim: one subrequest (``exactly``), or several in order of preference, and one of
    them must be satisfied (``first_available``)."""

    name: str
    subrequests: tuple[DeviceSubRequest, ...]
    first_available: bool = False


@dataclass(frozen=True, slots=True)
class DeviceConstraint:
    """All devices of ``requests`` (of all requests, if empty) have the same value of ``attribute``, or
    different ones (``distinct``)."""

    attribute: str
    requests: frozenset[str] = frozenset()
    distinct: bool = False


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class DeviceClaim:
    """What a claim asks for (``spec.devices``). ``problem`` names what is not supported, "" if nothing."""

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    problem: str = ""

    def interned(self) -> DeviceClaim:
        """The one object with these contents: many claims come from one template."""
        return _DEVICE_CLAIMS.setdefault((self.requests, self.constraints, self.problem), self)

    @property
    def wants_all(self) -> bool:
        """Whether a request, or one of its alternatives, has the allocation mode ``All``."""
        return any(sub.count is None for request in self.requests for sub in request.subrequests)


_DEVICE_CLAIMS: WeakValueDictionary[tuple[object, ...], DeviceClaim] = WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class AllocationResult:
    """A device that is allocated to a claim. ``shared``: a part of the device, which consumes
    ``consumed_capacity`` (None: not stated). With ``admin_access`` others can have the device, too."""

    id: DeviceId
    shared: bool = False
    consumed_capacity: tuple[tuple[str, Amount], ...] | None = None
    admin_access: bool = False


UNKNOWN_POOL = ("", "")


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """A claim: what it asks for, what is allocated to it (None: nothing yet), and the pods that use it.
    ``reserved_for_others``: something that is no pod may use it, too; so it outlives its pods.
    ``available_on``: the nodes where what is allocated can be used, None if they cannot be read.

    ``unreadable_pools`` (driver, name) contain allocated devices whose names cannot be read. ``UNKNOWN_POOL``
    means that the pool cannot be read either. ``made_for``: the UID of the pod that it was made for from a
    template, "" for none.
    """

    kind: ClassVar[Literal["ResourceClaim"]] = "ResourceClaim"
    namespace: str
    name: str
    devices: DeviceClaim = DeviceClaim()
    allocation: tuple[AllocationResult, ...] | None = None
    reserved_for: tuple[str, ...] = ()
    unreadable_pools: tuple[tuple[str, str], ...] = ()
    problem: str = ""
    reserved_for_others: bool = False
    available_on: NodeScope | None = NodeScope(all_nodes=True)
    made_for: str = ""
    deleting: bool = False

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ResourceClaimTemplate:
    """What the claims that are made from it ask for."""

    kind: ClassVar[Literal["ResourceClaimTemplate"]] = "ResourceClaimTemplate"
    namespace: str
    name: str
    devices: DeviceClaim = DeviceClaim()
    problem: str = ""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


Record: TypeAlias = ResourceSlice | ResourceClaim | ResourceClaimTemplate | DeviceClass | DeviceTaintRule
