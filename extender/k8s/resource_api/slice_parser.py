"""ResourceSlices, DeviceClasses and ResourceClaims of the wire, read into records.

Facts: the types in k8s.io/api ``resource/v1/types.go`` (v0.36.3). What cannot be read is a problem of the
object and never an exception; a device or a request with a field that is not known here is marked as unclear,
because the field may change who gets what.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from extender.k8s.affinity import NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration
from extender.k8s.quantity import QuantityError
from extender.k8s.resource_api.objects import (
    ANY_POOL,
    AllocationResult,
    CapacityRequestPolicy,
    Demand,
    Device,
    DeviceClass,
    DeviceConstraint,
    DeviceId,
    DeviceRequest,
    DeviceSubRequest,
    NodeScope,
    Number,
    ResourceClaim,
    ResourceSlice,
)
from extender.k8s.resource_api.values import Amount, Value, amount, version
from extender.untrusted.limits import (
    ATTRIBUTE,
    CLAIM_ALTERNATIVES,
    CLAIM_CONSTRAINTS,
    CLAIM_REQUESTS,
    CLAIM_RESULTS,
    CLAIM_TEXT,
    CLAIM_USERS,
    COUNTER_SETS,
    COUNTERS,
    DEVICE_ATTRIBUTES,
    DEVICE_TAINTS,
    DEVICE_TOLERATIONS,
    KEY,
    OBJECT_NAME,
    POLICY_VALUES,
    SELECTOR,
    SELECTOR_ITEMS,
    SELECTOR_TERMS,
    SELECTORS,
    SLICE_DEVICES,
    quoted,
    shorten,
)

_DEVICE = {
    *("name", "attributes", "capacity", "consumesCounters", "nodeName", "nodeSelector", "allNodes", "taints"),
    *("bindsToNode", "bindingConditions", "bindingFailureConditions", "allowMultipleAllocations"),
    "nodeAllocatableResourceMappings",
}
_REQUEST = {
    *("name", "deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations"),
    "capacity",
}
_DEVICES = {"requests", "constraints", "config"}
_Raw = Mapping[str, Any]
_LARGEST = 2**63 - 1


class _Malformed(ValueError):
    """An object is not of the form that the API gives it."""


def slice_of(name: str, raw: object) -> ResourceSlice:
    """The slice of this name with this ``spec``."""
    try:
        return _slice(name, _map(raw, "spec"))
    except (_Malformed, QuantityError) as error:
        spec = raw if isinstance(raw, Mapping) else {}
        pool = spec.get("pool")
        pool = pool if isinstance(pool, Mapping) else {}
        node = _short(spec.get("nodeName"))
        return ResourceSlice(
            name,
            driver=_short(spec.get("driver")),
            pool=_short(pool.get("name")),
            generation=_number(pool.get("generation")),
            slices=_number(pool.get("resourceSliceCount")),
            reach=NodeScope(node, everywhere=not node),
            problem=shorten(str(error)),
        )


def class_of(name: str, raw: object) -> DeviceClass:
    """The class of this name with this ``spec``."""
    try:
        spec = _map(raw, "spec")
        selectors = _selectors(spec)
        _check_text(selectors)
        return DeviceClass(name, selectors, _name(spec.get("extendedResourceName"), "resource", KEY))
    except _Malformed as error:
        return DeviceClass(name, problem=shorten(str(error)))


def claim_of(namespace: str, name: str, raw_spec: object, raw_status: object) -> ResourceClaim:
    """The claim of this name with this ``spec`` and ``status``.

    Each part is read on its own: whatever is wrong with the others, devices that it has been given are held.
    """
    problems: list[str] = []
    try:
        demand = _demand(_map(_map(raw_spec, "spec").get("devices"), "devices"))
    except (_Malformed, QuantityError) as error:
        problems.append(shorten(str(error)))
        demand = Demand.of(unclear=problems[0])
    try:
        status = _map(raw_status, "status")
        grants, hidden = _allocated(status.get("allocation"))
    except _Malformed as error:
        problems.append(str(error))
        status, grants, hidden = {}, (), (ANY_POOL,)
    if hidden:
        problems.append("its allocation cannot be read")
    try:
        pods = _users(status)
    except _Malformed as error:
        problems.append(str(error))
        pods = ()
    problem = shorten("; ".join(problems))
    return ResourceClaim(namespace, name, demand, grants, pods, hidden, problem)


def _slice(name: str, spec: _Raw) -> ResourceSlice:
    pool, driver = _map(spec.get("pool"), "pool"), sys.intern(_name(spec.get("driver"), "driver"))
    pool_name = sys.intern(_name(pool.get("name"), "pool"))
    if not driver or not pool_name:
        raise _Malformed("names no driver or no pool")
    sets = _maps(spec.get("sharedCounters"), "sharedCounters", COUNTER_SETS)
    devices = _maps(spec.get("devices"), "devices", SLICE_DEVICES)
    return ResourceSlice(
        name,
        driver,
        pool_name,
        _number(pool.get("generation")),
        _number(pool.get("resourceSliceCount")),
        _reach(spec) or NodeScope(),
        spec.get("perDeviceNodeSelection") is True,
        tuple(_device(one, driver) for one in devices),
        tuple((sys.intern(_name(one.get("name"), "counter set")), _amounts(one)) for one in sets),
    )


def _device(raw: _Raw, driver: str) -> Device:
    name = _name(raw.get("name"), "device")
    if not name:
        raise _Malformed("a device has no name")
    attributes, unreadable = _attributes(_map(raw.get("attributes"), "attributes", DEVICE_ATTRIBUTES), driver)
    capacity = {
        _name(key, "capacity", KEY): _map(one, f"capacity {quoted(str(key))}")
        for key, one in _map(raw.get("capacity"), "capacity", DEVICE_ATTRIBUTES).items()
    }
    named = {key: amount(one.get("value", "")) for key, one in capacity.items()}
    unknown = sorted(map(str, raw.keys() - _DEVICE))
    return Device(
        name,
        attributes,
        _by_domain(named, driver),
        named,
        _consumed(raw),
        tuple(_taint(one) for one in _maps(raw.get("taints"), "taints", DEVICE_TAINTS)),
        _reach(raw),
        shared=raw.get("allowMultipleAllocations") is True,
        policies={
            key: _policy(_map(one["requestPolicy"], "requestPolicy"))
            for key, one in capacity.items()
            if one.get("requestPolicy") is not None
        },
        later=raw.get("bindingConditions") is not None,
        unreadable=f"device field {quoted(unknown[0])}" if unknown else unreadable,
    )


def _policy(raw: _Raw) -> CapacityRequestPolicy:
    between = _map(raw.get("validRange"), "validRange")
    default, least, most, step = (
        None if given is None else amount(given).number
        for given in (raw.get("default"), *(between.get(key) for key in ("min", "max", "step")))
    )
    listed = _list(raw.get("validValues"), "validValues", POLICY_VALUES)
    values = tuple(amount(one).number for one in listed)
    return CapacityRequestPolicy(default, values, least, most, step)


def _attributes(raw: _Raw, driver: str) -> tuple[dict[str, dict[str, Value]], str]:
    found: dict[str, Value] = {}
    unreadable = ""
    for key, one in raw.items():
        value = _value(_map(one, f"attribute {quoted(str(key))}"))
        if value is None:
            unreadable = f"attribute {quoted(str(key))}"
        else:
            found[_name(key, "attribute", KEY)] = value
    return _by_domain(found, driver), unreadable


def _value(raw: _Raw) -> Value | None:
    """An attribute's value, None for a type that is not known, or a value that is too large for its type."""
    for kind, value in raw.items():
        if kind == "string" and isinstance(value, str):
            return sys.intern(value) if len(value) <= ATTRIBUTE else None
        if kind == "version" and isinstance(value, str):
            return version(value)
        if kind == "int" and isinstance(value, int) and not isinstance(value, bool):
            return value if abs(value) <= _LARGEST else None
        if kind == "bool" and isinstance(value, bool):
            return value
    return None


