"""Claims that any user may write, up to what the API server lets through: what they cost, and what is kept.

The API server takes a selector of 10 KiB whose estimated cost is below 1,000,000, 32 selectors for each of 32
requests with 8 alternatives each, 32 constraints, and any number of claims for a pod.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from extender.dra.cel import functions
from extender.dra.cel.evaluation import EvaluationFailed, Meter, Unsupported
from extender.dra.cel.selector import compile_selector
from extender.dra.device_cache import DeviceCache
from extender.dra.forecast import AllocationSimulator, Forecast
from extender.k8s.objects import Pod, PodClaim, PodSpec
from extender.k8s.resource_api.claim_parser import parse_claim
from extender.k8s.resource_api.slice_parser import parse_class, parse_slice
from extender.untrusted.limits import MOST_STEPS, PROBLEM, SELECTOR, SELECTOR_STEPS
from tests.extender.counting import calls
from tests.extender.dra.nvidia import device_cache, forecast_for, gpu, names, spec
from tests.extender.dra.test_cel import DEVICE, A

NODES = [(f"n{number}", {}) for number in range(100)]
NORMAL = "device.attributes['gpu.nvidia.com'].productName.lowerAscii().matches('^.*a100.*$')"
TEN = "[0,1,2,3,4,5,6,7,8,9]"
SIXTY = f"[{','.join(map(str, range(60)))}]"


def nested_lists(last: str) -> str:
    """``d`` is a list of 30 lists of 30 lists of 30 ones, and takes 400 characters to write."""
    thirty = ",".join("{}" for _ in range(30))
    lists = ((name, f"[{thirty.format(*[of] * 30)}]") for name, of in zip("abcd", "1abc", strict=True))
    return "".join(f"cel.bind({name}, {value}, " for name, value in lists) + last + "))))"


HOSTILE = {
    "macros in macros": f"{SIXTY}.exists(x, {SIXTY}.exists(y, x + y > 1000))",
    "macros side by side": " || ".join([f"{TEN}.exists(x, {TEN}.exists(y, x + y > 100))"] * 8),
    "macros on a map of a map": f"{A}.exists(x, {A}.exists(y, {A}.?nothing.hasValue()))",
    "equal lists": nested_lists("d == d"),
    "a list in a list": nested_lists("d in [c, d]"),
    "a list as a key": nested_lists("device.attributes[d].x == 1"),
    "a list as an optional key": nested_lists("device.attributes[?d].hasValue()"),
    "a doubled text": "cel.bind(a, 'aaaaaaaaaaaaaaaa', " + "cel.bind(a, a + a, " * 20 + "a == ''" + ")" * 21,
    "a long text": f"'{'a' * 9000}'.contains('{'a' * 500}b')",
    "a long text in parts": f"'{'a-' * 4500}'.split('-').size() > 1",
    "a long text in lower case": " || ".join([f"'{'A' * 900}'.lowerAscii() == ''"] * 10),
    "a slow pattern": f"'{'a' * 60}'.matches('^a*a*a*b$')",
    "many slow patterns": " || ".join(f"'{'a' * 60}'.matches('^a*a*[{n}ac]*b')" for n in range(60)),
    "many patterns": " || ".join(f"{A}.type.matches('x{n}.*')" for n in range(40)),
    "patterns of the device": f"{SIXTY}.exists(x, {A}.uuid.matches('^' + {A}.uuid + string(x) + 'a*$'))",
    "alternatives": f"'{'a' * 60}'.matches('{'(a|a|aa)' * 20}b')",
    "a group that is repeated": f"'{'a' * 60}'.matches('(a|a)*b')",
    "a class of many": f"'{'a' * 60}'.matches('{'[a-z a-z]?' * 20}b')",
    "an integer of 5,000 digits": f"{'9' * 5000} > 1",
    "a text of 5,000 digits": f"int('{'9' * 5000}') > 1",
    "an infinite number": "1e999 > 1.0",
    "a tiny quantity": " || ".join(["quantity('1e-9999').add(quantity('3e-9998')).isInteger()"] * 20),
    "parentheses": "(" * 200 + "true" + ")" * 200,
    "negations": "!" * 400 + "true",
    "a sum of many": "1" + "+1" * 200 + " == 2",
    "a chain of fields": "device" + ".a" * 200 + " == 2",
    "many choices": "true ? true : " * 100 + "true",
    "has() in has()": "has(device" + ".a" * 200 + ")",
    "many alternatives": " || ".join([f"{A}.index == {n}" for n in range(45)]),
    "many signs": "!" * 10000 + "true",
    "a long name": "a" * 10000,
    "white space": "true" + " " * 9000 + "&& false",
    "comments": "//\n" * 3000 + "true",
}


def request(**more: object) -> dict:
    return {"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com", **more}}


def selectors(*expressions: str) -> dict[str, Any]:
    return {"selectors": [{"cel": {"expression": expression}} for expression in expressions]}


def many(*requests: dict, constraints: list | None = None) -> dict:
    """A claim of these requests, each with a name of its own."""
    named = [one | {"name": f"r{number}"} for number, one in enumerate(requests)]
    return {"requests": named, "constraints": constraints or []}


def cluster() -> DeviceCache:
    cache = device_cache(*(spec(*map(gpu, range(8)), node=name) for name, _ in NODES))
    cache.refresh(lambda name: {})
    return cache


def asks(cache: DeviceCache, *claims: dict) -> Pod:
    for number, claim in enumerate(claims):
        cache.put(parse_claim("ml", f"c{number}", {"devices": claim}, None))
    return Pod("ml", "p", "u", PodSpec(claims=tuple(PodClaim(f"c{n}", f"c{n}") for n in range(len(claims)))))


def cost(*claims: dict) -> int:
    """Of a forecast for a pod with these claims on all nodes."""
    cache = cluster()
    pod, simulator = asks(cache, *claims), AllocationSimulator(cache)
    return calls(lambda: simulator.forecasts(pod, NODES))


def normal() -> int:
    return cost(many(request(**selectors(f"{NORMAL} && {A}.uuid != 'GPU-9'"))))


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
    "all that is watched": [
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


@pytest.mark.parametrize("name", CLAIMS)
def test_no_claim_costs_much_more_than_a_normal_one(name):
    assert cost(*CLAIMS[name]) <= 6 * normal()


@pytest.mark.parametrize("expression", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_selector_takes_a_bounded_number_of_steps_or_is_not_understood(expression):
    assert len(expression) <= SELECTOR
    meter, said = Meter(), ""
    try:
        selector = compile_selector(expression, meter)
        meter = Meter()
        selector(DEVICE, meter)
    except (Unsupported, EvaluationFailed) as error:
        said = str(error)
    assert len(said) <= PROBLEM
    assert MOST_STEPS - meter.left - meter.compile_steps <= SELECTOR_STEPS + 1


def test_the_next_pod_is_not_the_worse_for_it():
    cache = cluster()
    hostile = asks(cache, *CLAIMS["macros in macros"])
    simulator = AllocationSimulator(cache)
    assert not any(one.devices for one in simulator.forecasts(hostile, NODES))
    alone = normal()
    pod = asks(cache, many(request(**selectors(f"{NORMAL} && {A}.uuid != 'GPU-9'"))))
    found: list[Forecast] = []
    assert calls(lambda: found.extend(simulator.forecasts(pod, NODES))) <= 1.2 * alone
    assert all(names(one) == ["gpu-0"] for one in found)


def test_what_is_known_not_to_be_found_is_not_searched_again():
    cache = cluster()
    pod, simulator = asks(cache, *CLAIMS["macros in macros"]), AllocationSimulator(cache)
    first = calls(lambda: simulator.forecasts(pod, NODES))
    simulator.forecasts(pod, NODES)
    assert calls(lambda: simulator.forecasts(pod, NODES)) < first / 10


def test_who_writes_claims_does_not_make_it_forgotten_what_classes_match():
    cache = cluster()
    simulator = AllocationSimulator(cache)
    simulator.forecasts(asks(cache, many(request(count=8))), NODES)
    for number in range(3):
        wishes = [request(**selectors(*(f"{n} != {number}" for n in range(7, 37)))) for _ in range(2)]
        simulator.forecasts(asks(cache, many(*wishes)), NODES)
    (pool, _), *_ = cache.on_node("n0", {}).devices
    assert len(pool._claim_matches) <= 32
    meter = Meter()
    (of_gpus,) = cache.classes["gpu.nvidia.com"].selectors
    assert pool.matches(7, compile_selector(of_gpus), meter, of_class=True)
    assert meter.left == MOST_STEPS


@pytest.mark.parametrize(
    "pattern",
    [
        "a|" * 40 + "b",
        "^(a|b)?c$",
        "a{2}b{3}",
        "(?i)^A.*00$",
        "[a-c ]+x",
        "^.*(h100|b200).*$",
        r"\\d+\\.\\d+",
    ],
)
def test_a_pattern_that_people_write_is_cheap(pattern):
    meter = Meter()
    with suppress(Unsupported):
        compile_selector(f"'{'a' * 16}'.matches('{pattern}')")(DEVICE, meter)
    assert MOST_STEPS - meter.left - meter.compile_steps < 100


def test_the_bound_of_a_pattern_is_one():
    """Counted by hand: a way is a start, an end for each repeat, and a branch of each group."""
    for pattern, ways in (("a*b", 65 * 66 // 2), ("^a*b", 65), ("^(x|y)(x|y)z", 4), ("^a*a*b", 65 * 66 // 2)):
        assert (regex(pattern).cost("a" * 64) + 1) * 64 > ways


def regex(pattern: str) -> Any:
    found = functions._compile_regex(pattern)
    assert not isinstance(found, str)
    return found


def large(number: int) -> dict:
    """A claim that is as large as can be read, and unlike all others."""
    texts = [f"{n} != {number} || " + "'" + "x" * 480 + "' == ''" for n in range(128)]
    return many(*[request(**selectors(*texts[4 * n : 4 * n + 4])) for n in range(32)])


def test_nothing_is_kept_claim_matches_and_classes_that_are_gone():
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


def test_a_pool_that_is_gone_leaves_nothing():
    cache = cluster()
    before = (len(cache.pools.kinds.gpu_fractions), len(+cache.total_slots))
    for number in range(50):
        one = gpu(number)
        one["attributes"]["productName"] = {"string": f"GPU {number}"}
        cache.put(parse_slice("odd", spec(one, node=f"odd-{number}")))
        cache.refresh(lambda name: {})
    cache.remove("ResourceSlice", "odd")
    cache.refresh(lambda name: {})
    assert (len(cache.pools.kinds.gpu_fractions), len(cache.total_slots)) == before
    assert not any(name.startswith("odd") for name in cache.pools._by_node)


def test_the_cost_of_an_event_does_not_grow_with_the_cluster():
    def of_events(nodes: int) -> tuple[int, int]:
        cache = device_cache(*(spec(*map(gpu, range(8)), node=f"n{number}") for number in range(nodes)))
        cache.refresh(lambda name: {})
        held = parse_claim("ml", "held", {"devices": {}}, given({"device": "gpu-3"}))
        free = parse_claim("ml", "free", {"devices": many(request())}, None)

        def event(claim: Any) -> None:
            cache.put(claim)
            cache.refresh(lambda name: {})

        gc.collect()  # a collection while calls are counted would add those of its callbacks
        return calls(lambda: event(held)), calls(lambda: event(free))

    assert of_events(400) == of_events(10)


def given(*results: dict, **more: Any) -> dict:
    """A claim's status with these devices, of n0 where nothing else is said."""
    named = [{"driver": "gpu.nvidia.com", "pool": "n0", "device": "gpu-0", **one} for one in results]
    return {"allocation": {"devices": {"results": named}}, **more}


