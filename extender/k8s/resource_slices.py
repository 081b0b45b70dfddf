"""ResourceSlices and DeviceTaintRules: the devices of the cluster, and their taints.

Facts: k8s.io/api ``resource/v1/types.go`` (v0.36.3; for DeviceTaintRules v0.37.1). The types limit each list,
map and text. An unreadable object gets a ``problem``; so does a device with an unknown field, which may
change the claims that can use it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import chain, repeat
from math import ceil
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct
from pydantic import BeforeValidator, PlainSerializer

from extender.k8s.affinity import NodeSelectorManifest, NodeSelectorTerm, Taint, Toleration, longest_text
from extender.k8s.manifest import Manifest, Named, Unreadable, read_value
from extender.k8s.quantity import QuantityError, exact
from extender.untrusted import limits
from extender.untrusted.limits import quoted, shorten

INT64_MAX = 2**63 - 1
_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z.-]+)?",
    re.ASCII,
)
_MAX_VERSION = 64  # characters, by the API
_LARGE_EXPONENT = re.compile(r"[eE][+-]?\d{3}")
"""Numbers with such exponents may have thousands of digits; kube-scheduler rounds them to billionths."""


@dataclass(frozen=True, slots=True)
class Amount:
    """An exact Kubernetes quantity. A separate type, because CEL distinguishes quantities from numbers."""

    number: Fraction


@dataclass(frozen=True, slots=True)
class Version:
    """A semantic version (2.0.0): its text, and a sort key."""

    text: str
    key: tuple[int, int, int, int, tuple[tuple[int, int, str], ...]]


@dataclass(frozen=True, slots=True)
class Unread:
    """An attribute of an unknown type, such as a list (KEP-5491). Of claims that name it nothing is known."""

    problem: str


Value: TypeAlias = bool | int | str | Version | Unread
"""An attribute. In Python ``bool`` is an ``int``, but not in CEL: test for ``bool`` first."""


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
        (0, int(text), "") if text.isdecimal() else (1, 0, text)
        for text in (pre_release.split(".") if pre_release else ())
    )
    return Version(text, (int(major), int(minor), int(patch), 0 if pre_release else 1, identifiers))


def parse_amount(text: str) -> Amount:
    """Raises ``QuantityError``."""
    if _LARGE_EXPONENT.search(text[:64]):
        raise QuantityError("quantity has an exponent of three digits")
    return Amount(exact(text))


Number: TypeAlias = int | Fraction
_PAIRS = (
    BeforeValidator(lambda entries: {(names, name): amount for names, name, amount in entries}),
    PlainSerializer(lambda amounts: [[*names, str(amount)] for names, amount in amounts.items()]),
)
"""JSON does not allow pairs as keys. Only state dumps use this."""
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


ALL_NODES = NodeScope(all_nodes=True)


@dataclass(frozen=True, slots=True)
class CapacityRequestPolicy:
    """Rounding of a request for a part of a capacity: up to one of ``valid_values`` (ascending), or to
    ``minimum`` plus a multiple of ``step``, up to ``maximum``. A request without the capacity consumes
    ``default``, or all of it without a default."""

    default: Fraction | None = None
    valid_values: tuple[Fraction, ...] = ()
    minimum: Fraction | None = None
    maximum: Fraction | None = None
    step: Fraction | None = None

    def round_up(self, requested: Fraction, *, fractional: bool = True) -> Fraction | None:
        """The amount that this request consumes, or None if the policy forbids it. Ranges are rounded to
        integers unless ``fractional``, and if they have digits below thousandths."""
        if self.valid_values:
            return next((value for value in self.valid_values if requested <= value), None)
        if self.minimum is None:
            return requested
        rounded = max(requested, self.minimum)
        if self.step and requested >= self.minimum:
            bounds = self.minimum, self.step, self.maximum or Fraction(0)
            unit = 1000 if fractional and all((1000 * bound).denominator == 1 for bound in bounds) else 1
            first, step, asked = (ceil(unit * number) for number in (self.minimum, self.step, requested))
            if unit > 1 and (unit * requested).denominator != 1:
                return None  # kube-scheduler rejects it
            rounded = Fraction(first - (first - asked) // step * step, unit)
        return rounded if self.maximum is None or rounded <= self.maximum else None


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a slice.

    ``attributes`` and ``capacity`` are keyed by domain (the driver's name if the key has none) and name;
    ``capacity_by_name`` and ``capacity_policies`` by the name as written. ``node_scope`` is None unless the
    device has its own. ``problem`` names an unsupported field, "" for none.
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
        """The first attribute with this name in any domain, as text; "" for none."""
        values = (domain[name] for domain in self.attributes.values() if name in domain)
        value = next(values, "")
        if isinstance(value, Unread):
            return ""
        return value if isinstance(value, str) else str(getattr(value, "text", value))

    @property
    def memory(self) -> Fraction:
        """Its memory in bytes, 0 if its driver does not publish it."""
        amounts = (domain["memory"].number for domain in self.capacity.values() if "memory" in domain)
        return next(amounts, Fraction(0))

    def consumed_capacity(
        self, requested: Mapping[str, Amount], *, fractional: bool = True
    ) -> dict[str, Fraction] | None:
        """The amounts that a request consumes of each capacity, or None if the device is too small.

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
class ResourceSlice(Named):
    """A part of a pool of devices. A generation of the pool is complete with ``slice_count`` slices.
    ``shared_counters`` are (counter set, counters); invalid slices may repeat a set. ``problem``: why the
    slice cannot be read, "" if it can."""

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

    def scope_of(self, device: Device) -> NodeScope:
        if self.per_device_node_selection:
            return device.node_scope or NodeScope()
        return self.node_scope


