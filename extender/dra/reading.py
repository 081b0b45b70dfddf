"""ResourceSlices, DeviceClasses and ResourceClaims of the wire, read into records.

Facts: the types in k8s.io/api ``resource/v1/types.go`` (v0.36.3). What cannot be read is a problem of the
object and never an exception; a device or a request with a field that is not known here is marked as unclear,
because the field may change who gets what.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from extender.dra.capacity import Policy
from extender.dra.records import (
    Agreement,
    Choice,
    Demand,
    Device,
    DeviceClass,
    DeviceId,
    DeviceRequest,
    Grant,
    Reach,
    ResourceClaim,
    ResourceSlice,
)
from extender.dra.values import Amount, Value, amount, version
from extender.quantity import QuantityError
from extender.selectors import Expression, Term
from extender.taints import Taint, Toleration
from packing.first_fit import Number

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


class _Malformed(ValueError):
    """An object is not of the form that the API gives it."""


def slice_of(name: str, raw: object) -> ResourceSlice:
    """The slice of this name with this ``spec``."""
    try:
        return _slice(name, _map(raw, "spec"))
    except (_Malformed, QuantityError) as error:
        spec = raw if isinstance(raw, Mapping) else {}
        pool = spec.get("pool")
        return ResourceSlice(
            name,
            driver=_text(spec.get("driver")),
            pool=_text(pool.get("name")) if isinstance(pool, Mapping) else "",
            generation=_number(pool.get("generation")) if isinstance(pool, Mapping) else 0,
            slices=_number(pool.get("resourceSliceCount")) if isinstance(pool, Mapping) else 0,
            reach=Reach(_text(spec.get("nodeName")), everywhere=not _text(spec.get("nodeName"))),
            problem=str(error),
        )


def class_of(name: str, raw: object) -> DeviceClass:
    """The class of this name with this ``spec``."""
    try:
        spec = _map(raw, "spec")
        return DeviceClass(name, _selectors(spec), _text(spec.get("extendedResourceName")))
    except _Malformed as error:
        return DeviceClass(name, problem=str(error))


def claim_of(namespace: str, name: str, raw_spec: object, raw_status: object) -> ResourceClaim:
    """The claim of this name with this ``spec`` and ``status``."""
    try:
        status = _map(raw_status, "status")
        allocation = status.get("allocation")
        users = [_map(one, "reservedFor") for one in _list(status.get("reservedFor"), "reservedFor")]
        return ResourceClaim(
            namespace,
            name,
            _demand(_map(_map(raw_spec, "spec").get("devices"), "devices")),
            None if allocation is None else _grants(_map(allocation, "allocation")),
            tuple(_text(user.get("name")) for user in users if user.get("resource") == "pods"),
        )
    except (_Malformed, QuantityError) as error:
        return ResourceClaim(namespace, name, Demand(unclear=str(error)), problem=str(error))


def _slice(name: str, spec: _Raw) -> ResourceSlice:
    pool, driver = _map(spec.get("pool"), "pool"), sys.intern(_text(spec.get("driver")))
    if not driver or not _text(pool.get("name")):
        raise _Malformed("names no driver or no pool")
    sets = [_map(one, "sharedCounters") for one in _list(spec.get("sharedCounters"), "sharedCounters")]
    devices = _list(spec.get("devices"), "devices")
    return ResourceSlice(
        name,
        driver,
        sys.intern(_text(pool.get("name"))),
        _number(pool.get("generation")),
        _number(pool.get("resourceSliceCount")),
        _reach(spec) or Reach(),
        spec.get("perDeviceNodeSelection") is True,
        tuple(_device(_map(one, "device"), driver) for one in devices),
        tuple((sys.intern(_text(one.get("name"))), _amounts(one)) for one in sets),
    )


def _device(raw: _Raw, driver: str) -> Device:
    name = _text(raw.get("name"))
    if not name:
        raise _Malformed("a device has no name")
    attributes, unreadable = _attributes(_map(raw.get("attributes"), "attributes"), driver)
    capacity = {
        key: _map(one, f"capacity {key}") for key, one in _map(raw.get("capacity"), "capacity").items()
    }
    named = {str(key): amount(one.get("value", "")) for key, one in capacity.items()}
    unknown = sorted(map(str, raw.keys() - _DEVICE))
    return Device(
        name,
        attributes,
        _by_domain(named, driver),
        named,
        _consumed(raw),
        tuple(_taint(_map(one, "taint")) for one in _list(raw.get("taints"), "taints")),
        _reach(raw),
        shared=raw.get("allowMultipleAllocations") is True,
        policies={
            str(key): _policy(_map(one["requestPolicy"], "requestPolicy"))
            for key, one in capacity.items()
            if one.get("requestPolicy") is not None
        },
        later=raw.get("bindingConditions") is not None,
        unreadable=f"device field {unknown[0]}" if unknown else unreadable,
    )


def _policy(raw: _Raw) -> Policy:
    between = _map(raw.get("validRange"), "validRange")
    default, least, most, step = (
        None if given is None else amount(given).number
        for given in (raw.get("default"), *(between.get(key) for key in ("min", "max", "step")))
    )
    values = tuple(amount(one).number for one in _list(raw.get("validValues"), "validValues"))
    return Policy(default, values, least, most, step)


def _attributes(raw: _Raw, driver: str) -> tuple[dict[str, dict[str, Value]], str]:
    found: dict[str, Value] = {}
    unreadable = ""
    for key, one in raw.items():
        value = _value(_map(one, f"attribute {key}"))
        if value is None:
            unreadable = f"attribute {key}"
        else:
            found[key] = value
    return _by_domain(found, driver), unreadable


def _value(raw: _Raw) -> Value | None:
    """An attribute's value, None for a type that is not known."""
    for kind, value in raw.items():
        if kind == "string" and isinstance(value, str):
            return sys.intern(value)
        if kind == "version" and isinstance(value, str):
            return version(value)
        if kind == "int" and isinstance(value, int) and not isinstance(value, bool):
            return value
        if kind == "bool" and isinstance(value, bool):
            return value
    return None