READABLE = [
    ({"devices": {"requests": [request()] * 33}}, given({})),
    ({"devices": many(request(**selectors("x" * 20_000)))}, given({})),
    ({"devices": many(request(**selectors(*["true"] * 33)))}, given({})),
    ({"devices": many(*[request(**selectors(*[f"'{'x' * 5000}' == ''"] * 4))] * 8)}, given({})),
    ({"devices": many(request(count=10**400))}, given({})),
    (7, given({})),
    ({"devices": {}}, given({}, reservedFor=[{"resource": "pods", "name": "p"}] * 300)),
    ({"devices": {}}, given({}, reservedFor=7)),
    ({"devices": {}}, given({"shareID": "a", "consumedCapacity": {"memory": "1e999999"}})),
    ({"devices": {}}, given({"shareID": "a", "consumedCapacity": 7})),
    ({"devices": {}}, given({"adminAccess": "yes"})),
]


@pytest.mark.parametrize(("raw", "status"), READABLE)
def test_whatever_else_is_wrong_with_a_claim_its_devices_are_held(raw, status):
    cache = cluster()
    cache.put(parse_claim("ml", "odd", raw, status))
    assert names(forecast_for(cache, many(request()), "n0")) == ["gpu-1"]
    cache.remove("ResourceClaim", "ml/odd")
    assert names(forecast_for(cache, many(request()), "n0")) == ["gpu-0"]
    assert cache.problems == {}


