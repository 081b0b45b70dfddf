"""Each function and operator of CEL on the largest input that is admitted: its work grows with its steps.

Work is counted and not timed: calls of functions, and the characters and items that a function reads or
makes, for a regular expression each of its instructions for each character.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

import pytest
import re2

from extender.dra.cel import program, selector
from extender.dra.cel.functions import FUNCTIONS, MACROS, METHODS
from extender.dra.cel.program import MatchUnknown, Meter
from extender.dra.cel.selector import Parser, tokenize
from extender.untrusted.limits import MOST_STEPS, SELECTOR, SELECTOR_STEPS, STEP_TEXT
from tests.extender.counting import calls
from tests.extender.dra.cel.test_selector import DEVICE, A

LONG = "'" + "a" * 9000 + "'"
"""Nearly the largest text of a selector."""
DOUBLED = "cel.bind(t, 'aaaaaaaaaaaaaaaa', " + "cel.bind(t, t + t, " * 6 + "{}" + ")" * 7
"""Around an expression in which ``t`` has 1,024 characters, the most that operators make."""
LISTED = "cel.bind(l, [t,t,t,t,t,t,t,t], " + "cel.bind(l, l + l, " * 3 + "{}" + ")" * 4
"""Around an expression in which ``l`` has 64 such texts, the most that a macro visits."""
ALIKE = DOUBLED.format("cel.bind(l, [t,t,t,t,t,t,t,t], cel.bind(m, l.map(x, '' + x), {}))")
"""Around an expression in which ``l`` and ``m`` are equal, and all of ``m`` must be read to tell."""
AGAIN = " || "
VERSION = "'" + "1." + "2" * 60 + ".3'"


def lists(last: str) -> str:
    return DOUBLED.format(LISTED.format(last))


def often(part: str, times: int = 30) -> str:
    """The expression again and again: no side of ``||`` is decisive, as none is true."""
    return AGAIN.join([part] * times)


WORST = {
    "startsWith": f"{LONG}.startsWith({LONG[:1000]}b')",
    "endsWith": f"{LONG}.endsWith('b{LONG[1:900]}')",
    "contains": f"{LONG}.contains('{'a' * 900}b')",
    "matches": f"{LONG[:400]}'.matches('{'(a?)' * 40}b')" + AGAIN + often("''.matches('a{0,170}b')", 20),
    "lowerAscii": f"{LONG.upper()}.lowerAscii() == 'a'",
    "upperAscii": f"{LONG}.upperAscii() == 'a'",
    "split": f"'{'a,' * 1000}'.split(',') == ['a']",
    "size": often(f"{LONG[:900]}'.size() < 0", 10),
    "compareTo": often("quantity('1').compareTo(quantity('1')) > 0"),
    "isGreaterThan": often(f"semver({VERSION}).isGreaterThan(semver({VERSION}))", 20),
    "isLessThan": often(f"{A}.driverVersion.isLessThan({A}.driverVersion)", 20),
    "asInteger": often("quantity('9223372036854775807').asInteger() < 0"),
    "isInteger": often("quantity('0.5').isInteger()"),
    "add": often("quantity('1e-99').add(quantity('3e-98')).add(quantity('9e18')).isInteger()", 15),
    "sub": often("quantity('1e-99').sub(quantity('3e-98')).sub(1).isInteger()", 15),
    "major": often(f"semver({VERSION}).major() < 0"),
    "minor": often(f"semver({VERSION}).minor() < 0"),
    "patch": often(f"semver({VERSION}).patch() < 0"),
    "orValue": often(f"device.?driver.orValue({LONG[:100]}') == ''"),
    "hasValue": often(f"{A}.?none.hasValue()"),
    "quantity": often(f"quantity('{'9' * 18}.{'9' * 9}').isInteger()"),
    "semver": often(f"semver('v00{'1' * 50}', true).major() < 0"),
    "isSemver": f"isSemver({LONG}, true)",
    "sign": often("sign(quantity('1e-99')) < 0"),
    "int": often(f"int('{'9' * 18}') < 0"),
    "string": often("string(9223372036854775807) == ''"),
    "all": lists("l.all(x, l.all(y, y == x + ''))"),
    "exists": lists("l.exists(x, l.exists(y, y != x))"),
    "exists_one": lists("l.exists_one(x, l.exists_one(y, y == x))"),
    "existsOne": lists("l.existsOne(x, x != t)"),
    "filter": lists("l.filter(x, l.filter(y, y == x) == l) == []"),
    "map": lists("l.map(x, x + '') == l.map(x, '' + x)"),
    "==": ALIKE.format(often("l == m && false")),
    "!=": ALIKE.format(often("l != m")),
    "in": ALIKE.format(often("t.upperAscii() in m", 20)),
    "<": DOUBLED.format("t + '' < t.lowerAscii()"),
    "<=": DOUBLED.format("t + 'b' <= t.lowerAscii()"),
    ">": DOUBLED.format("t > t.lowerAscii()"),
    ">=": DOUBLED.format("t >= t.lowerAscii() + 'b'"),
    "+": DOUBLED.format(often("t + '' == ''", 10)),
    "-": "9223372036854775807 - 1 < 0" + " - 1" * 40,
    "*": "1.5" + " * 1.5" * 100 + " < 0.0",
    "/": "9223372036854775807" + " / 3" * 100 + " < 0",
    "%": "9223372036854775807" + " % 9223372036854775807" * 20 + " < 0",
    "&&": " && ".join(["true"] * 200),
    "||": " || ".join(["false"] * 200),
    "!": "!" * 30 + "true",
    "?:": "(true ? " * 20 + "false" + " : true)" * 20,
    "[]": often(f"device.attributes[{LONG[:250]}'] == 1"),
    ".": often(f"{A}.index == 4"),
    ".?": often("device.?attributes.hasValue() == false"),
    "[?": often(f"device.attributes[?{LONG[:250]}'].hasValue() == false"),
    "has": often(f"!has({A}.index)"),
    "cel.bind": "".join(f"cel.bind(x{n}, 1, " for n in range(25)) + "x0 < 0" + ")" * 25,
    "list": "[" + ",".join("1" for _ in range(200)) + "] == []",
}
OPERATORS = {*program.RELATIONS, *program.ARITHMETIC, "&&", "||", "!", "?:", "[]", ".", ".?", "[?", "has"}
OPERATORS |= {"cel.bind", "list"}
WORK_OF_A_STEP = 12
"""The most calls, and ``STEP_TEXT`` characters, for each step. A step with a constant takes two calls."""


def size(value: object) -> int:
    """Characters and items in a value, including those of nested lists."""
    if isinstance(value, list):
        return len(value) + sum(map(size, value))
    return len(value) if isinstance(value, str) else 1


@contextmanager
def touched() -> Iterator[list[int]]:
    """Adds up what functions read and make, including regular expressions."""
    sums: list[int] = []

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def count(*values: Any) -> Any:
            sums.append(len(values[0]) if name in MACROS else sum(map(size, values)))
            if name == "matches":
                sums.append(re2.compile(values[1]).programsize * (1 + len(values[0])))
            result = function(*values)
            sums.append(size(result))
            return result

        return count

    methods = {name: (n, counting(name, function)) for name, (n, function) in METHODS.items()}
    tables: list[tuple[Any, dict[str, Any]]] = [(METHODS, methods)]
    for table in (FUNCTIONS, MACROS, program.RELATIONS, program.ARITHMETIC):
        tables.append((table, {name: counting(name, function) for name, function in table.items()}))
    patches = [patch.dict(table, counted) for table, counted in tables]
    for changed in patches:
        changed.start()
    try:
        yield sums
    finally:
        for changed in patches:
            changed.stop()


def test_every_function_has_its_worst_case() -> None:
    assert WORST.keys() == {*FUNCTIONS, *METHODS, *MACROS, *OPERATORS}


@pytest.mark.parametrize("name", WORST)
def test_the_work_of_a_step_is_bounded(name: str) -> None:
    expression = WORST[name]
    assert len(expression) <= SELECTOR
    meter = Meter()
    with suppress(MatchUnknown):  # the first time fills caches
        selector.compile_selector(expression)(DEVICE, Meter())
    with touched() as sums, suppress(MatchUnknown), meter.one_expression():
        Parser(tokenize(expression)).parse()(program.Scope(DEVICE, meter))
    steps = MOST_STEPS - meter.left
    assert 40 < steps <= SELECTOR_STEPS + meter.compile_steps, "it fails at once, and shows nothing"
    run = selector.compile_selector(expression)

    def evaluate() -> None:
        with suppress(MatchUnknown):
            run(DEVICE, Meter())

    work = calls(evaluate) + sum(sums) // STEP_TEXT
    assert work <= WORK_OF_A_STEP * steps, f"{work / steps:.1f} for each of {steps} steps"
