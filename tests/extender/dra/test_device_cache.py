"""Slices, classes and claims as they arrive. Whatever is in them, a problem is all that they cause."""

from __future__ import annotations

import copy

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from extender.dra.device_cache import DeviceCache
from tests.extender.dra.nvidia import (
    NODE,
    counter_set,
    device_cache,
    dynamic,
    forecast_for,
    gpu,
    hold,
    names,
    spec,
)
from tests.extender.dra.records import parse_claim, parse_slice

ONE_GPU = "{requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}"


def partitioned(change=lambda devices, sets: None) -> DeviceCache:
    devices, sets = dynamic(), [counter_set()]
    change(devices, sets)
    return device_cache(spec(*devices, count=2), spec(count=2, sharedCounters=sets))


def twice(devices, sets):
    devices.append(devices[0])


def sets_twice(devices, sets):
    sets.append(sets[0])


def missing_set(devices, sets):
    devices[3]["consumesCounters"][0]["counterSet"] = "elsewhere"


def missing_counter(devices, sets):
    del sets[0]["counters"]["memory-slice-3"]


def sets_in_a_circle(devices, sets):
    # A set that refers to another, which refers back. There is no such thing in the API: the sets are empty.
    sets[:] = [{"name": "a", "includes": "b"}, {"name": "b", "includes": "a"}]


def negative_counter(devices, sets):
    sets[0]["counters"]["memory-slice-3"] = {"value": "-1"}


def negative_consumption(devices, sets):
    devices[1]["consumesCounters"][0]["counters"]["memory"] = {"value": "-5Gi"}


def negative_capacity(devices, sets):
    devices[0]["capacity"]["memory"] = {"value": "-40Gi"}


def no_amount(devices, sets):
    devices[0]["capacity"]["memory"] = {"value": "many"}


def no_name(devices, sets):
    del devices[2]["name"]


def no_list(devices, sets):
    devices[2]["taints"] = 7


def no_object(devices, sets):
    devices[2]["attributes"] = ["type"]


@pytest.mark.parametrize(
    "change",
    [
        *(twice, sets_twice, missing_set, missing_counter, sets_in_a_circle, negative_counter),
        *(negative_consumption, negative_capacity, no_amount, no_name, no_list, no_object),
    ],
)
def test_an_invalid_pool_is_a_problem_and_gives_no_devices(change):
    cache = partitioned(change)
    assert len(cache.problems) == 1
    assert not forecast_for(cache, ONE_GPU).devices
    cache.put(parse_slice("other", spec(gpu(7), node="node-b")))
    assert names(forecast_for(cache, ONE_GPU, "node-b")) == ["gpu-7"]
    for number in range(2):
        cache.remove("ResourceSlice", f"s{number}")
    assert cache.problems == {}


@pytest.mark.parametrize("value", [{"ints": [1, 2]}, {"string": "x" * 70_000}, {"int": 10**5000}])
def test_of_claims_that_name_an_unreadable_attribute_nothing_is_known_and_others_fit(value):
    odd = gpu(0)
    odd["attributes"]["partitions"] = value
    cache = device_cache(spec(odd))
    assert names(forecast_for(cache, ONE_GPU)) == ["gpu-0"]
    named = "device.attributes['gpu.nvidia.com'].partitions == 1"
    class_and = "{requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com%s}}]%s}"
    selected = class_and % (f', selectors: [{{cel: {{expression: "{named}"}}}}]', "")
    constrained = class_and % ("", ", constraints: [{matchAttribute: gpu.nvidia.com/partitions}]")
    for claim in (selected, constrained):
        assert "partitions" in forecast_for(cache, claim).problem


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=4) | st.just(1e308) | st.just("5Gi"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


def paths(value: object, path: tuple = ()) -> list[tuple]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in inner for found in paths(item, (*path, key)))]


def changed(raw: dict, path: tuple, value: object) -> object:
    if not path:
        return value
    raw = copy.deepcopy(raw)
    target = raw
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    return raw


POLICY = {"default": "1", "validRange": {"min": "1", "max": "9", "step": "2"}, "validValues": ["1", "3"]}
PARTS = {"cores": {"value": "9", "requestPolicy": POLICY}}
SLICE = spec(
    *dynamic()[:3],
    gpu(1, taints=[{"key": "k", "effect": "None"}]),
    gpu(2, allowMultipleAllocations=True, capacity=PARTS),
    sharedCounters=[counter_set()],
)
CLAIM = {
    "requests": [
        {
            "name": "r",
            "exactly": {
                "deviceClassName": "gpu.nvidia.com",
                "selectors": [{"cel": {"expression": "device.driver != ''"}}],
                "count": 1,
                "tolerations": [{"key": "k"}],
                "capacity": {"requests": {"memory": "1Gi"}},
                "adminAccess": False,
            },
        }
    ],
    "constraints": [{"requests": ["r"], "matchAttribute": "gpu.nvidia.com/productName"}],
}
ELSEWHERE = {"driver": "d", "pool": "p", "device": "x"}
STATUS_ELSEWHERE = {"allocation": {"devices": {"results": [ELSEWHERE, ELSEWHERE]}}}
STATUS = {
    "allocation": {
        "devices": {
            "results": [
                {"driver": "gpu.nvidia.com", "pool": NODE, "device": "gpu-0"},
                {
                    **{"driver": "gpu.nvidia.com", "pool": NODE, "device": "gpu-2"},
                    **{"shareID": "a", "consumedCapacity": {"cores": "3"}},
                },
            ]
        }
    },
    "reservedFor": [{"resource": "pods", "name": "p"}],
}


@given(st.data())
def test_any_input_is_handled(data):
    raw = changed(SLICE, data.draw(st.sampled_from(paths(SLICE))), data.draw(values))
    claim = changed(CLAIM, data.draw(st.sampled_from(paths(CLAIM))), data.draw(values))
    status = changed(STATUS, data.draw(st.sampled_from(paths(STATUS))), data.draw(values))
    cache = device_cache(raw)
    cache.put(parse_claim("ml", "other", {"devices": claim}, status))
    forecast = forecast_for(cache, yaml.safe_dump(claim))
    assert forecast.devices or forecast.problem or not claim or claim.get("requests") in (None, [])
    assert all(isinstance(problem, str) and problem for problem in cache.problems.values())
    for kind in ("ResourceSlice", "ResourceClaim", "DeviceClass"):
        cache.keep(kind, frozenset())
    cache.refresh(lambda name: {})
    assert not +cache.total_slots
    assert not cache.problems


def test_deleted_pools_leave_nothing():
    cache = partitioned()
    hold(cache, "gpu-0")
    cache.put(parse_claim("ml", "stray", {"devices": {}}, STATUS_ELSEWHERE))
    cache.put(parse_slice("s2", spec(gpu(0), node="fabric") | {"nodeName": None, "allNodes": True}))
    cache.on_node("gone", {"zone": "a"})
    cache.on_node("unknown", {})
    cache.forget("gone")
    cache.keep("ResourceSlice", frozenset())
    cache.keep("ResourceClaim", frozenset())
    cache.refresh(lambda name: {})
    assert not cache._pools
    assert not cache._nodes


def test_static_mig_instances_are_fractions_of_gpus():
    instance = gpu(0, name="gpu-0-mig-2g10gb-14-0")
    instance["attributes"] |= {"type": {"string": "mig"}, "profile": {"string": "2g.10gb"}}
    cache = device_cache(spec(gpu(1), instance))
    cache.refresh(lambda name: {})
    assert sorted(kind.gpu_fraction for kind, _ in cache.total_slots) == [pytest.approx(2 / 7), 1.0]