def _by_domain(values: Mapping[str, Any], driver: str) -> dict[str, dict[str, Any]]:
    domains: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        domain, slash, name = key.partition("/")
        home = domains.setdefault(sys.intern(domain) if slash else driver, {})
        home[sys.intern(name if slash else domain)] = value
    return domains


def _consumed(raw: _Raw) -> dict[tuple[str, str], Number]:
    found: dict[tuple[str, str], Number] = {}
    for consumption in _maps(raw.get("consumesCounters"), "consumesCounters", COUNTER_SETS):
        source = sys.intern(_name(consumption.get("counterSet"), "counter set"))
        found |= {(source, counter): taken for counter, taken in _amounts(consumption).items()}
    return found


def _amounts(raw: _Raw) -> dict[str, Number]:
    counters = _map(raw.get("counters"), "counters", COUNTERS)
    return {
        sys.intern(_name(name, "counter")): _number_of(one, f"counter {quoted(str(name))}")
        for name, one in counters.items()
    }


def _number_of(raw: object, what: str) -> Number:
    number = amount(_map(raw, what).get("value", "")).number
    return number.numerator if number.denominator == 1 else number


def _taint(raw: _Raw) -> Taint:
    return Taint(*(_name(raw.get(key), f"taint {key}", KEY) for key in ("key", "value", "effect")))