_T = TypeVar("_T")
Name: TypeAlias = Annotated[str, Meta(max_length=limits.OBJECT_NAME)]
FullName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=limits.OBJECT_NAME)]
Key: TypeAlias = Annotated[str, Meta(max_length=limits.KEY)]
UNREADABLE = (Unreadable, QuantityError)


class _Placed(Struct):
    nodeName: Name = ""
    allNodes: bool = False
    nodeSelector: NodeSelectorManifest | None = None

    def scope(self) -> NodeScope | None:
        if self.nodeName:
            return NodeScope(sys.intern(self.nodeName))
        if self.allNodes:
            return ALL_NODES
        return selected(self.nodeSelector) if self.nodeSelector else None


def read_part(raw: object, kind: type[_T]) -> _T:
    """A part of an object; null means no fields. Raises ``Unreadable``."""
    return read_value({} if raw is None else raw, kind)


def _unknown_fields(raw: object, what: str, known: Iterable[str]) -> Iterator[str]:
    """A problem for each field of an object that is not among these."""
    unknown = raw.keys() - set(known) if isinstance(raw, dict) else ()
    return (f"{what} {quoted(key)}" for key in sorted(unknown))


def selected(selector: NodeSelectorManifest) -> NodeScope:
    """Raises ``Unreadable``."""
    if selector.is_too_large:
        raise Unreadable("nodeSelector is too large to be read")
    return NodeScope(terms=selector.terms())


def within_limits(parts: Iterable[Taint | Toleration]) -> None:
    """Raises ``Unreadable``."""
    if longest_text(parts) > limits.KEY:
        raise Unreadable(f"a taint or toleration of more than {limits.KEY} characters")


class _Attribute(Struct):
    string: str | None = None
    version: str | None = None
    number: int | None = msgspec.field(name="int", default=None)
    flag: bool | None = msgspec.field(name="bool", default=None)

    def value(self, name: str) -> Value:
        """``Unread`` if the type is unknown, or the value is too large for its type."""
        value: Value | None = self.flag
        if self.string is not None:
            value = sys.intern(self.string) if len(self.string) <= limits.ATTRIBUTE else None
        elif self.version is not None:
            value = parse_version(self.version)
        elif self.number is not None:
            value = self.number if abs(self.number) <= INT64_MAX else None
        return Unread(f"attribute {quoted(name)}") if value is None else value


