"""Parses ResourceClaims: what they ask for (``spec.devices``) and what is allocated to them (``status``).

Facts: k8s.io/api ``resource/v1/types.go`` (v0.36.3). A claim that cannot be read gets a ``problem``. Its
``devices`` get one if they have an unknown field, which may change the devices that the claim gets.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from itertools import compress

from extender.k8s.affinity import Toleration
from extender.k8s.quantity import QuantityError
from extender.k8s.resource_api.fields import (
    Malformed,
    Raw,
    check_selector_text,
    name_or_empty,
    read_int64,
    read_list,
    read_map,
    read_maps,
    read_name,
    read_selectors,
    sorted_amounts,
    unknown_field,
)
from extender.k8s.resource_api.objects import (
    ANY_POOL,
    AllocationResult,
    DeviceClaim,
    DeviceConstraint,
    DeviceId,
    DeviceRequest,
    DeviceSubRequest,
    NodeScope,
    ResourceClaim,
)
from extender.k8s.resource_api.slice_parser import read_node_selector
from extender.untrusted import limits
from extender.untrusted.limits import quoted, shorten

_SUBREQUEST_FIELDS = {
    *("name", "deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations"),
    "capacity",
}


def parse_claim(namespace: str, name: str, raw_spec: object, raw_status: object) -> ResourceClaim:
    """Each part is read on its own: allocated devices are known even if the spec or the users are not."""
    problems: list[str] = []
    try:
        raw_devices = read_map(raw_spec, "spec").get("devices")
        devices = _DeviceClaimParser().parse(read_map(raw_devices, "devices"))
    except (Malformed, QuantityError) as error:
        problems.append(shorten(str(error)))
        devices = DeviceClaim(problem=problems[0]).interned()
    try:
        status = read_map(raw_status, "status")
        allocation, unreadable_pools = _allocation(status.get("allocation"))
        available_on = _available_on(status.get("allocation"))
    except Malformed as error:
        problems.append(str(error))
        status, allocation, unreadable_pools, available_on = {}, (), (ANY_POOL,), None
    if unreadable_pools:
        problems.append("its allocation cannot be read")
    elif available_on is None:
        problems.append("the nodes of its allocation cannot be read")
    try:
        users = read_maps(status.get("reservedFor"), "reservedFor", limits.CLAIM_USERS)
        are_pods = [user.get("resource") == "pods" and not user.get("apiGroup") for user in users]
        pods = tuple(read_name(user.get("name"), "pod") for user in compress(users, are_pods))
        others = not all(are_pods)
    except Malformed as error:
        problems.append(str(error))
        pods, others = (), True
    problem = shorten("; ".join(problems))
    held = allocation, pods, unreadable_pools
    return ResourceClaim(namespace, name, devices, *held, problem, others, available_on)


@dataclass(slots=True)
class _DeviceClaimParser:
    """Parses ``spec.devices``, and collects in ``unsupported`` what is not known here."""

    unsupported: list[str] = field(default_factory=list)

    def parse(self, raw: Raw) -> DeviceClaim:
        self._check_fields("claim", raw, {"requests", "constraints", "config"})
        raw_requests = read_maps(raw.get("requests"), "requests", limits.CLAIM_REQUESTS)
        requests = tuple(self._request(one) for one in raw_requests)
        check_selector_text(text for one in requests for sub in one.subrequests for text in sub.selectors)
        raw_constraints = read_maps(raw.get("constraints"), "constraints", limits.CLAIM_CONSTRAINTS)
        constraints = tuple(self._constraint(one) for one in raw_constraints)
        return DeviceClaim(requests, constraints, shorten(next(iter(self.unsupported), ""))).interned()

    def _check_fields(self, what: str, raw: Raw, known: set[str]) -> None:
        if unknown := unknown_field(raw, known):
            self.unsupported.append(f"{what} field {unknown}")

    def _request(self, raw: Raw) -> DeviceRequest:
        name = read_name(raw.get("name"), "request")
        subrequests = read_maps(raw.get("firstAvailable"), "firstAvailable", limits.CLAIM_ALTERNATIVES)
        self._check_fields("request", raw, {"name", "exactly", "firstAvailable"})
        if subrequests:
            return DeviceRequest(name, tuple(map(self._subrequest, subrequests)), first_available=True)
        if raw.get("exactly") is None:
            self.unsupported.append(f"request {quoted(name)} has neither 'exactly' nor 'firstAvailable'")
            return DeviceRequest(name, ())
        return DeviceRequest(name, (self._subrequest({**read_map(raw["exactly"], "exactly"), "name": name}),))

    def _subrequest(self, raw: Raw) -> DeviceSubRequest:
        self._check_fields("request", raw, _SUBREQUEST_FIELDS)
        mode = raw.get("allocationMode")
        mode = (mode if isinstance(mode, str) else "") or "ExactCount"
        if mode not in ("ExactCount", "All"):
            self.unsupported.append(f"allocation mode {quoted(mode)}")
        capacity = read_map(raw.get("capacity"), "capacity").get("requests")
        amounts = sorted_amounts(capacity, "capacity requests")
        count = 1 if raw.get("count") is None else read_int64(raw["count"])
        if count < 1:
            self.unsupported.append("a count that is not a positive number")
        tolerations = read_maps(raw.get("tolerations"), "tolerations", limits.DEVICE_TOLERATIONS)
        return DeviceSubRequest(
            read_name(raw.get("name"), "request"),
            read_name(raw.get("deviceClassName"), "class"),
            read_selectors(raw),
            None if mode == "All" else count,
            amounts,
            tuple(map(_toleration, tolerations)),
            raw.get("adminAccess") is True,
        )

    def _constraint(self, raw: Raw) -> DeviceConstraint:
        same = read_name(raw.get("matchAttribute"), "attribute", limits.KEY)
        distinct = read_name(raw.get("distinctAttribute"), "attribute", limits.KEY)
        unknown = raw.keys() - {"requests", "matchAttribute", "distinctAttribute"}
        if unknown or bool(same) == bool(distinct):
            self.unsupported.append("a constraint")
        max_names = limits.CLAIM_REQUESTS * (1 + limits.CLAIM_ALTERNATIVES)
        names = read_list(raw.get("requests"), "requests", max_names)
        requests = frozenset(read_name(name, "request", limits.KEY) for name in names)
        return DeviceConstraint(same or distinct, requests, bool(distinct))


def _toleration(raw: Raw) -> Toleration:
    keys = ("key", "operator", "value", "effect")
    return Toleration(*(read_name(raw.get(key), f"toleration {key}", limits.KEY) for key in keys))


def _allocation(raw: object) -> tuple[tuple[AllocationResult, ...] | None, tuple[tuple[str, str], ...]]:
    """The devices that are allocated, and the pools of those that cannot be read."""
    if raw is None:
        return None, ()
    try:
        devices = read_map(read_map(raw, "allocation").get("devices"), "devices")
        results = read_list(devices.get("results"), "results")
    except Malformed:
        return (), (ANY_POOL,)
    parsed = [(one, _result(one)) for one in results[: limits.CLAIM_RESULTS]]
    allocated = tuple(result for _, result in parsed if result is not None)
    unreadable = {_pool(one) for one, result in parsed if result is None}
    unreadable |= {_pool(one) for one in results[limits.CLAIM_RESULTS :]}
    if ANY_POOL in unreadable or len(unreadable) > limits.CLAIM_RESULTS:
        unreadable = {ANY_POOL}
    return allocated, tuple(sorted(unreadable))


def _available_on(raw: object) -> NodeScope | None:
    """The nodes where an allocation can be used: all without a selector. None if they cannot be read."""
    try:
        selector = read_map(raw, "allocation").get("nodeSelector")
        return NodeScope(all_nodes=True) if selector is None else read_node_selector(selector)
    except Malformed:
        return None


def _result(raw: object) -> AllocationResult | None:
    """One device, or None if its name cannot be read."""
    if not isinstance(raw, dict):
        return None
    names = [sys.intern(name_or_empty(raw.get(key))) for key in ("driver", "pool", "device")]
    if not all(names):
        return None
    id, admin_access = DeviceId(*names), raw.get("adminAccess") is True
    try:
        consumed = raw.get("consumedCapacity")
        capacity = None if consumed is None else sorted_amounts(consumed, "consumedCapacity")
    except (Malformed, QuantityError):  # it may consume all of the device
        return AllocationResult(id, admin_access=admin_access)
    return AllocationResult(id, raw.get("shareID") is not None, capacity, admin_access)


def _pool(result: object) -> tuple[str, str]:
    raw = result if isinstance(result, dict) else {}
    driver, pool = name_or_empty(raw.get("driver")), name_or_empty(raw.get("pool"))
    return (driver, pool) if driver and pool else ANY_POOL
