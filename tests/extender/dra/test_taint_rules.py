"""DeviceTaintRules: which devices they keep from which claims, and what a rule that cannot be read does."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from extender.dra.device_cache import DeviceCache
from extender.k8s.resource_slices import DeviceTaintRuleKind
from tests.extender.dra.claims import gpu_claim
from tests.extender.dra.nvidia import NODE, device_cache, forecast_for, gpu, hold, names, spec
from tests.extender.dra.records import parse_taint_rule

BLOCKS = {"key": "broken", "value": "yes", "effect": "NoSchedule"}
DRIVER = "gpu.nvidia.com"


def tainted(selector: object, taint: object = BLOCKS, name: str = "r") -> DeviceCache:
    """Two GPUs, and a rule."""
    cache = device_cache(spec(gpu(0), gpu(1)))
    cache.put(parse_taint_rule("DeviceTaintRule", name, {"deviceSelector": selector, "taint": taint}))
    return cache


@pytest.mark.parametrize(
    ("selector", "left"),
    [
        ({"driver": DRIVER, "pool": NODE, "device": "gpu-0"}, ["gpu-1"]),
        ({"device": "gpu-0"}, ["gpu-1"]),
        ({"driver": DRIVER}, []),
        ({"pool": NODE}, []),
        ({}, []),
        (None, []),
        ({"driver": DRIVER, "pool": "node-b"}, ["gpu-0"]),
        ({"driver": "other", "pool": NODE}, ["gpu-0"]),
        ({"driver": DRIVER, "device": "gpu-7"}, ["gpu-0"]),
    ],
)
def test_all_parts_of_the_selector_must_match(selector: object, left: list[str]) -> None:
    found = forecast_for(tainted(selector), gpu_claim())
    assert names(found) == left
    assert found.refused is not bool(left)


@pytest.mark.parametrize(
    ("effect", "tolerations", "fits"),
    [
        ("NoSchedule", [], False),
        ("NoExecute", [], False),
        ("None", [], True),
        ("NoExecute", [{"operator": "Exists"}], True),
        ("NoSchedule", [{"key": "broken", "value": "yes"}], True),
        ("NoSchedule", [{"key": "broken", "value": "no"}], False),
        ("NoSchedule", [{"key": "broken", "operator": "Exists", "effect": "NoExecute"}], False),
    ],
)
def test_the_taint_counts_as_one_of_the_driver(effect: str, tolerations: list[Any], fits: bool) -> None:
    cache = tainted({}, {**BLOCKS, "effect": effect})
    assert bool(forecast_for(cache, gpu_claim(tolerations=tolerations)).devices) is fits


def test_rules_come_change_and_go() -> None:
    cache = tainted({"device": "gpu-0"})
    assert names(forecast_for(cache, gpu_claim())) == ["gpu-1"]
    version = cache.rules_version
    rule = {"deviceSelector": {"device": "gpu-0"}, "taint": BLOCKS | {"timeAdded": "2026-01-01T00:00:00Z"}}
    cache.put(parse_taint_rule("DeviceTaintRule", "r", rule))
    assert cache.rules_version == version  # its status has changed, as it does while pods are evicted
    rule["deviceSelector"] = {"device": "gpu-1"}
    cache.put(parse_taint_rule("DeviceTaintRule", "r", rule))
    assert names(forecast_for(cache, gpu_claim())) == ["gpu-0"]
    cache.keep("DeviceTaintRule", frozenset())
    assert not cache.taint_rules._by_selector


def test_a_server_may_serve_all_versions() -> None:
    cache = device_cache(spec(gpu(0)))
    kinds: tuple[DeviceTaintRuleKind, ...] = get_args(DeviceTaintRuleKind)
    for kind in kinds:
        cache.put(parse_taint_rule(kind, "r", {"taint": BLOCKS}))
    for kind in kinds:
        assert forecast_for(cache, gpu_claim()).refused
        cache.remove(kind, "r")
    assert names(forecast_for(cache, gpu_claim())) == ["gpu-0"]


@pytest.mark.parametrize(
    "raw",
    [
        7,
        {"deviceSelector": 7, "taint": BLOCKS},
        {"deviceSelector": {"driver": "x" * 300}, "taint": BLOCKS},
        {"deviceSelector": {"device": "gpu-0", "selectors": [{"cel": {}}]}, "taint": BLOCKS},
        {"deviceSelector": {"device": "gpu-0", "deviceClassName": "c"}, "taint": BLOCKS},
        {"taint": 7},
    ],
)
def test_nothing_is_predicted_where_a_rule_cannot_be_read(raw: object) -> None:
    cache = device_cache(spec(gpu(0), gpu(1)))
    cache.put(parse_taint_rule("DeviceTaintRule", "odd", raw))
    found = forecast_for(cache, gpu_claim())
    assert (found.devices, found.refused) == ((), False)
    assert "DeviceTaintRule 'odd': " in found.problem
    assert "DeviceTaintRule odd" in cache.problems
    cache.remove("DeviceTaintRule", "odd")
    assert names(forecast_for(cache, gpu_claim())) == ["gpu-0"]
    assert not cache.problems


def test_a_device_that_is_taken_needs_no_rule() -> None:
    cache = tainted({"device": "gpu-0", "new": 1})
    hold(cache, "gpu-0")
    assert names(forecast_for(cache, gpu_claim())) == ["gpu-1"]


def test_many_rules_for_one_device_are_not_read() -> None:
    cache = device_cache(spec(gpu(0)))
    for number in range(17):
        cache.put(parse_taint_rule("DeviceTaintRule", f"r{number}", {"taint": BLOCKS}))
    found = forecast_for(cache, gpu_claim(tolerations=[{"operator": "Exists"}]))
    assert (found.refused, "more than 16 DeviceTaintRules" in found.problem) == (False, True)