def _reach(raw: _Raw) -> NodeScope | None:
    if name := _name(raw.get("nodeName"), "node"):
        return NodeScope(sys.intern(name))
    if raw.get("allNodes") is True:
        return NodeScope(everywhere=True)
    if raw.get("nodeSelector") is None:
        return None
    listed = _map(raw["nodeSelector"], "nodeSelector").get("nodeSelectorTerms")
    return NodeScope(terms=tuple(_term(term) for term in _maps(listed, "nodeSelectorTerms", SELECTOR_TERMS)))


def _term(raw: _Raw) -> NodeSelectorTerm:
    return NodeSelectorTerm(_expressions(raw, "matchExpressions"), _expressions(raw, "matchFields"))


def _expressions(term: _Raw, source: str) -> tuple[NodeSelectorRequirement, ...]:
    return tuple(
        NodeSelectorRequirement(
            _name(one.get("key"), "label", KEY),
            _name(one.get("operator"), "operator"),
            tuple(_name(value, "label") for value in _list(one.get("values"), "values", SELECTOR_ITEMS)),
        )
        for one in _maps(term.get(source), source, SELECTOR_TERMS)
    )


def _selectors(raw: _Raw) -> tuple[str, ...]:
    return tuple(
        _name(_map(one.get("cel"), "cel").get("expression"), "selector", SELECTOR)
        for one in _maps(raw.get("selectors"), "selectors", SELECTORS)
    )


def _check_text(selectors: Iterable[str]) -> None:
    if sum(map(len, selectors)) > CLAIM_TEXT:
        raise _Malformed(f"selectors of more than {CLAIM_TEXT} characters")


def _demand(raw: _Raw) -> Demand:
    unclear: list[str] = [f"claim field {quoted(name)}" for name in sorted(map(str, raw.keys() - _DEVICES))]

    def note(text: str) -> None:
        unclear.append(text)

    choices = tuple(_choice(one, note) for one in _maps(raw.get("requests"), "requests", CLAIM_REQUESTS))
    _check_text(text for choice in choices for one in choice.options for text in one.selectors)
    agreements = tuple(
        _agreement(one, note) for one in _maps(raw.get("constraints"), "constraints", CLAIM_CONSTRAINTS)
    )
    return Demand.of(choices, agreements, shorten(unclear[0]) if unclear else "")


def _choice(raw: _Raw, note: Callable[[str], None]) -> DeviceRequest:
    name = _name(raw.get("name"), "request")
    options = _maps(raw.get("firstAvailable"), "firstAvailable", CLAIM_ALTERNATIVES)
    if unknown := sorted(map(str, raw.keys() - {"name", "exactly", "firstAvailable"})):
        note(f"request field {quoted(unknown[0])}")
    if options:
        return DeviceRequest(name, tuple(_request(one, note) for one in options), ranked=True)
    if raw.get("exactly") is None:
        note(f"request {quoted(name)} asks for nothing")
        return DeviceRequest(name, ())
    return DeviceRequest(name, (_request({**_map(raw["exactly"], "exactly"), "name": name}, note),))


def _request(raw: _Raw, note: Callable[[str], None]) -> DeviceSubRequest:
    if unknown := sorted(map(str, raw.keys() - _REQUEST)):
        note(f"request field {quoted(unknown[0])}")
    mode = _text(raw.get("allocationMode")) or "ExactCount"
    if mode not in ("ExactCount", "All"):
        note(f"allocation mode {quoted(mode)}")
    asked = _map(raw.get("capacity"), "capacity").get("requests")
    capacity = {
        _name(key, "capacity", KEY): amount(value)
        for key, value in _map(asked, "capacity requests", DEVICE_ATTRIBUTES).items()
    }
    count = 1 if raw.get("count") is None else _number(raw["count"])
    if count < 1:
        note("a count that is no positive number")
    tolerations = _maps(raw.get("tolerations"), "tolerations", DEVICE_TOLERATIONS)
    return DeviceSubRequest(
        _name(raw.get("name"), "request"),
        _name(raw.get("deviceClassName"), "class"),
        _selectors(raw),
        None if mode == "All" else count,
        tuple(sorted(capacity.items(), key=lambda item: item[0])),
        tuple(
            Toleration(
                *(
                    _name(one.get(key), f"toleration {key}", KEY)
                    for key in ("key", "operator", "value", "effect")
                )
            )
            for one in tolerations
        ),
        raw.get("adminAccess") is True,
    )


