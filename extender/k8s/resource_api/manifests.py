"""Reads ResourceSlices, DeviceClasses, ResourceClaims and DeviceTaintRules from their manifests.

Facts: k8s.io/api ``resource/v1/types.go`` (v0.36.3; of DeviceTaintRules v0.37.1). The types say how much of
each list, map and text is read. An object that cannot be read gets a ``problem``; so does what has an unknown
field, which may change who can have a device.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import chain, compress
from typing import Annotated, Any, TypeAlias, TypeVar

from msgspec import Meta, Struct, field

from extender.k8s.affinity import NodeSelectorManifest, Taint, Toleration, longest_text
from extender.k8s.manifest import Manifest, Unreadable, read_value
from extender.k8s.quantity import QuantityError
from extender.k8s.resource_api.objects import (
    INT64_MAX,
    UNKNOWN_POOL,
    AllocationResult,
    Amount,
    CapacityRequestPolicy,
    Device,
    DeviceClaim,
    DeviceClass,
    DeviceConstraint,
    DeviceId,
    DeviceRequest,
    DeviceSubRequest,
    DeviceTaintRule,
    DeviceTaintRuleKind,
    NodeScope,
    Number,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
    Value,
    parse_amount,
    parse_version,
)
from extender.untrusted import limits
from extender.untrusted.limits import quoted, shorten

_T = TypeVar("_T")
_Taints = TypeVar("_Taints", Taint, Toleration)
_Name: TypeAlias = Annotated[str, Meta(max_length=limits.OBJECT_NAME)]
_FullName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=limits.OBJECT_NAME)]
_Key: TypeAlias = Annotated[str, Meta(max_length=limits.KEY)]
_UNREADABLE = (Unreadable, QuantityError)


class _Placed(Struct):
    nodeName: _Name = ""
    allNodes: bool = False
    nodeSelector: NodeSelectorManifest | None = None

    def scope(self) -> NodeScope | None:
        if self.nodeName:
            return NodeScope(sys.intern(self.nodeName))
        if self.allNodes:
            return NodeScope(all_nodes=True)
        return _selected(self.nodeSelector) if self.nodeSelector else None


class _Cel(Struct):
    expression: Annotated[str, Meta(max_length=limits.SELECTOR)] = ""


class _Selector(Struct):
    cel: _Cel = field(default_factory=_Cel)


_Selectors: TypeAlias = Annotated[list[_Selector], Meta(max_length=limits.SELECTORS)]


def _read(raw: object, kind: type[_T]) -> _T:
    """A part of an object; null is one without fields. Raises ``Unreadable``."""
    return read_value({} if raw is None else raw, kind)


def _unknown_fields(raw: object, what: str, kind: type[Struct]) -> Iterator[str]:
    """A problem for each field of an object that is not known."""
    unknown = raw.keys() - set(kind.__struct_fields__) if isinstance(raw, dict) else ()
    return (f"{what} {quoted(key)}" for key in sorted(unknown))


def _selected(selector: NodeSelectorManifest) -> NodeScope:
    """Raises ``Unreadable``."""
    if selector.is_too_large:
        raise Unreadable("nodeSelector is too large to be read")
    return NodeScope(terms=selector.terms())


def _within_limits(parts: list[_Taints]) -> tuple[_Taints, ...]:
    """Taints or tolerations. Raises ``Unreadable``."""
    if longest_text(parts) > limits.KEY:
        raise Unreadable(f"a taint or toleration of more than {limits.KEY} characters")
    return tuple(parts)


# ResourceSlices.


class _Attribute(Struct):
    string: str | None = None
    version: str | None = None
    number: int | None = field(name="int", default=None)
    flag: bool | None = field(name="bool", default=None)

    def value(self) -> Value | None:
        """None if the type is not known, or the value is too large for its type."""
        if self.string is not None:
            return sys.intern(self.string) if len(self.string) <= limits.ATTRIBUTE else None
        if self.version is not None:
            return parse_version(self.version)
        if self.number is not None:
            return self.number if abs(self.number) <= INT64_MAX else None
        return self.flag


class _Range(Struct):
    min: str | None = None
    max: str | None = None
    step: str | None = None


class _RequestPolicy(Struct):
    default: str | None = None
    validValues: Annotated[list[str], Meta(max_length=limits.POLICY_VALUES)] = []
    validRange: _Range = field(default_factory=_Range)

    def record(self) -> CapacityRequestPolicy:
        bounds, values = self.validRange, tuple(parse_amount(text).number for text in self.validValues)
        default, minimum, maximum, step = map(_number, (self.default, bounds.min, bounds.max, bounds.step))
        return CapacityRequestPolicy(default, values, minimum, maximum, step)


class _Capacity(Struct):
    value: str = ""
    requestPolicy: _RequestPolicy | None = None


class _Counters(Struct):
    """A set of counters, or what a device consumes of it."""

    name: _Name = ""
    counterSet: _Name = ""
    compatibilityGroups: Any = None
    counters: Annotated[dict[_Name, _Capacity], Meta(max_length=limits.COUNTERS)] = {}

    def amounts(self) -> dict[str, Number]:
        numbers = {sys.intern(key): parse_amount(one.value).number for key, one in self.counters.items()}
        return {key: one.numerator if one.denominator == 1 else one for key, one in numbers.items()}


_CounterSets: TypeAlias = Annotated[list[_Counters], Meta(max_length=limits.COUNTER_SETS)]


class _Device(_Placed, kw_only=True):
    name: _FullName
    attributes: Annotated[dict[_Key, _Attribute], Meta(max_length=limits.DEVICE_ATTRIBUTES)] = {}
    capacity: Annotated[dict[_Key, _Capacity], Meta(max_length=limits.DEVICE_ATTRIBUTES)] = {}
    consumesCounters: _CounterSets = []
    taints: Annotated[list[Taint], Meta(max_length=limits.DEVICE_TAINTS)] = []
    allowMultipleAllocations: bool = False
    bindsToNode: Any = None
    bindingConditions: Any = None
    bindingFailureConditions: Any = None

    def record(self, driver: str, problems: Iterable[str]) -> Device:
        """``problems`` are those that are known already."""
        values = {key: one.value() for key, one in self.attributes.items()}
        amounts = {key: parse_amount(one.value) for key, one in self.capacity.items()}
        odd = [f"attribute {quoted(key)}" for key, value in values.items() if value is None]
        odd += ["compatibilityGroups" for one in self.consumesCounters if one.compatibilityGroups]
        return Device(
            self.name,
            _by_domain({key: value for key, value in values.items() if value is not None}, driver),
            _by_domain(amounts, driver),
            amounts,
            {
                (sys.intern(one.counterSet), counter): amount
                for one in self.consumesCounters
                for counter, amount in one.amounts().items()
            },
            _within_limits(self.taints),
            self.scope(),
            allow_multiple_allocations=self.allowMultipleAllocations,
            capacity_policies={
                key: one.requestPolicy.record() for key, one in self.capacity.items() if one.requestPolicy
            },
            has_binding_conditions=self.bindingConditions is not None,
            problem=next(chain(problems, odd), ""),
        )


class _Pool(Struct):
    name: _FullName
    generation: int = -1
    resourceSliceCount: int = -1


class _Slice(_Placed, kw_only=True):
    driver: _FullName
    pool: _Pool
    perDeviceNodeSelection: bool = False
    devices: Annotated[list[_Device], Meta(max_length=limits.SLICE_DEVICES)] = []
    sharedCounters: _CounterSets = []


class ResourceSliceManifest(Manifest, frozen=True, gc=False):
    spec: Any = None

    def record(self) -> ResourceSlice:
        return parse_slice(self.metadata.name, self.spec)


def parse_slice(name: str, raw: Any) -> ResourceSlice:  # noqa: ANN401 (whatever the object has)
    """The slice. Of one that cannot be read only what tells its pool and its place."""
    try:
        spec = read_value(raw, _Slice)
        driver = sys.intern(spec.driver)
        unknown = [_unknown_fields(one, "device field", _Device) for one in raw.get("devices") or ()]
        return ResourceSlice(
            name,
            driver,
            sys.intern(spec.pool.name),
            _int64(spec.pool.generation),
            _int64(spec.pool.resourceSliceCount),
            spec.scope() or NodeScope(),
            spec.perDeviceNodeSelection,
            tuple(one.record(driver, keys) for one, keys in zip(spec.devices, unknown, strict=True)),
            tuple((sys.intern(one.name), one.amounts()) for one in spec.sharedCounters),
        )
    except _UNREADABLE as error:
        raw = raw if isinstance(raw, dict) else {}
        pool = raw.get("pool")
        pool = pool if isinstance(pool, dict) else {}
        node = _name_or_empty(raw.get("nodeName"))
        return ResourceSlice(
            name,
            driver=_name_or_empty(raw.get("driver")),
            pool=_name_or_empty(pool.get("name")),
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


def _name_or_empty(raw: object) -> str:
    """A name, "" for another type or a text that is too long for a name."""
    return raw if isinstance(raw, str) and len(raw) <= limits.OBJECT_NAME else ""


def _int64(raw: object) -> int:
    """A 64-bit integer, -1 for anything else."""
    return raw if type(raw) is int and abs(raw) <= INT64_MAX else -1


# DeviceClasses and DeviceTaintRules.


class _ClassSpec(Struct):
    selectors: _Selectors = []
    extendedResourceName: _Key = ""


class DeviceClassManifest(Manifest, frozen=True, gc=False):
    spec: Any = None

    def record(self) -> DeviceClass:
        return parse_class(self.metadata.name, self.spec)


def parse_class(name: str, raw: object) -> DeviceClass:
    try:
        spec = _read(raw, _ClassSpec)
        return DeviceClass(name, _expressions([spec.selectors])[0], spec.extendedResourceName)
    except Unreadable as error:
        return DeviceClass(name, problem=str(error))


def _expressions(selectors: Iterable[list[_Selector]]) -> list[tuple[str, ...]]:
    """The CEL expressions of a class, or of each request of a claim. Raises ``Unreadable``."""
    expressions = [tuple(one.cel.expression for one in some) for some in selectors]
    if sum(len(text) for some in expressions for text in some) > limits.CLAIM_TEXT:
        raise Unreadable(f"selectors of more than {limits.CLAIM_TEXT} characters")
    return expressions


class _DeviceSelector(Struct):
    driver: _Name = ""
    pool: _Name = ""
    device: _Name = ""


class _RuleSpec(Struct):
    deviceSelector: _DeviceSelector = field(default_factory=_DeviceSelector)
    taint: Taint = field(default_factory=Taint)


class DeviceTaintRuleManifest(Manifest, frozen=True, gc=False):
    """A DeviceTaintRule of any version. A file has one version of each object."""

    spec: Any = None

    def record(self, kind: DeviceTaintRuleKind = "DeviceTaintRule") -> DeviceTaintRule:
        return parse_taint_rule(kind, self.metadata.name, self.spec)


def parse_taint_rule(kind: DeviceTaintRuleKind, name: str, raw: object) -> DeviceTaintRule:
    """A rule without a selector taints all devices, as the code of kube-scheduler has it (``applyPatches`` in
    k8s.io/dynamic-resource-allocation v0.36.3, ``resourceslice/tracker``). Up to 1.34 a selector may have CEL
    expressions and a class, which are not read."""
    try:
        spec = _read(raw, _RuleSpec)
        (taint,), one = _within_limits([spec.taint]), spec.deviceSelector
        raw_selector = raw.get("deviceSelector") if isinstance(raw, dict) else None
        unknown = _unknown_fields(raw_selector, "device selector field", _DeviceSelector)
        problem = next(unknown, "")
        return DeviceTaintRule(kind, name, taint, one.driver, one.pool, one.device, problem)
    except Unreadable as error:
        return DeviceTaintRule(kind, name, Taint(), problem=str(error))


# ResourceClaims: what they ask for (``spec.devices``) and what is allocated to them (``status``).


class _CapacityRequests(Struct):
    requests: Annotated[dict[_Key, str], Meta(max_length=limits.DEVICE_ATTRIBUTES)] = {}


class _SubRequest(Struct, forbid_unknown_fields=True):
    name: _Name = ""
    deviceClassName: _Name = ""
    selectors: _Selectors = []
    allocationMode: str = "ExactCount"
    count: Annotated[int, Meta(ge=1, le=INT64_MAX)] = 1
    adminAccess: bool = False
    tolerations: Annotated[list[Toleration], Meta(max_length=limits.DEVICE_TOLERATIONS)] = []
    capacity: _CapacityRequests = field(default_factory=_CapacityRequests)

    def record(self, name: str) -> DeviceSubRequest:
        if self.allocationMode not in ("", "ExactCount", "All"):
            raise Unreadable(f"allocation mode {quoted(self.allocationMode)}")
        return DeviceSubRequest(
            name,
            self.deviceClassName,
            tuple(one.cel.expression for one in self.selectors),
            None if self.allocationMode == "All" else self.count,
            _sorted_amounts(self.capacity.requests),
            _within_limits(self.tolerations),
            self.adminAccess,
        )


class _Request(Struct, forbid_unknown_fields=True):
    name: _Name = ""
    exactly: _SubRequest | None = None
    firstAvailable: Annotated[list[_SubRequest], Meta(max_length=limits.CLAIM_ALTERNATIVES)] = []

    @property
    def subrequests(self) -> list[_SubRequest]:
        return self.firstAvailable or ([self.exactly] if self.exactly else [])

    def record(self) -> DeviceRequest:
        if not self.subrequests:
            raise Unreadable(f"request {quoted(self.name)} has neither 'exactly' nor 'firstAvailable'")
        is_choice = bool(self.firstAvailable)
        subrequests = [one.record(one.name if is_choice else self.name) for one in self.subrequests]
        return DeviceRequest(self.name, tuple(subrequests), is_choice)


class _Constraint(Struct, forbid_unknown_fields=True):
    requests: Annotated[
        list[_Key], Meta(max_length=limits.CLAIM_REQUESTS * (1 + limits.CLAIM_ALTERNATIVES))
    ] = []
    matchAttribute: _Key = ""
    distinctAttribute: _Key = ""

    def record(self) -> DeviceConstraint:
        same, distinct = self.matchAttribute, self.distinctAttribute
        if bool(same) == bool(distinct):
            raise Unreadable("a constraint has not one attribute")
        return DeviceConstraint(same or distinct, frozenset(self.requests), bool(distinct))


class _Devices(Struct, forbid_unknown_fields=True):
    requests: Annotated[list[_Request], Meta(max_length=limits.CLAIM_REQUESTS)] = []
    constraints: Annotated[list[_Constraint], Meta(max_length=limits.CLAIM_CONSTRAINTS)] = []
    config: Any = None


class _ClaimSpec(Struct):
    devices: _Devices = field(default_factory=_Devices)


class _AllocatedDevices(Struct):
    results: list[Any] = []


class _Allocation(Struct):
    devices: _AllocatedDevices = field(default_factory=_AllocatedDevices)
    nodeSelector: Any = None


class _ClaimStatus(Struct):
    allocation: _Allocation | None = None


class _User(Struct):
    apiGroup: str = ""
    resource: str = ""
    name: _Name = ""


class _Users(Struct):
    reservedFor: Annotated[list[_User], Meta(max_length=limits.CLAIM_USERS)] = []


class _Result(Struct):
    driver: _FullName
    pool: _FullName
    device: _FullName
    adminAccess: Any = None
    shareID: Any = None
    consumedCapacity: Any = None

    def record(self) -> AllocationResult:
        names = DeviceId(*map(sys.intern, (self.driver, self.pool, self.device)))
        admin_access = self.adminAccess is True
        if self.consumedCapacity is None:
            return AllocationResult(names, self.shareID is not None, None, admin_access)
        try:
            consumed = read_value({"requests": self.consumedCapacity}, _CapacityRequests).requests
            amounts = _sorted_amounts(consumed)
        except _UNREADABLE:  # it may consume all of the device
            return AllocationResult(names, admin_access=admin_access)
        return AllocationResult(names, self.shareID is not None, amounts, admin_access)


class ResourceClaimManifest(Manifest, frozen=True, gc=False):
    spec: Any = None
    status: Any = None

    def record(self) -> ResourceClaim:
        """The claim. Its namespace is ``default`` if the manifest has none."""
        metadata, owner = self.metadata, self.metadata.controller
        return parse_claim(
            metadata.namespace_or_default,
            metadata.name,
            self.spec,
            self.status,
            made_for=owner.uid if owner and owner.kind == "Pod" else "",
            deleting=metadata.deletionTimestamp is not None,
        )


class _ClaimOfTemplate(Struct, frozen=True):
    spec: Any = None


class ResourceClaimTemplateManifest(Manifest, frozen=True, gc=False):
    spec: _ClaimOfTemplate = _ClaimOfTemplate()

    def record(self) -> ResourceClaimTemplate:
        metadata = self.metadata
        devices = _device_claim(self.spec.spec)
        return ResourceClaimTemplate(metadata.namespace_or_default, metadata.name, devices, devices.problem)


def parse_claim(
    namespace: str,
    name: str,
    spec: object,
    status: object,
    made_for: str = "",
    deleting: bool = False,
) -> ResourceClaim:
    """Each part is read on its own: allocated devices are known even if the spec or the users are not."""
    problems: list[str] = []
    devices = _device_claim(spec)
    problems += [devices.problem] if devices.problem else []
    allocation, unreadable_pools, available_on = _allocation(status)
    if unreadable_pools:
        problems.append("its allocation cannot be read")
    elif available_on is None:
        problems.append("the nodes of its allocation cannot be read")
    pods: tuple[str, ...] = ()
    try:
        users = _read(status, _Users).reservedFor
        are_pods = [user.resource == "pods" and not user.apiGroup for user in users]
        pods, others = tuple(user.name for user in compress(users, are_pods)), not all(are_pods)
    except Unreadable as error:
        problems.append(str(error))
        others = True
    return ResourceClaim(
        namespace,
        name,
        devices,
        allocation,
        pods,
        unreadable_pools,
        shorten("; ".join(problems)),
        others,
        available_on,
        made_for,
        deleting,
    )


def _device_claim(spec: object) -> DeviceClaim:
    try:
        devices = _read(spec, _ClaimSpec).devices
        _expressions(sub.selectors for one in devices.requests for sub in one.subrequests)
        requests = tuple(one.record() for one in devices.requests)
        return DeviceClaim(requests, tuple(one.record() for one in devices.constraints)).interned()
    except _UNREADABLE as error:
        return DeviceClaim(problem=shorten(str(error))).interned()


def _allocation(
    status: object,
) -> tuple[tuple[AllocationResult, ...] | None, tuple[tuple[str, str], ...], NodeScope | None]:
    """The devices that are allocated, the pools of those that cannot be read, and the nodes where they can be
    used: all without a selector, None if they cannot be read."""
    try:
        allocation = _read(status, _ClaimStatus).allocation
    except Unreadable:
        return (), (UNKNOWN_POOL,), None
    if allocation is None:
        return None, (), NodeScope(all_nodes=True)
    results = allocation.devices.results
    parsed = [(one, _result(one)) for one in results[: limits.CLAIM_RESULTS]]
    unreadable = {_pool(one) for one, result in parsed if result is None}
    unreadable |= {_pool(one) for one in results[limits.CLAIM_RESULTS :]}
    if UNKNOWN_POOL in unreadable or len(unreadable) > limits.CLAIM_RESULTS:
        unreadable = {UNKNOWN_POOL}
    allocated = tuple(result for _, result in parsed if result is not None)
    return allocated, tuple(sorted(unreadable)), _available_on(allocation.nodeSelector)


def _available_on(selector: object) -> NodeScope | None:
    if selector is None:
        return NodeScope(all_nodes=True)
    try:
        return _selected(read_value(selector, NodeSelectorManifest))
    except Unreadable:
        return None


def _result(raw: object) -> AllocationResult | None:
    """One device, or None if its name cannot be read."""
    try:
        return read_value(raw, _Result).record()
    except Unreadable:
        return None


def _pool(result: object) -> tuple[str, str]:
    raw = result if isinstance(result, dict) else {}
    driver, pool = _name_or_empty(raw.get("driver")), _name_or_empty(raw.get("pool"))
    return (driver, pool) if driver and pool else UNKNOWN_POOL


def _sorted_amounts(amounts: Mapping[str, str]) -> tuple[tuple[str, Amount], ...]:
    return tuple((name, parse_amount(text)) for name, text in sorted(amounts.items()))
