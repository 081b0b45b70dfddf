"""ResourceClaims, their templates, and DeviceClasses: requests for devices, and allocations.

Facts: k8s.io/api ``resource/v1/types.go`` (v0.36.3). The requests of a claim (``spec.devices``) are decoded
directly into its record, whose types limit each list, map and text. An unreadable claim gets a ``problem``;
so does a claim with an unknown field, which may change the devices that it can use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import compress
from typing import Annotated, Any, ClassVar, Literal, TypeAlias
from weakref import WeakValueDictionary

import msgspec
from msgspec import Meta, Struct, field
from pydantic_core import CoreSchema, core_schema

from extender.k8s.affinity import NodeSelectorManifest, Toleration
from extender.k8s.manifest import Manifest, Named, Namespaced, Unreadable, as_list, as_map, read_value
from extender.k8s.resource_slices import (
    ALL_NODES,
    INT64_MAX,
    UNREADABLE,
    Amount,
    DeviceId,
    DeviceTaintRule,
    FullName,
    Key,
    Name,
    NodeScope,
    ResourceSlice,
    name_or_empty,
    parse_amount,
    read_part,
    selected,
    within_limits,
)
from extender.untrusted import limits
from extender.untrusted.limits import quoted, shorten


class _Cel(Struct, frozen=True):
    expression: Annotated[str, Meta(max_length=limits.SELECTOR)] = ""


class _Selector(Struct, frozen=True):
    cel: _Cel = _Cel()


class _Selecting(Struct, frozen=True, dict=True):
    selectors: Annotated[tuple[_Selector, ...], Meta(max_length=limits.SELECTORS)] = ()

    @cached_property
    def expressions(self) -> tuple[str, ...]:
        """CEL expressions, all of which must match."""
        return tuple(selector.cel.expression for selector in self.selectors)


def _check_length(selecting: Iterable[_Selecting]) -> None:
    """Raises ``Unreadable`` if the expressions of a class, or of all requests of a claim, are too long in
    total."""
    if sum(len(text) for each in selecting for text in each.expressions) > limits.CLAIM_TEXT:
        raise Unreadable(f"selectors of more than {limits.CLAIM_TEXT} characters")


class _ClassSpec(_Selecting, frozen=True):
    extendedResourceName: Key = ""


@dataclass(frozen=True, slots=True)
class DeviceClass(Named):
    """The class of devices that match all CEL ``selectors``."""

    kind: ClassVar[Literal["DeviceClass"]] = "DeviceClass"
    name: str
    selectors: tuple[str, ...] = ()
    extended_resource: str = ""
    problem: str = ""


class DeviceClassManifest(Manifest, frozen=True, gc=False):
    spec: Any = None

    def record(self) -> DeviceClass:
        try:
            spec = read_part(self.spec, _ClassSpec)
            _check_length([spec])
            return DeviceClass(self.metadata.name, spec.expressions, spec.extendedResourceName)
        except Unreadable as error:
            return DeviceClass(self.metadata.name, problem=str(error))


# Requests of claims.


class _Capacity(Struct, frozen=True, dict=True):
    requests: Annotated[dict[Key, str], Meta(max_length=limits.DEVICE_ATTRIBUTES)] = {}

    @cached_property
    def amounts(self) -> dict[str, Amount]:
        """Raises ``QuantityError``."""
        return {name: parse_amount(text) for name, text in sorted(self.requests.items())}


class DeviceSubRequest(
    _Selecting, frozen=True, rename="camel", kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A number of devices of one class, and the ``capacity`` requested of each."""

    name: Name = ""
    device_class: Name = field(name="deviceClassName", default="")
    allocation_mode: str = "ExactCount"
    exact_count: Annotated[int, Meta(ge=1, le=INT64_MAX)] = field(name="count", default=1)
    admin_access: bool = False
    tolerations: Annotated[tuple[Toleration, ...], Meta(max_length=limits.DEVICE_TOLERATIONS)] = ()
    capacity: _Capacity = _Capacity()

    def __post_init__(self) -> None:
        if self.allocation_mode not in ("", "ExactCount", "All"):
            raise Unreadable(f"allocation mode {quoted(self.allocation_mode)}")
        within_limits(self.tolerations)
        _ = self.capacity.amounts  # checks that all can be read

    @cached_property
    def count(self) -> int | None:
        """None for allocation mode ``All``."""
        return None if self.allocation_mode == "All" else self.exact_count