def _agreement(raw: _Raw, note: Callable[[str], None]) -> DeviceConstraint:
    same, distinct = (
        _name(raw.get(key), "attribute", KEY) for key in ("matchAttribute", "distinctAttribute")
    )
    if raw.keys() - {"requests", "matchAttribute", "distinctAttribute"} or bool(same) == bool(distinct):
        note("a constraint")
    named = _list(raw.get("requests"), "requests", CLAIM_REQUESTS * (1 + CLAIM_ALTERNATIVES))
    return DeviceConstraint(
        same or distinct, frozenset(_name(one, "request", KEY) for one in named), bool(distinct)
    )


def _allocated(raw: object) -> tuple[tuple[AllocationResult, ...] | None, tuple[tuple[str, str], ...]]:
    """The devices that a claim has, and the pools of which it has some that cannot be read."""
    if raw is None:
        return None, ()
    try:
        results = _list(_map(_map(raw, "allocation").get("devices"), "devices").get("results"), "results")
    except _Malformed:
        return (), (ANY_POOL,)
    grants = [grant for one in results[:CLAIM_RESULTS] if (grant := _grant(one)) is not None]
    hidden = {_pool_of(one) for one in results[:CLAIM_RESULTS] if _grant(one) is None}
    hidden |= {_pool_of(one) for one in results[CLAIM_RESULTS:]}
    if ANY_POOL in hidden or len(hidden) > CLAIM_RESULTS:
        hidden = {ANY_POOL}
    return tuple(grants), tuple(sorted(hidden))


def _grant(raw: object) -> AllocationResult | None:
    """One device; None where it cannot be read which."""
    if not isinstance(raw, dict):
        return None
    names = [sys.intern(_short(raw.get(key))) for key in ("driver", "pool", "device")]
    if not all(names):
        return None
    watching = raw.get("adminAccess") is True
    try:
        consumed = _consumption(raw.get("consumedCapacity"))
    except (_Malformed, QuantityError):  # all of it may be consumed
        return AllocationResult(DeviceId(*names), watching=watching)
    return AllocationResult(DeviceId(*names), raw.get("shareID") is not None, consumed, watching)


def _pool_of(result: object) -> tuple[str, str]:
    raw = result if isinstance(result, dict) else {}
    driver, pool = _short(raw.get("driver")), _short(raw.get("pool"))
    return (driver, pool) if driver and pool else ANY_POOL


def _consumption(raw: object) -> tuple[tuple[str, Amount], ...] | None:
    if raw is None:
        return None
    consumed = _map(raw, "consumedCapacity", DEVICE_ATTRIBUTES)
    named = {_name(key, "capacity", KEY): amount(value) for key, value in consumed.items()}
    return tuple(sorted(named.items(), key=lambda item: item[0]))


def _users(status: _Raw) -> tuple[str, ...]:
    users = _maps(status.get("reservedFor"), "reservedFor", CLAIM_USERS)
    return tuple(_name(user.get("name"), "pod") for user in users if user.get("resource") == "pods")


def _map(raw: object, what: str, most: int | None = None) -> _Raw:
    """An object of the API with at most so many fields that its author names. Raises ``_Malformed``."""
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise _Malformed(f"{what} is no object")
    if most is not None and len(raw) > most:
        raise _Malformed(f"{what} has more than {most} entries")
    return raw


def _list(raw: object, what: str, most: int | None = None) -> list[Any]:
    """A list of the API with at most so many items. Raises ``_Malformed``."""
    if raw is None:
        return []
    if not isinstance(raw, list):
        raise _Malformed(f"{what} is no list")
    if most is not None and len(raw) > most:
        raise _Malformed(f"{what} has more than {most} entries")
    return raw


def _maps(raw: object, what: str, most: int) -> list[_Raw]:
    """A list of objects of the API, at most so many. Raises ``_Malformed``."""
    return [_map(one, what) for one in _list(raw, what, most)]


def _text(raw: object) -> str:
    return raw if isinstance(raw, str) else ""


def _name(raw: object, what: str, most: int = OBJECT_NAME) -> str:
    """A text of at most so many characters, "" for what is no text. Raises ``_Malformed``."""
    text = _text(raw)
    if len(text) > most:
        raise _Malformed(f"a {what} of more than {most} characters")
    return text


def _short(raw: object) -> str:
    """A name, "" for what is none."""
    text = _text(raw)
    return text if len(text) <= OBJECT_NAME else ""


def _number(raw: object) -> int:
    """An integer of 64 bits; -1 for what is none."""
    if isinstance(raw, float) and raw.is_integer():  # which infinities and NaN are not
        raw = int(raw)
    return raw if isinstance(raw, int) and not isinstance(raw, bool) and abs(raw) <= _LARGEST else -1