def _by_domain(values: Mapping[str, Any], driver: str) -> dict[str, dict[str, Any]]:
    domains: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        domain, slash, name = str(key).partition("/")
        home = domains.setdefault(sys.intern(domain) if slash else driver, {})
        home[sys.intern(name if slash else domain)] = value
    return domains


def _consumed(raw: _Raw) -> dict[tuple[str, str], Number]:
    found: dict[tuple[str, str], Number] = {}
    for one in _list(raw.get("consumesCounters"), "consumesCounters"):
        consumption = _map(one, "consumesCounters")
        source = sys.intern(_text(consumption.get("counterSet")))
        found |= {(source, counter): taken for counter, taken in _amounts(consumption).items()}
    return found


def _amounts(raw: _Raw) -> dict[str, Number]:
    counters = _map(raw.get("counters"), "counters")
    return {sys.intern(str(name)): _number_of(one, f"counter {name}") for name, one in counters.items()}


def _number_of(raw: object, what: str) -> Number:
    number = amount(_map(raw, what).get("value", "")).number
    return number.numerator if number.denominator == 1 else number


def _taint(raw: _Raw) -> Taint:
    return Taint(_text(raw.get("key")), _text(raw.get("value")), _text(raw.get("effect")))


def _reach(raw: _Raw) -> Reach | None:
    if name := _text(raw.get("nodeName")):
        return Reach(sys.intern(name))
    if raw.get("allNodes") is True:
        return Reach(everywhere=True)
    if raw.get("nodeSelector") is None:
        return None
    terms = _list(_map(raw["nodeSelector"], "nodeSelector").get("nodeSelectorTerms"), "nodeSelectorTerms")
    return Reach(terms=tuple(_term(_map(term, "nodeSelectorTerm")) for term in terms))


def _term(raw: _Raw) -> Term:
    return Term(_expressions(raw, "matchExpressions"), _expressions(raw, "matchFields"))


def _expressions(term: _Raw, source: str) -> tuple[Expression, ...]:
    raw = [_map(one, source) for one in _list(term.get(source), source)]
    return tuple(
        Expression(
            _text(one.get("key")),
            _text(one.get("operator")),
            tuple(map(_text, _list(one.get("values"), "values"))),
        )
        for one in raw
    )


def _selectors(raw: _Raw) -> tuple[str, ...]:
    selectors = [_map(one, "selector") for one in _list(raw.get("selectors"), "selectors")]
    return tuple(_text(_map(one.get("cel"), "cel").get("expression")) for one in selectors)