class _Range(Struct, frozen=True):
    min: str | None = None
    max: str | None = None
    step: str | None = None


class _RequestPolicy(Struct):
    default: str | None = None
    validValues: Annotated[list[str], Meta(max_length=limits.POLICY_VALUES)] = []
    validRange: _Range = _Range()

    def record(self) -> CapacityRequestPolicy:
        bounds, values = self.validRange, tuple(parse_amount(text).number for text in self.validValues)
        default, minimum, maximum, step = map(_number, (self.default, bounds.min, bounds.max, bounds.step))
        return CapacityRequestPolicy(default, values, minimum, maximum, step)


class _Capacity(Struct):
    value: str = ""
    requestPolicy: _RequestPolicy | None = None


class _Counters(Struct):
    """A set of counters, or the amounts that a device consumes of it."""

    name: Name = ""
    counterSet: Name = ""
    compatibilityGroups: Any = None
    counters: Annotated[dict[Name, _Capacity], Meta(max_length=limits.COUNTERS)] = {}

    def amounts(self) -> dict[str, Number]:
        exact = {sys.intern(key): parse_amount(amount.value).number for key, amount in self.counters.items()}
        return {key: n.numerator if n.denominator == 1 else n for key, n in exact.items()}


_CounterSets: TypeAlias = Annotated[list[_Counters], Meta(max_length=limits.COUNTER_SETS)]


class _Device(_Placed, kw_only=True):
    name: FullName
    attributes: Annotated[dict[Key, _Attribute], Meta(max_length=limits.DEVICE_ATTRIBUTES)] = {}
    capacity: Annotated[dict[Key, _Capacity], Meta(max_length=limits.DEVICE_ATTRIBUTES)] = {}
    consumesCounters: _CounterSets = []
    taints: Annotated[tuple[Taint, ...], Meta(max_length=limits.DEVICE_TAINTS)] = ()
    allowMultipleAllocations: bool = False
    bindsToNode: Any = None
    bindingConditions: Any = None
    bindingFailureConditions: Any = None

    def record(self, driver: str, problems: Iterable[str]) -> Device:
        """``problems`` are those already known. Raises ``UNREADABLE``."""
        within_limits(self.taints)
        values = {key: attribute.value(key) for key, attribute in self.attributes.items()}
        amounts = {key: parse_amount(capacity.value) for key, capacity in self.capacity.items()}
        policies = {key: capacity.requestPolicy for key, capacity in self.capacity.items()}
        odd = ["compatibilityGroups" for counters in self.consumesCounters if counters.compatibilityGroups]
        return Device(
            self.name,
            _by_domain(values, driver),
            _by_domain(amounts, driver),
            amounts,
            {
                (sys.intern(consumed.counterSet), counter): amount
                for consumed in self.consumesCounters
                for counter, amount in consumed.amounts().items()
            },
            self.taints,
            self.scope(),
            allow_multiple_allocations=self.allowMultipleAllocations,
            capacity_policies={key: policy.record() for key, policy in policies.items() if policy},
            has_binding_conditions=self.bindingConditions is not None,
            problem=next(chain(problems, odd), ""),
        )


class _Pool(Struct):
    name: FullName
    generation: int = -1
    resourceSliceCount: int = -1


class _Slice(_Placed, kw_only=True):
    driver: FullName
    pool: _Pool
    perDeviceNodeSelection: bool = False
    devices: Annotated[list[_Device], Meta(max_length=limits.SLICE_DEVICES)] = []
    sharedCounters: _CounterSets = []


