"""Parses ResourceSlices, DeviceClasses and DeviceTaintRules.

Facts: k8s.io/api ``resource/v1/types.go`` (v0.36.3; of DeviceTaintRules v0.37.1). An object that cannot
be read gets a ``problem``, as does a device with an unknown field, which may change who can have the device.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from extender.k8s.affinity import NodeSelectorRequirement, NodeSelectorTerm, Taint
from extender.k8s.quantity import QuantityError
from extender.k8s.resource_api.fields import (
    INT64_MAX,
    Malformed,
    Raw,
    Value,
    check_selector_text,
    name_or_empty,
    parse_amount,
    parse_version,
    read_int64,
    read_list,
    read_map,
    read_maps,
    read_name,
    read_selectors,
    unknown_field,
)
from extender.k8s.resource_api.objects import (
    CapacityRequestPolicy,
    Device,
    DeviceClass,
    DeviceTaintRule,
    DeviceTaintRuleKind,
    NodeScope,
    Number,
    ResourceSlice,
)
from extender.untrusted import limits
from extender.untrusted.limits import quoted, shorten

_DEVICE_FIELDS = {
    *("name", "attributes", "capacity", "consumesCounters", "nodeName", "nodeSelector", "allNodes", "taints"),
    *("bindsToNode", "bindingConditions", "bindingFailureConditions", "allowMultipleAllocations"),
}


def parse_slice(name: str, raw: object) -> ResourceSlice:
    try:
        return _slice(name, read_map(raw, "spec"))
    except (Malformed, QuantityError) as error:
        spec = raw if isinstance(raw, Mapping) else {}
        pool = spec.get("pool")
        pool = pool if isinstance(pool, Mapping) else {}
        node = name_or_empty(spec.get("nodeName"))
        return ResourceSlice(
            name,
            driver=name_or_empty(spec.get("driver")),
            pool=name_or_empty(pool.get("name")),
            generation=read_int64(pool.get("generation")),
            slice_count=read_int64(pool.get("resourceSliceCount")),
            node_scope=NodeScope(node, all_nodes=not node),
            problem=shorten(str(error)),
        )


def parse_class(name: str, raw: object) -> DeviceClass:
    try:
        spec = read_map(raw, "spec")
        selectors = read_selectors(spec)
        check_selector_text(selectors)
        resource = read_name(spec.get("extendedResourceName"), "resource", limits.KEY)
        return DeviceClass(name, selectors, resource)
    except Malformed as error:
        return DeviceClass(name, problem=shorten(str(error)))


def parse_taint_rule(kind: DeviceTaintRuleKind, name: str, raw: object) -> DeviceTaintRule:
    """A rule without a selector taints all devices, as the code of kube-scheduler has it (``applyPatches`` in
    k8s.io/dynamic-resource-allocation v0.36.3, ``resourceslice/tracker``). Up to 1.34 a selector may have CEL
    expressions and a class, which are not read."""
    try:
        spec = read_map(raw, "spec")
        selector = read_map(spec.get("deviceSelector"), "deviceSelector")
        driver, pool, device = (read_name(selector.get(key), key) for key in ("driver", "pool", "device"))
        unknown = unknown_field(selector, {"driver", "pool", "device"})
        problem = f"device selector field {unknown}" if unknown else ""
        taint = _taint(read_map(spec.get("taint"), "taint"))
        return DeviceTaintRule(kind, name, taint, driver, pool, device, problem)
    except Malformed as error:
        return DeviceTaintRule(kind, name, Taint("", "", ""), problem=shorten(str(error)))


def _slice(name: str, spec: Raw) -> ResourceSlice:
    pool, driver = read_map(spec.get("pool"), "pool"), sys.intern(read_name(spec.get("driver"), "driver"))
    pool_name = sys.intern(read_name(pool.get("name"), "pool"))
    if not driver or not pool_name:
        raise Malformed("the name of the driver or of the pool is missing")
    counter_sets = read_maps(spec.get("sharedCounters"), "sharedCounters", limits.COUNTER_SETS)
    devices = read_maps(spec.get("devices"), "devices", limits.SLICE_DEVICES)
    return ResourceSlice(
        name,
        driver,
        pool_name,
        read_int64(pool.get("generation")),
        read_int64(pool.get("resourceSliceCount")),
        _node_scope(spec) or NodeScope(),
        spec.get("perDeviceNodeSelection") is True,
        tuple(_device(device, driver) for device in devices),
        tuple(
            (sys.intern(read_name(one.get("name"), "counter set")), _counters(one)) for one in counter_sets
        ),
    )


def _device(raw: Raw, driver: str) -> Device:
    name = read_name(raw.get("name"), "device")
    if not name:
        raise Malformed("a device has no name")
    raw_attributes = read_map(raw.get("attributes"), "attributes", limits.DEVICE_ATTRIBUTES)
    attributes, problem = _attributes(raw_attributes, driver)
    capacity = {
        read_name(key, "capacity", limits.KEY): read_map(one, f"capacity {quoted(str(key))}")
        for key, one in read_map(raw.get("capacity"), "capacity", limits.DEVICE_ATTRIBUTES).items()
    }
    amounts = {key: parse_amount(one.get("value", "")) for key, one in capacity.items()}
    unknown = unknown_field(raw, _DEVICE_FIELDS)
    return Device(
        name,
        attributes,
        _by_domain(amounts, driver),
        amounts,
        _consumed_counters(raw),
        tuple(_taint(taint) for taint in read_maps(raw.get("taints"), "taints", limits.DEVICE_TAINTS)),
        _node_scope(raw),
        allow_multiple_allocations=raw.get("allowMultipleAllocations") is True,
        capacity_policies={
            key: _request_policy(read_map(one["requestPolicy"], "requestPolicy"))
            for key, one in capacity.items()
            if one.get("requestPolicy") is not None
        },
        has_binding_conditions=raw.get("bindingConditions") is not None,
        problem=f"device field {unknown}" if unknown else problem,
    )


def _request_policy(raw: Raw) -> CapacityRequestPolicy:
    valid_range = read_map(raw.get("validRange"), "validRange")
    default, minimum, maximum, step = (
        None if value is None else parse_amount(value).number
        for value in (raw.get("default"), *(valid_range.get(key) for key in ("min", "max", "step")))
    )
    valid_values = read_list(raw.get("validValues"), "validValues", limits.POLICY_VALUES)
    amounts = tuple(parse_amount(value).number for value in valid_values)
    return CapacityRequestPolicy(default, amounts, minimum, maximum, step)


def _attributes(raw: Raw, driver: str) -> tuple[dict[str, dict[str, Value]], str]:
    """The attributes by domain and name, and a problem that names one with an unsupported value."""
    values: dict[str, Value] = {}
    problem = ""
    for key, one in raw.items():
        value = _attribute_value(read_map(one, f"attribute {quoted(str(key))}"))
        if value is None:
            problem = f"attribute {quoted(str(key))}"
        else:
            values[read_name(key, "attribute", limits.KEY)] = value
    return _by_domain(values, driver), problem


def _attribute_value(raw: Raw) -> Value | None:
    """None if the type is not known, or the value is too large for its type."""
    for kind, value in raw.items():
        if kind == "string" and isinstance(value, str):
            return sys.intern(value) if len(value) <= limits.ATTRIBUTE else None
        if kind == "version" and isinstance(value, str):
            return parse_version(value)
        if kind == "int" and isinstance(value, int) and not isinstance(value, bool):
            return value if abs(value) <= INT64_MAX else None
        if kind == "bool" and isinstance(value, bool):
            return value
    return None


def _by_domain(values: Mapping[str, Any], driver: str) -> dict[str, dict[str, Any]]:
    domains: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        domain, slash, name = key.partition("/")
        if not slash:
            domain, name = driver, domain
        domains.setdefault(sys.intern(domain), {})[sys.intern(name)] = value
    return domains


def _consumed_counters(raw: Raw) -> dict[tuple[str, str], Number]:
    consumed: dict[tuple[str, str], Number] = {}
    for consumption in read_maps(raw.get("consumesCounters"), "consumesCounters", limits.COUNTER_SETS):
        counter_set = sys.intern(read_name(consumption.get("counterSet"), "counter set"))
        consumed |= {(counter_set, counter): amount for counter, amount in _counters(consumption).items()}
    return consumed


def _counters(raw: Raw) -> dict[str, Number]:
    counters = read_map(raw.get("counters"), "counters", limits.COUNTERS)
    return {
        sys.intern(read_name(name, "counter")): _counter_value(name, one) for name, one in counters.items()
    }


def _counter_value(name: object, raw: object) -> Number:
    number = parse_amount(read_map(raw, f"counter {quoted(str(name))}").get("value", "")).number
    return number.numerator if number.denominator == 1 else number


def _taint(raw: Raw) -> Taint:
    return Taint(*(read_name(raw.get(key), f"taint {key}", limits.KEY) for key in ("key", "value", "effect")))


def _node_scope(raw: Raw) -> NodeScope | None:
    if name := read_name(raw.get("nodeName"), "node"):
        return NodeScope(sys.intern(name))
    if raw.get("allNodes") is True:
        return NodeScope(all_nodes=True)
    if raw.get("nodeSelector") is None:
        return None
    return read_node_selector(raw["nodeSelector"])


def read_node_selector(raw: object) -> NodeScope:
    """The nodes that match a ``nodeSelector``. Raises ``Malformed``."""
    terms = read_map(raw, "nodeSelector").get("nodeSelectorTerms")
    return NodeScope(
        terms=tuple(
            NodeSelectorTerm(_expressions(term, "matchExpressions"), _expressions(term, "matchFields"))
            for term in read_maps(terms, "nodeSelectorTerms", limits.SELECTOR_TERMS)
        )
    )


def _expressions(term: Raw, field: str) -> tuple[NodeSelectorRequirement, ...]:
    return tuple(
        NodeSelectorRequirement(
            read_name(one.get("key"), "label", limits.KEY),
            read_name(one.get("operator"), "operator"),
            tuple(
                read_name(value, "label")
                for value in read_list(one.get("values"), "values", limits.SELECTOR_ITEMS)
            ),
        )
        for one in read_maps(term.get(field), field, limits.SELECTOR_TERMS)
    )