def _demand(raw: _Raw) -> Demand:
    unclear: list[str] = [f"claim field {name}" for name in sorted(map(str, raw.keys() - _DEVICES))]

    def note(text: str) -> None:
        unclear.append(text)

    choices = tuple(_choice(_map(one, "request"), note) for one in _list(raw.get("requests"), "requests"))
    agreements = tuple(
        _agreement(_map(one, "constraint"), note) for one in _list(raw.get("constraints"), "constraints")
    )
    return Demand(choices, agreements, unclear[0] if unclear else "")


def _choice(raw: _Raw, note: Callable[[str], None]) -> Choice:
    name = _text(raw.get("name"))
    options = [_map(one, "firstAvailable") for one in _list(raw.get("firstAvailable"), "firstAvailable")]
    if unknown := sorted(map(str, raw.keys() - {"name", "exactly", "firstAvailable"})):
        note(f"request field {unknown[0]}")
    if options:
        return Choice(name, tuple(_request(one, note) for one in options), ranked=True)
    if raw.get("exactly") is None:
        note(f"request {name} asks for nothing")
        return Choice(name, ())
    return Choice(name, (_request({**_map(raw["exactly"], "exactly"), "name": name}, note),))


def _request(raw: _Raw, note: Callable[[str], None]) -> DeviceRequest:
    if unknown := sorted(map(str, raw.keys() - _REQUEST)):
        note(f"request field {unknown[0]}")
    mode = _text(raw.get("allocationMode")) or "ExactCount"
    if mode not in ("ExactCount", "All"):
        note(f"allocation mode {mode[:64]}")
    capacity = _map(_map(raw.get("capacity"), "capacity").get("requests"), "capacity requests")
    count = 1 if raw.get("count") is None else _number(raw["count"])
    if count < 1:
        note("a count that is no positive number")
    tolerations = [_map(one, "toleration") for one in _list(raw.get("tolerations"), "tolerations")]
    return DeviceRequest(
        _text(raw.get("name")),
        _text(raw.get("deviceClassName")),
        _selectors(raw),
        None if mode == "All" else count,
        tuple((str(key), amount(value)) for key, value in sorted(capacity.items(), key=str)),
        tuple(
            Toleration(*(_text(one.get(key)) for key in ("key", "operator", "value", "effect")))
            for one in tolerations
        ),
        raw.get("adminAccess") is True,
    )


def _agreement(raw: _Raw, note: Callable[[str], None]) -> Agreement:
    same, distinct = _text(raw.get("matchAttribute")), _text(raw.get("distinctAttribute"))
    if raw.keys() - {"requests", "matchAttribute", "distinctAttribute"} or bool(same) == bool(distinct):
        note("a constraint")
    requests = frozenset(map(_text, _list(raw.get("requests"), "requests")))
    return Agreement(same or distinct, requests, bool(distinct))


def _grants(allocation: _Raw) -> tuple[Grant, ...]:
    devices = _map(allocation.get("devices"), "allocation.devices")
    results = [_map(one, "results") for one in _list(devices.get("results"), "results")]
    return tuple(
        Grant(
            DeviceId(*(sys.intern(_text(one.get(key))) for key in ("driver", "pool", "device"))),
            shared=one.get("shareID") is not None,
            consumed=_consumption(one.get("consumedCapacity")),
            watching=one.get("adminAccess") is True,
        )
        for one in results
    )


def _consumption(raw: object) -> tuple[tuple[str, Amount], ...] | None:
    if raw is None:
        return None
    consumed = _map(raw, "consumedCapacity")
    return tuple((str(name), amount(value)) for name, value in sorted(consumed.items(), key=str))


def _map(raw: object, what: str) -> _Raw:
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise _Malformed(f"{what} is no object")
    return raw


def _list(raw: object, what: str) -> list[Any]:
    if raw is None:
        return []
    if not isinstance(raw, list):
        raise _Malformed(f"{what} is no list")
    return raw


def _text(raw: object) -> str:
    return raw if isinstance(raw, str) else ""


def _number(raw: object) -> int:
    with suppress(TypeError, ValueError, OverflowError):
        return int(raw) if isinstance(raw, int | float) else -1
    return -1
