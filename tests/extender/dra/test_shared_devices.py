"""Devices that allow multiple allocations (consumable capacity, KEP-5075)."""

from __future__ import annotations

import pytest

from tests.extender.dra.claims import gpu_claim
from tests.extender.dra.nvidia import device_cache, forecast_for, gpu, hold, names, spec
from tests.extender.dra.records import parse_claim


def cores(minor: int, **policy: object) -> dict:
    """A GPU that allows multiple allocations."""
    capacity = {"cores": {"value": "100"} | ({"requestPolicy": policy} if policy else {})}
    return gpu(minor, allowMultipleAllocations=True, capacity=capacity)


def part(amount: str | None, **more: object) -> dict:
    asked = {} if amount is None else {"capacity": {"requests": {"cores": amount}}}
    return gpu_claim(**asked, **more)


def hold_part(cache, device: str, claim: str, *amounts: str) -> None:
    results = [
        {"driver": "gpu.nvidia.com", "pool": "node-a", "device": device}
        | {"shareID": f"{claim}-{number}", "consumedCapacity": {"cores": amount}}
        for number, amount in enumerate(amounts)
    ]
    cache.put(parse_claim("ml", claim, {"devices": {}}, {"allocation": {"devices": {"results": results}}}))


def test_a_device_is_shared_until_it_is_full():
    cache = device_cache(spec(cores(0), cores(1)))
    hold_part(cache, "gpu-0", "one", "30", "20")
    assert names(forecast_for(cache, part("50"))) == ["gpu-0"]
    assert names(forecast_for(cache, part("51"))) == ["gpu-1"]
    assert names(forecast_for(cache, part(None))) == ["gpu-1"]  # which is all of it
    hold_part(cache, "gpu-0", "two", "50")
    assert names(forecast_for(cache, part("1"))) == ["gpu-1"]
    cache.remove("ResourceClaim", "ml/one")
    assert names(forecast_for(cache, part("50"))) == ["gpu-0"]
    hold(cache, "gpu-0")
    assert names(forecast_for(cache, part("1"))) == ["gpu-1"]


@pytest.mark.parametrize(
    ("policy", "asked", "fits"),
    [
        ({"default": "25"}, None, 4),
        ({"default": "25", "validValues": ["25", "50"]}, "26", 2),
        ({"default": "25", "validValues": ["25", "50"]}, "51", 0),
        ({"default": "20", "validRange": {"min": "20"}}, "1", 5),
        ({"default": "20", "validRange": {"min": "20", "step": "15"}}, "21", 2),
        ({"default": "20", "validRange": {"min": "20", "step": "15"}}, "35", 2),
        ({"default": "20", "validRange": {"min": "20", "max": "30"}}, "31", 0),
        ({"default": "20", "validRange": {"min": "20", "max": "30"}}, "24", 4),
    ],
)
def test_requests_are_rounded_up_by_the_policy(policy, asked, fits):
    cache = device_cache(spec(cores(0, **policy)))

    def wanted(count: int) -> dict:
        return {
            "requests": [one | {"name": f"r{n}"} for n in range(count) for one in part(asked)["requests"]]
        }

    assert fits == 0 or names(forecast_for(cache, wanted(fits))) == ["gpu-0"] * fits
    assert forecast_for(cache, wanted(fits + 1)).problem == "the node has no devices that fit"


def test_a_device_that_is_already_shared_costs_less_than_an_unused_one():
    cache = device_cache(spec(cores(0), node="whole"), spec(cores(0)))
    hold_part(cache, "gpu-0", "one", "50")
    assert forecast_for(cache, part("10")).cost < forecast_for(cache, part("10"), "whole").cost