@pytest.mark.parametrize(
    "status",
    [
        given(*[{"device": f"gpu-{n}"} for n in range(40)]),
        given({"device": ""}),
        given({"device": "x" * 300}),
        given({"device": None}, {"device": "gpu-1"}),
    ],
)
def test_a_pool_of_which_it_is_not_known_what_is_held_gives_nothing_that_is_known(status):
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


@pytest.mark.parametrize(
    "status",
    [
        7,
        {"allocation": []},
        {"allocation": {"devices": 7}},
        given({"pool": "x" * 300}),
        given({"pool": None}),
    ],
)
def test_devices_of_which_not_even_the_pool_is_known_may_be_any(status):
    cache = cluster()
    cache.put(parse_claim("ml", "odd", {"devices": {}}, status))
    found = forecast_for(cache, many(request()), "n1")
    assert (found.devices, found.refused) == ((), False)
    assert "cannot be read" in found.problem
    cache.put(parse_claim("ml", "odd", {"devices": {}}, None))
    assert names(forecast_for(cache, many(request()), "n1")) == ["gpu-0"]


def slices(change: Callable[[dict], object]) -> dict:
    raw = spec(gpu(0), node="n0")
    change(raw)
    return raw


@pytest.mark.parametrize(
    "raw",
    [
        slices(lambda raw: raw.update(devices=[gpu(n) for n in range(129)])),
        slices(lambda raw: raw["devices"][0].update(name="x" * 300)),
        slices(lambda raw: raw["devices"][0]["attributes"].update({f"a{n}": {"int": n} for n in range(65)})),
        slices(lambda raw: raw["devices"][0]["capacity"].update({f"{n}": {"value": "1"} for n in range(65)})),
        slices(lambda raw: raw["devices"][0]["capacity"].update({"x" * 400: {"value": "1"}})),
        slices(lambda raw: raw["devices"][0]["capacity"].update(memory={"value": float("inf")})),
        slices(lambda raw: raw["devices"][0]["capacity"].update(memory={"value": float("nan")})),
        slices(lambda raw: raw["devices"][0]["capacity"].update(memory={"value": 10**5000})),
        slices(lambda raw: raw["devices"][0]["capacity"].update(memory={"value": "1e-9999"})),
        slices(lambda raw: raw["devices"][0].update(taints=[{"key": "k", "effect": "NoSchedule"}] * 17)),
        slices(lambda raw: raw.update(sharedCounters=[{"name": f"s{n}", "counters": {}} for n in range(65)])),
        slices(lambda raw: raw["devices"][0]["attributes"].update(x={"string": "x" * 70_000})),
        slices(lambda raw: raw["devices"][0]["attributes"].update(x={"int": 10**5000})),
        slices(lambda raw: raw["devices"][0]["attributes"].update({"x" * 90_000: {"strange": 1}})),
        slices(lambda raw: raw["devices"][0].update({"x" * 90_000: 1})),
    ],
)
def test_a_slice_beyond_the_limits_has_devices_that_nobody_knows(raw):
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
def test_a_claim_beyond_the_limits_is_not_understood(claim):
    found = forecast_for(device_cache(spec(gpu(0), node="n0")), claim, "n0")
    assert (found.devices, found.refused) == ((), False)
    assert 0 < len(found.problem) <= PROBLEM


def test_a_class_beyond_the_limits_is_a_problem():
    cache = device_cache(spec(gpu(0), node="n0"))
    cache.put(parse_class("gpu.nvidia.com", selectors(*["true"] * 33)))
    assert "more than 32" in cache.problems["DeviceClass gpu.nvidia.com"]
    found = forecast_for(cache, many(request()), "n0")
    assert (found.devices, found.refused) == ((), False)
