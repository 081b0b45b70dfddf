"""Claims that any user may write, up to what the API server lets through: what they cost, and what is kept.

The API server takes a selector of 10 KiB whose estimated cost is below 1,000,000, 32 selectors for each of 32
requests with 8 alternatives each, 32 constraints, and any number of claims for a pod.
"""

from __future__ import annotations

import gc
import tracemalloc
from functools import cache as once

import pytest

from extender.dra.cel.program import Meter
from extender.dra.cel.selector import compile_selector
from extender.dra.device_cache import DeviceCache
from extender.dra.forecast import UNFINISHED, AllocationSimulator, SearchBudget
from extender.k8s.objects import Pod, PodClaim, PodSpec
from extender.untrusted.limits import FORECAST_STEPS, MOST_STEPS
from tests.examples import some
from tests.extender.counting import calls
from tests.extender.dra.cel.test_hostile_selectors import HOSTILE, SIXTY
from tests.extender.dra.cel.test_selector import A
from tests.extender.dra.claims import many, request, selectors
from tests.extender.dra.nvidia import cluster
from tests.extender.dra.records import parse_claim, parse_class

NODES = [(f"n{number}", {}) for number in range(100)]
NORMAL = "device.attributes['gpu.nvidia.com'].productName.lowerAscii().matches('^.*a100.*$')"


def claiming_pod(cache: DeviceCache, *claims: dict) -> Pod:
    for number, claim in enumerate(claims):
        cache.put(parse_claim("ml", f"c{number}", {"devices": claim}, None))
    return Pod("ml", "p", "u", PodSpec(claims=tuple(PodClaim(f"c{n}", f"c{n}") for n in range(len(claims)))))


def cost(*claims: dict) -> int:
    """The calls of a forecast for a pod with these claims on all nodes."""
    cache = cluster()
    pod, simulator = claiming_pod(cache, *claims), AllocationSimulator(cache)
    return calls(lambda: simulator.forecasts(pod, NODES))


@once
def normal() -> int:
    claim = many(request(**selectors(f"{NORMAL} && {A}.uuid != 'GPU-9'")))
    cost(claim)  # the first time fills caches
    return cost(claim)


CLAIMS = {
    **{name: [many(request(**selectors(text)))] for name, text in HOSTILE.items()},
    "32 long selectors": [many(request(**selectors(*(f"{n} == {n} || {text}" for n in range(32)))))]
    if (text := "'" + "a" * 1900 + "' == 'b'")
    else [],
    "32 slow selectors": [
        many(request(**selectors(*[f"{n} < 0 || {SIXTY}.all(x, x >= 0)" for n in range(32)])))
    ],
    "256 alternatives": [
        many(
            *[
                {"firstAvailable": [request(count=9)["exactly"] | {"name": f"s{m}"} for m in range(8)]}
                for _ in range(32)
            ]
        )
    ],
    "constraints that are not met": [
        many(*[request()] * 20, constraints=[{"distinctAttribute": "gpu.nvidia.com/type"}] * 32)
    ],
    "constraints that are met late": [
        many(*[request()] * 8, constraints=[{"distinctAttribute": "gpu.nvidia.com/uuid"}] * 32)
    ],
    "all devices with admin access": [
        many(
            *[
                {
                    "firstAvailable": [
                        request(allocationMode="All", adminAccess=True)["exactly"] | {"name": f"s{m}"}
                        for m in range(8)
                    ]
                }
                for _ in range(32)
            ]
        )
    ],
    "many claims": [many(*[request()] * 16)] * 32,
    "more claims": [many(*[request()] * 32)] * 300,
    "tolerations": [many(*[request(tolerations=[{"operator": "Exists"}] * 16)] * 9)],
}


@pytest.mark.parametrize("name", some(CLAIMS, 8))
def test_no_claim_costs_much_more_than_a_normal_one(name):
    assert cost(*CLAIMS[name]) <= 6 * normal()


@pytest.mark.parametrize("name", some(CLAIMS, 8))
def test_a_search_is_interrupted_after_each_node(name):
    """10 ms at most: no node takes more than ``FORECAST_STEPS``, whatever others have left of theirs."""
    cache = cluster(30)
    pod, simulator = claiming_pod(cache, *CLAIMS[name]), AllocationSimulator(cache)
    for _ in "ab":
        budget = SearchBudget(MOST_STEPS)
        each = simulator.each(pod, NODES[:30], [()] * 30, budget)
        for _ in NODES[:30]:
            assert calls(each.__next__) <= 6 * FORECAST_STEPS
            assert budget.meter.left <= FORECAST_STEPS


def test_nodes_that_are_not_reached_are_unknown():
    cache = cluster(30)
    pod, simulator = claiming_pod(cache, many(request())), AllocationSimulator(cache)
    simulator.at_once = 300
    found = simulator.forecasts(pod, NODES[:30])
    assert found[0].devices
    assert found[-1].problem == UNFINISHED
    assert not found[-1].refused


def test_a_failed_search_is_not_repeated():
    cache = cluster()
    pod, simulator = claiming_pod(cache, *CLAIMS["macros in macros"]), AllocationSimulator(cache)
    first = calls(lambda: simulator.forecasts(pod, NODES))
    simulator.forecasts(pod, NODES)
    assert calls(lambda: simulator.forecasts(pod, NODES)) < first / 10


def test_claims_do_not_evict_the_matches_of_classes():
    cache = cluster()
    simulator = AllocationSimulator(cache)
    simulator.forecasts(claiming_pod(cache, many(request(count=8))), NODES)
    for number in range(3):
        wishes = [request(**selectors(*(f"{n} != {number}" for n in range(7, 37)))) for _ in range(2)]
        simulator.forecasts(claiming_pod(cache, many(*wishes)), NODES)
    (pool, _), *_ = cache.on_node("n0", {}).devices
    assert len(pool._claim_matches) <= 32
    meter = Meter()
    (of_gpus,) = cache.classes["gpu.nvidia.com"].selectors
    assert pool.matches(7, compile_selector(of_gpus), meter, of_class=True)
    assert meter.left == MOST_STEPS


def large(number: int) -> dict:
    """A claim that is as large as can be read, and unlike all others."""
    texts = [f"{n} != {number} || " + "'" + "x" * 480 + "' == ''" for n in range(128)]
    return many(*[request(**selectors(*texts[4 * n : 4 * n + 4])) for n in range(32)])


@pytest.mark.nightly
def test_memory_of_deleted_claims_and_classes_is_freed():
    cache = cluster()
    simulator = AllocationSimulator(cache)
    pod = Pod("ml", "p", "u", PodSpec(claims=(PodClaim("c", "c"),)))

    def fill(numbers: range) -> None:
        for number in numbers:
            cache.put(parse_claim("ml", f"kept-{number}", {"devices": large(number)}, None))
            cache.put(parse_claim("ml", "c", {"devices": large(number)}, None))
            expression = f"{number} == {number} || '{'y' * 9000}' == ''"
            cache.put(parse_class(f"class-{number}", selectors(expression)))
            simulator.forecasts(pod, NODES[:10])

    def empty() -> int:
        cache.keep("ResourceClaim", frozenset())
        cache.keep("DeviceClass", frozenset({"gpu.nvidia.com", "mig.nvidia.com"}))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    fill(range(10))
    tracemalloc.start()
    try:
        before = empty()
        fill(range(10, 310))
        full = tracemalloc.get_traced_memory()[0]
        assert full - before > 20 << 20
        assert empty() - before < 0.1 * (full - before)
    finally:
        tracemalloc.stop()