class DeviceRequest(
    Struct, frozen=True, dict=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """A request of a claim: one subrequest (``exactly``), or several in order of preference, one of which
    must be satisfied (``first_available``)."""

    name: Name = ""
    exactly: DeviceSubRequest | None = None
    first_available: Annotated[tuple[DeviceSubRequest, ...], Meta(max_length=limits.CLAIM_ALTERNATIVES)] = ()

    def __post_init__(self) -> None:
        if not self.subrequests:
            raise Unreadable(f"request {quoted(self.name)} has neither 'exactly' nor 'firstAvailable'")

    @cached_property
    def subrequests(self) -> tuple[DeviceSubRequest, ...]:
        return self.first_available or ((self.exactly,) if self.exactly else ())


class DeviceConstraint(
    Struct, frozen=True, dict=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """All devices of ``requests`` (of all requests, if empty) have the same value of an attribute, or
    different ones (``distinct``)."""

    requests: Annotated[
        tuple[Key, ...], Meta(max_length=limits.CLAIM_REQUESTS * (1 + limits.CLAIM_ALTERNATIVES))
    ] = ()
    match_attribute: Key = ""
    distinct_attribute: Key = ""

    def __post_init__(self) -> None:
        if bool(self.match_attribute) == bool(self.distinct_attribute):
            raise Unreadable("a constraint does not have exactly one attribute")

    @cached_property
    def attribute(self) -> str:
        return self.match_attribute or self.distinct_attribute

    @cached_property
    def distinct(self) -> bool:
        return bool(self.distinct_attribute)


class DeviceClaim(
    Struct, frozen=True, eq=False, weakref=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The requests of a claim (``spec.devices``). ``problem`` names an unsupported part, "" for none."""

    requests: Annotated[tuple[DeviceRequest, ...], Meta(max_length=limits.CLAIM_REQUESTS)] = ()
    constraints: Annotated[tuple[DeviceConstraint, ...], Meta(max_length=limits.CLAIM_CONSTRAINTS)] = ()
    config: Any = None
    problem: str = ""

    def interned(self) -> DeviceClaim:
        """The shared object with these contents, without parameters for drivers: many claims are created from
        one template."""
        claim = DeviceClaim(self.requests, self.constraints, problem=self.problem)
        return _DEVICE_CLAIMS.setdefault(msgspec.json.encode(claim), claim)

    @property
    def wants_all(self) -> bool:
        """Whether a request, or one of its alternatives, has the allocation mode ``All``."""
        return any(sub.count is None for request in self.requests for sub in request.subrequests)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: Callable[..., CoreSchema]) -> CoreSchema:
        """State dumps have the format of the API."""
        written = core_schema.plain_serializer_function_ser_schema(msgspec.to_builtins)
        return core_schema.no_info_plain_validator_function(
            partial(read_value, kind=cls), serialization=written
        )


_DEVICE_CLAIMS: WeakValueDictionary[bytes, DeviceClaim] = WeakValueDictionary()
NOTHING_ASKED = DeviceClaim()


class _ClaimSpec(Struct):
    devices: DeviceClaim = NOTHING_ASKED


def _device_claim(spec: object, version: str = "") -> DeviceClaim:
    try:
        spec = _as_in_v1(spec) if version.endswith("/v1beta1") else spec
        devices = read_part(spec, _ClaimSpec).devices
        _check_length(sub for request in devices.requests for sub in request.subrequests)
        return devices.interned()
    except Unreadable as error:
        return DeviceClaim(problem=shorten(str(error))).interned()


def _as_in_v1(spec: object) -> object:
    """The spec in the form that it has since v1beta2, where ``exactly`` holds what a request without
    alternatives asks for."""
    devices = as_map(as_map(spec).get("devices"))
    requests = [
        request if "firstAvailable" in as_map(request) else {"name": name, "exactly": rest}
        for request in as_list(devices.get("requests"))
        for name, rest in [(as_map(request).get("name", ""), {**as_map(request), "name": ""})]
    ]
    return {"devices": {**devices, "requests": requests}}


# Claims and their allocations (``status``).


@dataclass(frozen=True, slots=True)
class AllocationResult:
    """A device that is allocated to a claim. ``shared``: a part of the device, which consumes
    ``consumed_capacity`` (None: not specified). With ``admin_access``, the device remains available."""

    id: DeviceId
    shared: bool = False
    consumed_capacity: tuple[tuple[str, Amount], ...] | None = None
    admin_access: bool = False


UNKNOWN_POOL = ("", "")


@dataclass(frozen=True, slots=True)
class ResourceClaim(Namespaced):
    """A claim: its requests, its allocation (None: not allocated), and the pods that use it.
    ``reserved_for_others``: it may have consumers other than pods, so it outlives its pods.
    ``available_on``: the nodes where the allocated devices can be used, None if unreadable.

    ``unreadable_pools`` (driver, name) contain allocated devices whose names cannot be read. ``UNKNOWN_POOL``
    means that the pool cannot be read either. ``made_for``: the UID of the pod for which it was created from
    a template, "" for none.
    """

    kind: ClassVar[Literal["ResourceClaim"]] = "ResourceClaim"
    namespace: str
    name: str
    devices: DeviceClaim = NOTHING_ASKED
    allocation: tuple[AllocationResult, ...] | None = None
    reserved_for: tuple[str, ...] = ()
    unreadable_pools: tuple[tuple[str, str], ...] = ()
    problem: str = ""
    reserved_for_others: bool = False
    available_on: NodeScope | None = ALL_NODES
    made_for: str = ""
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class ResourceClaimTemplate(Namespaced):
    """The requests of the claims that are created from it."""

    kind: ClassVar[Literal["ResourceClaimTemplate"]] = "ResourceClaimTemplate"
    namespace: str
    name: str
    devices: DeviceClaim = NOTHING_ASKED
    problem: str = ""


DeviceRecord: TypeAlias = (
    ResourceSlice | ResourceClaim | ResourceClaimTemplate | DeviceClass | DeviceTaintRule
)


class ResourceClaimTemplateManifest(Manifest, frozen=True, gc=False):
    apiVersion: str = ""
    spec: dict[str, Any] = {}  # noqa: RUF012 (a new one for each)

    def record(self) -> ResourceClaimTemplate:
        metadata = self.metadata
        devices = _device_claim(self.spec.get("spec"), self.apiVersion)
        return ResourceClaimTemplate(metadata.namespace_or_default, metadata.name, devices, devices.problem)


class _User(Struct):
    apiGroup: str = ""
    resource: str = ""
    name: Name = ""


class _Users(Struct):
    reservedFor: Annotated[list[_User], Meta(max_length=limits.CLAIM_USERS)] = []


class ResourceClaimManifest(Manifest, frozen=True, gc=False):
    apiVersion: str = ""
    spec: Any = None
    status: Any = None

    def record(self) -> ResourceClaim:
        """The claim. Its namespace is ``default`` if the manifest has none. Each part is read separately:
        allocated devices are known even if the spec or consumers are not."""
        metadata, owner = self.metadata, self.metadata.controller
        devices = _device_claim(self.spec, self.apiVersion)
        problems = [devices.problem] if devices.problem else []
        allocation, unreadable_pools, available_on = _allocation(self.status)
        if unreadable_pools:
            problems.append("its allocation cannot be read")
        elif available_on is None:
            problems.append("the nodes of its allocation cannot be read")
        pods: tuple[str, ...] = ()
        try:
            users = read_part(self.status, _Users).reservedFor
            are_pods = [user.resource == "pods" and not user.apiGroup for user in users]
            pods, others = tuple(user.name for user in compress(users, are_pods)), not all(are_pods)
        except Unreadable as error:
            problems.append(str(error))
            others = True
        return ResourceClaim(
            metadata.namespace_or_default,
            metadata.name,
            devices,
            allocation,
            pods,
            unreadable_pools,
            shorten("; ".join(problems)),
            others,
            available_on,
            made_for=owner.uid if owner and owner.kind == "Pod" else "",
            deleting=metadata.deletionTimestamp is not None,
        )


class _AllocatedDevices(Struct):
    results: list[Any] = []


class _Allocation(Struct):
    devices: _AllocatedDevices = field(default_factory=_AllocatedDevices)
    nodeSelector: Any = None


class _ClaimStatus(Struct):
    allocation: _Allocation | None = None


def _allocation(
    status: object,
) -> tuple[tuple[AllocationResult, ...] | None, tuple[tuple[str, str], ...], NodeScope | None]:
    """The allocated devices, the pools of unreadable ones, and the nodes where the devices can be used: all
    without a selector, None if unreadable."""
    try:
        allocation = read_part(status, _ClaimStatus).allocation
    except Unreadable:
        return (), (UNKNOWN_POOL,), None
    if allocation is None:
        return None, (), ALL_NODES
    results = allocation.devices.results
    parsed = [(raw, _result(raw)) for raw in results[: limits.CLAIM_RESULTS]]
    unreadable = {_pool(raw) for raw, result in parsed if result is None}
    unreadable |= {_pool(raw) for raw in results[limits.CLAIM_RESULTS :]}
    if UNKNOWN_POOL in unreadable or len(unreadable) > limits.CLAIM_RESULTS:
        unreadable = {UNKNOWN_POOL}
    allocated = tuple(result for _, result in parsed if result is not None)
    return allocated, tuple(sorted(unreadable)), _available_on(allocation.nodeSelector)


def _available_on(selector: object) -> NodeScope | None:
    if selector is None:
        return ALL_NODES
    try:
        return selected(read_value(selector, NodeSelectorManifest))
    except Unreadable:
        return None


class _Result(Struct):
    driver: FullName
    pool: FullName
    device: FullName
    adminAccess: Any = None
    shareID: Any = None
    consumedCapacity: Any = None


def _result(raw: object) -> AllocationResult | None:
    """One device, or None if its name cannot be read."""
    try:
        found = read_value(raw, _Result)
    except Unreadable:
        return None
    id = DeviceId(*map(sys.intern, (found.driver, found.pool, found.device)))
    shared, consumed = found.shareID is not None, None
    if found.consumedCapacity is not None:
        try:
            consumed = read_value({"requests": found.consumedCapacity}, _Capacity).amounts
        except UNREADABLE:
            shared = False  # it may consume all of the device
    capacity = None if consumed is None else tuple(consumed.items())
    return AllocationResult(id, shared, capacity, found.adminAccess is True)


def _pool(result: object) -> tuple[str, str]:
    raw = result if isinstance(result, dict) else {}
    driver, pool = name_or_empty(raw.get("driver")), name_or_empty(raw.get("pool"))
    return (driver, pool) if driver and pool else UNKNOWN_POOL
