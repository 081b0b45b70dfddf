"""Forecasts without devices: kube-scheduler will refuse the node, or nothing is known."""

from __future__ import annotations

import pytest

from tests.extender.dra.claims import gpu_claim
from tests.extender.dra.nvidia import device_cache, forecast_for, gpu, names, spec


def several(*options: dict) -> dict:
    """A claim of one request with these alternatives."""
    named = [one["requests"][0]["exactly"] | {"name": f"s{n}"} for n, one in enumerate(options)]
    return {"requests": [{"name": "r", "firstAvailable": named}]}


BROKEN = [{"cel": {"expression": "device.attributes['gpu.nvidia.com'].nothing == 1"}}]


UNKNOWN = [{"cel": {"expression": "dyn(true)"}}]


@pytest.mark.parametrize(
    ("claim", "problem", "refused"),
    [
        (gpu_claim(count=3), "no devices that fit", True),
        (gpu_claim(selectors=[{"cel": {"expression": "false"}}]), "no devices that fit", True),
        (gpu_claim(deviceClassName="nobody.knows"), "'nobody.knows' does not exist", True),
        (
            several(gpu_claim(), gpu_claim(deviceClassName="nobody.knows")),
            "'nobody.knows' does not exist",
            True,
        ),
        (gpu_claim(count=33), "more than 32 devices", True),
        (
            {"requests": [gpu_claim(count=20)["requests"][0] | {"name": n} for n in "ab"]},
            "more than 32",
            True,
        ),
        (several(gpu_claim(count=33), gpu_claim(count=40)), "more than 32 devices", True),
        (gpu_claim(selectors=BROKEN), "no such key", True),
        (gpu_claim(selectors=UNKNOWN), "dyn", False),
        (gpu_claim(newField=1), "newField", False),
    ],
)
def test_what_kube_scheduler_will_refuse(claim, problem, refused):
    found = forecast_for(device_cache(spec(gpu(0), gpu(1))), claim)
    assert problem in found.problem
    assert (found.devices, found.refused) == ((), refused)


def test_an_alternative_for_fewer_devices_is_no_refusal():
    assert names(forecast_for(device_cache(spec(gpu(0))), several(gpu_claim(count=33), gpu_claim()))) == [
        "gpu-0"
    ]


def test_a_search_that_takes_too_long_is_no_refusal():
    cache = device_cache(*(spec(*map(gpu, range(100 * n, 100 * n + 100)), count=3) for n in range(3)))
    apart = {"constraints": [{"distinctAttribute": "gpu.nvidia.com/type"}]}
    wishes = [gpu_claim()["requests"][0] | {"name": f"r{number}"} for number in range(8)]
    found = forecast_for(cache, {"requests": wishes} | apart)
    assert found.problem
    late = {"constraints": [{"matchAttribute": "gpu.nvidia.com/uuid", "requests": ["r6", "r7"]}]}
    found = forecast_for(cache, {"requests": wishes} | late)
    assert found.problem in ("the search for devices takes too long", "there is too much to search at once")
    assert not found.refused
