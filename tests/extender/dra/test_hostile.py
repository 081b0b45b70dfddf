"""Claims that any user may write, up to what the API server lets through: what they cost, and what is kept.

The API server takes a selector of 10 KiB whose estimated cost is below 1,000,000, 32 selectors for each of 32
requests with 8 alternatives each, 32 constraints, and any number of claims for a pod.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from extender.dra.books import DeviceBooks
from extender.dra.cel import Failed, Meter, NotUnderstood, compiled
from extender.dra.forecast import Forecaster
from extender.dra.reading import claim_of, class_of, slice_of
from extender.limits import MOST_STEPS, PROBLEM, SELECTOR, SELECTOR_STEPS
from extender.objects import Pod, PodClaim, PodSpec
from tests.extender.dra.nvidia import books, foresee, gpu, names, spec
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


def cluster() -> DeviceBooks:
    made = books(*(spec(*map(gpu, range(8)), node=name) for name, _ in NODES))
    made.refresh(lambda name: {})
    return made


def asks(made: DeviceBooks, *claims: dict) -> Pod:
    for number, claim in enumerate(claims):
        made.put(claim_of("ml", f"c{number}", {"devices": claim}, None))
    return Pod("ml", "p", "u", PodSpec(claims=tuple(PodClaim(f"c{n}", f"c{n}") for n in range(len(claims)))))


def calls(work: Callable[[], object]) -> int:
    """Functions that are called, of Python and of C."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def cost(*claims: dict) -> int:
    """Of a forecast for a pod with these claims on all nodes."""
    made = cluster()
    pod, forecaster = asks(made, *claims), Forecaster(made)
    return calls(lambda: forecaster.forecasts(pod, NODES))


def normal() -> int:
    return cost(many(request(**selectors(f"{NORMAL} && {A}.index != 3"))))


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
                        request(allocationMode="All")["exactly"] | {"name": f"s{m}"} for m in range(8)
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
    assert cost(*CLAIMS[name]) <= 8 * normal()


@pytest.mark.parametrize("expression", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_selector_takes_a_bounded_number_of_steps_or_is_not_understood(expression):
    assert len(expression) <= SELECTOR
    meter = Meter()
    try:
        selector = compiled(expression, meter)
        meter = Meter()
        selector(DEVICE, meter)
    except (NotUnderstood, Failed) as error:
        assert len(str(error)) <= PROBLEM
    assert MOST_STEPS - meter.left - meter.beside <= SELECTOR_STEPS + 1
