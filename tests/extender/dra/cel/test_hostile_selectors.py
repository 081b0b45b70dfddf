"""Selectors that any user may write: what it costs to evaluate them is bounded."""

from __future__ import annotations

import time
from contextlib import suppress
from unittest.mock import patch

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from extender.dra.cel.functions import program_size
from extender.dra.cel.program import BudgetExhausted, EvaluationFailed, Meter, Unsupported
from extender.dra.cel.selector import compile_selector
from extender.untrusted.limits import MOST_STEPS, PATTERN_SIZE, PROBLEM, SELECTOR, SELECTOR_STEPS
from tests.extender.dra.cel.test_selector import DEVICE, A

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


@pytest.mark.parametrize("expression", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_selector_takes_a_bounded_number_of_steps_or_is_not_supported(expression):
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
def test_usual_patterns_are_cheap(pattern):
    meter = Meter()
    with suppress(Unsupported):
        compile_selector(f"'{'a' * 16}'.matches('{pattern}')")(DEVICE, meter)
    assert MOST_STEPS - meter.left - meter.compile_steps < 100


@pytest.mark.nightly
@pytest.mark.parametrize(
    "pattern",
    [
        "(a*)*b",
        "(a|a|aa)(a|aa)*" * 8 + "b",
        "a?" * 30 + "a" * 30,
        ".{900}" * 40,
        r"(\\pL|\\pN){30}",
        "x" * 256,
    ],
)
def test_a_step_of_a_pattern_takes_microseconds(pattern):
    """No pattern takes longer for each step that it spends than other parts of a selector do."""
    meter = Meter()
    started = time.process_time()
    with suppress(Unsupported):
        compile_selector(f"'{'a' * 500}'.matches('{pattern}')", meter)(DEVICE, meter)
    assert time.process_time() - started < 50e-6 * (200 + MOST_STEPS - meter.left)


PARTS = [
    *(
        "a",
        "K",
        "-",
        ".",
        "^",
        "$",
        "|",
        "\u00e9",
        "\U0001d7d7",
        r"\d",
        r"\w",
        r"\W",
        r"\S",
        r"\b",
        r"\.",
        r"\n",
    ),
    *(
        "[a-z]",
        "[^a]",
        "[0-9a-f]",
        "[]a]",
        "[^]a]",
        r"[^\d]",
        r"[\W\S]",
        "[[:^alpha:]]",
        "[a-\u00e9]",
        "[\u017fK]",
    ),
    *(
        r"\x{10FFFF}",
        r"[\x{80}-\x{FFFF}]",
        r"\pN",
        "(?i)",
        "(?s)",
        "(?i:\u03c2)",
        "(",
        "(?:",
        "(?P<n>",
        "(?i:",
        ")",
    ),
    *("*", "+", "?", "*?", "{2}", "{3,}", "{0,4}", "{7}", "{0}", "{,3}", "{2,3}?"),
]


@given(st.lists(st.sampled_from(PARTS), max_size=24).map("".join))
def test_no_pattern_has_more_instructions_than_its_text_tells(pattern: str) -> None:
    options = re2.Options()
    options.log_errors = False
    with suppress(re2.error):
        assert re2.compile(pattern, options).programsize <= program_size(pattern) + 8


@pytest.mark.parametrize(
    "pattern",
    [
        "a{0,1000}a{0,1000}",
        "a{0,200}",
        "(a{0,14}){0,14}",
        "((a{10}){10}){10}",
        "[^a]{50}",
        "(?:.{20}){20}b?",
        r"\Q(\E{1000}",
        "a{999999999}" * 20,
        r"\pL" * 85,
        r"\PL" * 85,
        "(?i)" + r"[^\pL]" * 40,
        "a" * 257,
    ],
)
def test_a_large_pattern_is_unknown_and_never_compiled(pattern: str) -> None:
    expression, meter = f"device.driver.matches(r'{pattern}')", Meter()
    selector = compile_selector(expression, meter)
    meter = Meter()
    with patch("re2.compile") as compiled:
        with pytest.raises(Unsupported, match="is not supported") as raised:
            selector(DEVICE, meter)
        assert not isinstance(raised.value, BudgetExhausted)
        with pytest.raises(Unsupported):
            selector(DEVICE, Meter())
    compiled.assert_not_called()
    assert meter.compile_steps == PATTERN_SIZE
