"""Slices, classes and claims beyond the limits: a problem says so, and allocated devices stay allocated."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from extender.untrusted.limits import PROBLEM
from tests.extender.dra.claims import allocated, many, request, selectors
from tests.extender.dra.nvidia import cluster, device_cache, forecast_for, gpu, names, spec
from tests.extender.dra.records import parse_claim, parse_class

READABLE = [
    ({"devices": {"requests": [request()] * 33}}, allocated({})),
    ({"devices": many(request(**selectors("x" * 20_000)))}, allocated({})),
    ({"devices": many(request(**selectors(*["true"] * 33)))}, allocated({})),
    ({"devices": many(*[request(**selectors(*[f"'{'x' * 5000}' == ''"] * 4))] * 8)}, allocated({})),
    ({"devices": many(request(count=10**400))}, allocated({})),
    (7, allocated({})),
    ({"devices": {}}, allocated({}, reservedFor=[{"resource": "pods", "name": "p"}] * 300)),
    ({"devices": {}}, allocated({}, reservedFor=7)),
    ({"devices": {}}, allocated({"shareID": "a", "consumedCapacity": {"memory": "1e999999"}})),
    ({"devices": {}}, allocated({"shareID": "a", "consumedCapacity": 7})),
    ({"devices": {}}, allocated({"adminAccess": "yes"})),
]


@pytest.mark.parametrize(("raw", "status"), READABLE)
def test_an_unreadable_claim_keeps_its_devices(raw, status):
    cache = cluster()
    cache.put(parse_claim("ml", "odd", raw, status))
    assert names(forecast_for(cache, many(request()), "n0")) == ["gpu-1"]
    cache.remove("ResourceClaim", "ml/odd")
    assert names(forecast_for(cache, many(request()), "n0")) == ["gpu-0"]
    assert cache.problems == {}


@pytest.mark.parametrize(
    "status",
    [
        allocated(*[{"device": f"gpu-{n}"} for n in range(40)]),
        allocated({"device": ""}),
        allocated({"device": "x" * 300}),
        allocated({"device": None}, {"device": "gpu-1"}),
    ],
)
def test_no_forecast_for_a_pool_with_unreadable_allocations(status):
    cache = cluster()
    before = sum(cache.total_slots.values())
    cache.put(parse_claim("ml", "odd", {"devices": {}}, status))
    found = forecast_for(cache, many(request()), "n0")
    assert not found.devices
    assert not found.refused
    assert "cannot be read" in found.problem
    assert sum(cache.total_slots.values()) < before
    assert names(forecast_for(cache, many(request()), "n1")) == ["gpu-0"]
    assert all(len(text) <= PROBLEM for text in cache.problems.values())
    cache.remove("ResourceClaim", "ml/odd")
    assert names(forecast_for(cache, many(request()), "n0")) == ["gpu-0"]
    cache.refresh(lambda name: {})
    assert sum(cache.total_slots.values()) == before


def slices(change: Callable[[dict], object]) -> dict:
    raw = spec(gpu(0), node="n0")
    change(raw)
    return raw


@pytest.mark.parametrize(
    "raw",
    [
        slices(lambda raw: raw.update(devices=[gpu(n) for n in range(129)])),
        slices(lambda raw: raw["devices"][0].update(name="x" * 300)),
        slices(lambda raw: raw["devices"][0]["capacity"].update({f"{n}": {"value": "1"} for n in range(65)})),
        slices(lambda raw: raw["devices"][0]["capacity"].update({"x" * 400: {"value": "1"}})),
        slices(lambda raw: raw["devices"][0]["capacity"].update(memory={"value": float("inf")})),
        slices(lambda raw: raw["devices"][0]["capacity"].update(memory={"value": float("nan")})),
        slices(lambda raw: raw["devices"][0]["capacity"].update(memory={"value": 10**5000})),
        slices(lambda raw: raw["devices"][0]["capacity"].update(memory={"value": "1e-9999"})),
        slices(lambda raw: raw["devices"][0]["attributes"].update({"x" * 90_000: {"strange": 1}})),
        slices(lambda raw: raw["devices"][0].update({"x" * 90_000: 1})),
    ],
)
def test_a_slice_beyond_the_limits_has_unknown_devices(raw):
    cache = device_cache(raw)
    found = forecast_for(cache, many(request()), "n0")
    assert (found.devices, found.refused) == ((), False)
    assert 0 < len(found.problem) <= PROBLEM
    assert all(len(text) <= PROBLEM for text in cache.problems.values())


def toleration(n: int) -> dict:
    return {"key": f"k{n}", "operator": "Exists"}


@pytest.mark.parametrize(
    "claim",
    [
        many(*[request()] * 33),
        {"requests": [{"name": "r", "firstAvailable": [request()["exactly"]] * 9}]},
        many(request(), constraints=[{"matchAttribute": "a/b"}] * 33),
        many(request(**selectors(*["true"] * 33))),
        many(request(**selectors("true" + " " * 11_000))),
        many(request(tolerations=[toleration(n) for n in range(17)])),
        many(request(capacity={"requests": {f"c{n}": "1" for n in range(65)}})),
        many(request(capacity={"requests": {"memory": 10**5000}})),
        many(request(count=2**70)),
        many(request(count=1.5)),
        many(request(count=float("inf"))),
        many(request(count=float("nan"))),
        many(request(count=True)),
        many(request(deviceClassName="x" * 9000)),
        many(request(allocationMode="x" * 90_000)),
        many(request(**{"x" * 90_000: 1})),
        {"x" * 90_000: 1},
    ],
)
def test_a_claim_beyond_the_limits_is_not_supported(claim):
    found = forecast_for(device_cache(spec(gpu(0), node="n0")), claim, "n0")
    assert (found.devices, found.refused) == ((), False)
    assert 0 < len(found.problem) <= PROBLEM


def test_a_class_beyond_the_limits_is_a_problem():
    cache = device_cache(spec(gpu(0), node="n0"))
    cache.put(parse_class("gpu.nvidia.com", selectors(*["true"] * 33)))
    assert "length <= 32" in cache.problems["DeviceClass gpu.nvidia.com"]
    found = forecast_for(cache, many(request()), "n0")
    assert (found.devices, found.refused) == ((), False)
