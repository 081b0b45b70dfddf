"""DeviceTaintRules: which devices they keep from which claims, and what a rule that cannot be read does."""

from __future__ import annotations

from typing import get_args

from extender.dra.device_cache import DeviceCache
from extender.k8s.resource_slices import DeviceTaintRuleKind
from tests.extender.dra.claims import gpu_claim
from tests.extender.dra.nvidia import device_cache, forecast_for, gpu, names, spec
from tests.extender.dra.records import parse_taint_rule

BLOCKS = {"key": "broken", "value": "yes", "effect": "NoSchedule"}


def tainted(selector: object, taint: object = BLOCKS, name: str = "r") -> DeviceCache:
    """Two GPUs, and a rule."""
    cache = device_cache(spec(gpu(0), gpu(1)))
    cache.put(parse_taint_rule("DeviceTaintRule", name, {"deviceSelector": selector, "taint": taint}))
    return cache


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


def test_many_rules_for_one_device_are_not_read() -> None:
    cache = device_cache(spec(gpu(0)))
    for number in range(17):
        cache.put(parse_taint_rule("DeviceTaintRule", f"r{number}", {"taint": BLOCKS}))
    found = forecast_for(cache, gpu_claim(tolerations=[{"operator": "Exists"}]))
    assert (found.refused, "more than 16 DeviceTaintRules" in found.problem) == (False, True)