class ResourceSliceManifest(Manifest, frozen=True, gc=False):
    spec: Any = None

    def record(self) -> ResourceSlice:
        """The slice; only its pool and nodes if it cannot be read."""
        try:
            spec = read_value(self.spec, _Slice)
            driver = sys.intern(spec.driver)
            known = _Device.__struct_fields__
            unknown = [
                _unknown_fields(device, "device field", known) for device in self.spec.get("devices") or ()
            ]
            return ResourceSlice(
                self.metadata.name,
                driver,
                sys.intern(spec.pool.name),
                _int64(spec.pool.generation),
                _int64(spec.pool.resourceSliceCount),
                spec.scope() or NodeScope(),
                spec.perDeviceNodeSelection,
                tuple(map(_Device.record, spec.devices, repeat(driver), unknown)),
                tuple((sys.intern(shared.name), shared.amounts()) for shared in spec.sharedCounters),
            )
        except UNREADABLE as error:
            raw = self.spec if isinstance(self.spec, dict) else {}
            pool = raw.get("pool")
            pool = pool if isinstance(pool, dict) else {}
            node = name_or_empty(raw.get("nodeName"))
            return ResourceSlice(
                self.metadata.name,
                driver=name_or_empty(raw.get("driver")),
                pool=name_or_empty(pool.get("name")),
                generation=_int64(pool.get("generation")),
                slice_count=_int64(pool.get("resourceSliceCount")),
                node_scope=NodeScope(node, all_nodes=not node),
                problem=shorten(str(error)),
            )


def _by_domain(values: Mapping[str, _T], driver: str) -> dict[str, dict[str, _T]]:
    domains: dict[str, dict[str, _T]] = {}
    for key, value in values.items():
        domain, slash, name = key.partition("/")
        if not slash:
            domain, name = driver, domain
        domains.setdefault(sys.intern(domain), {})[sys.intern(name)] = value
    return domains


def _number(text: str | None) -> Fraction | None:
    return None if text is None else parse_amount(text).number


def name_or_empty(raw: object) -> str:
    """A name, "" for another type or a text that is too long."""
    return raw if isinstance(raw, str) and len(raw) <= limits.OBJECT_NAME else ""


def _int64(raw: object) -> int:
    """A 64-bit integer, -1 for anything else."""
    return raw if type(raw) is int and abs(raw) <= INT64_MAX else -1


DeviceTaintRuleKind: TypeAlias = Literal["DeviceTaintRule", "BetaDeviceTaintRule", "AlphaDeviceTaintRule"]
"""DeviceTaintRule of v1, v1beta2 and v1alpha3. A cluster may serve several versions of one object."""


@dataclass(frozen=True, slots=True)
class DeviceSelector:
    """The devices of ``driver``, in ``pool`` and with the name ``device``; "" means any."""

    driver: Name = ""
    pool: Name = ""
    device: Name = ""


@dataclass(frozen=True, slots=True)
class DeviceTaintRule(Named):
    """A taint on devices. ``problem``: why its devices or its effect are unknown."""

    kind: DeviceTaintRuleKind
    name: str
    taint: Taint
    selector: DeviceSelector = DeviceSelector()
    problem: str = ""


class _RuleSpec(Struct):
    deviceSelector: DeviceSelector = DeviceSelector()
    taint: Taint = Taint()


class DeviceTaintRuleManifest(Manifest, frozen=True, gc=False):
    """A DeviceTaintRule of any version. A file has one version of each object."""

    spec: Any = None

    def record(self, kind: DeviceTaintRuleKind = "DeviceTaintRule") -> DeviceTaintRule:
        """A rule without a selector taints all devices, as in kube-scheduler (``applyPatches`` in
        k8s.io/dynamic-resource-allocation v0.36.3, ``resourceslice/tracker``). Up to 1.34 a selector may have
        CEL expressions and a class, which are not read."""
        name = self.metadata.name
        try:
            spec = read_part(self.spec, _RuleSpec)
            within_limits([spec.taint])
        except Unreadable as error:
            return DeviceTaintRule(kind, name, Taint(), problem=str(error))
        raw_selector = self.spec.get("deviceSelector") if isinstance(self.spec, dict) else None
        unknown = _unknown_fields(raw_selector, "device selector field", ("driver", "pool", "device"))
        return DeviceTaintRule(kind, name, spec.taint, spec.deviceSelector, next(unknown, ""))
