"""Compiles and evaluates the CEL selectors of device classes and claims.

Supported: literals, lists, ``device.driver``, ``device.attributes``, ``device.capacity`` and
``device.allowMultipleAllocations``, comparison, ``in``, ``&&``, ``||``, ``!``, ``?:``, arithmetic, ``has()``,
``cel.bind()``, ``.?`` with ``orValue``, the functions and macros of ``functions.py``.
Anything else raises ``Unsupported`` when the expression is compiled.

Libraries do not fit. Of three evaluated in November 2026, cel-expr-python 0.1.3 has no user-defined types
(quantities, versions) and weighs 50 MB, common-expression-language 0.10.0 supports neither ``cel.bind`` nor
``.?``, and cel-python 0.5.0 takes 1 ms instead of 10 us here; none has Kubernetes's functions.

Sources: the variables and their defaults in k8s.io/dynamic-resource-allocation ``cel/compile.go`` (v0.36.3),
the libraries ``quantity.go`` and ``semverlib.go`` of k8s.io/apiserver ``pkg/cel/library``, and, for errors in
``&&``, ``||``, ``==``, ``in`` and the macros, cel-go v0.26.0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from extender.dra.cel import program as cel
from extender.dra.cel.functions import COSTS, FUNCTIONS, MACROS, MAX_NESTING, METHODS, WITH_OPTION, items_of
from extender.dra.cel.program import (
    BudgetExhausted,
    DefaultingMap,
    Meter,
    Program,
    Result,
    Scope,
    Unsupported,
    Variables,
)
from extender.k8s.resource_slices import Amount
from extender.untrusted.bounded_cache import BoundedMap
from extender.untrusted.limits import SELECTOR, SELECTOR_DEPTH, SELECTOR_TOKENS, STEP_TEXT, quoted

_TOKEN_STEPS = 16  # to compile a token
_TOKEN_BYTES = 400  # of a compiled token, approximately
_COMPILED: BoundedMap[str, Selector | str] = BoundedMap(1024, 2 << 20)
"""By expression; a string is the problem of an unsupported expression."""
Token = tuple[str, str]
"""(kind, text)."""
_TOKEN = re.compile(
    r"""\s*(?:(?://[^\n]*\n?)|
    (?P<text>[rR]?(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))|
    (?P<double>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)|(?P<int>0x[0-9a-fA-F]+|\d+)|
    (?P<name>[A-Za-z_]\w*)|(?P<sign>&&|\|\||[=!<>]=|\.\?|\[\?|[-+*/%!<>?:.,()\[\]{}]))""",
    re.VERBOSE | re.ASCII,
)
_MAX_DIGITS = 32  # characters of an integer
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'", "`": "`", "?": "?"}
_BINARY = (("||",), ("&&",), tuple(cel.RELATIONS), ("+", "-"), ("*", "/", "%"))
"""Binary operators, in ascending order of precedence."""


@dataclass(frozen=True, slots=True)
class Selector:
    """A compiled expression. ``key`` is a much shorter identifier."""

    key: bytes
    program: Program

    def __call__(self, variables: Variables, meter: Meter | None = None) -> bool:
        """Whether the device with these ``device_variables`` matches. Raises ``MatchUnknown``."""
        meter = meter or Meter()
        try:
            with meter.one_expression():
                result = self.program(Scope(variables, meter))
        except RecursionError:
            raise Unsupported("nested too deeply") from None
        return result if isinstance(result, bool) else cel.fail("the result is not a boolean")


def device_variables(
    driver: str,
    attributes: Mapping[str, Mapping[str, object]],
    capacity: Mapping[str, Mapping[str, Amount]],
    *,
    allow_multiple_allocations: bool = False,
) -> Variables:
    """The variables of an expression for a device; attributes and capacities by domain and name."""
    return {
        "device": {
            "driver": driver,
            "attributes": DefaultingMap(attributes),
            "capacity": DefaultingMap(capacity),
            "allowMultipleAllocations": allow_multiple_allocations,
        }
    }


def compile_selector(expression: str, meter: Meter | None = None) -> Selector:
    """The selector of this expression. Raises ``Unsupported``.

    Compiling spends steps of the ``meter``; recent expressions are cached and cost nothing.
    """
    compiled = _COMPILED.get(expression) or _compile(expression, meter or Meter())
    if isinstance(compiled, str):
        raise Unsupported(compiled)
    return compiled


def _compile(expression: str, meter: Meter) -> Selector | str:
    token_count = 0
    try:
        if len(expression) > SELECTOR:
            raise Unsupported(f"longer than {SELECTOR} characters")
        meter.spend_compiling(len(expression) // STEP_TEXT)
        tokens = tokenize(expression)
        token_count = len(tokens)
        meter.spend_compiling(_TOKEN_STEPS * token_count)
        key = blake2b(expression.encode(errors="surrogatepass"), digest_size=16).digest()
        compiled: Selector | str = Selector(key, Parser(tokens).parse())
    except BudgetExhausted:
        raise
    except Unsupported as error:
        compiled = str(error)
    _COMPILED.put(expression, compiled, len(expression) + _TOKEN_BYTES * token_count)
    return compiled


def tokenize(text: str) -> list[Token]:
    """The tokens of an expression; the last token marks its end. Raises ``Unsupported``."""
    tokens, position, end = [], 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise Unsupported(f"a selector that is not CEL, from {quoted(text[position : position + 10])} on")
        tokens.append((match.lastgroup or "", match[match.lastgroup] if match.lastgroup else ""))
        if len(tokens) > SELECTOR_TOKENS:
            raise Unsupported(f"a selector of more than {SELECTOR_TOKENS} words and signs")
        position = match.end()
    return [*(token for token in tokens if token[0]), ("end", "")]


def parse_integer(text: str) -> int:
    """An integer literal, decimal or hexadecimal. Raises ``Unsupported``."""
    base = 16 if text[:2] == "0x" else 10
    number = int(text, base) if len(text) <= _MAX_DIGITS else 1 << 64
    if number > 1 << 63:  # the literal after the minus of -(2**63)
        raise Unsupported("an integer of more than 64 bits")
    return number


def parse_double(text: str) -> float:
    """A floating-point literal. Raises ``Unsupported``."""
    if math.isinf(number := float(text)):
        raise Unsupported("a number that is too large")
    return number


def unquote(text: str) -> str:
    """The value of a string literal, raw or with escapes. Raises ``Unsupported``."""
    if text[0] in "rR":
        return text[2:-1]
    pieces = re.split(r"\\(.)", text[1:-1])
    if any(escape not in _ESCAPES for escape in pieces[1::2]):
        raise Unsupported(f"an escape in {quoted(text)}")
    return "".join(_ESCAPES[piece] if index % 2 else piece for index, piece in enumerate(pieces))


_LITERALS: Mapping[str, Callable[[str], object]] = {
    "text": unquote,
    "int": parse_integer,
    "double": parse_double,
}


class Parser:
    """Parses the tokens of one expression: a method for each rule of the grammar. All raise
    ``Unsupported``."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens[::-1]
        self._macro_depth = 0
        self._depth = 0

    def parse(self) -> Program:
        """The program for the whole expression."""
        program = self._expression()
        if rest := self._tokens[-1][1]:
            raise Unsupported(f"{quoted(rest)} after the end of the expression")
        return program

    def _next(self) -> Token:
        return self._tokens.pop() if len(self._tokens) > 1 else self._tokens[0]

    def _accept(self, *signs: str) -> str:
        """Consume the next token if it is one of these signs, and return it; "" otherwise."""
        kind, text = self._tokens[-1]
        is_sign = text in signs and (kind == "sign" or text == "in")
        return self._next()[1] if is_sign else ""

    def _expect(self, sign: str) -> None:
        if not self._accept(sign):
            raise Unsupported(f"{quoted(self._tokens[-1][1])} instead of {sign!r}")

    def _name(self) -> str:
        kind, text = self._next()
        if kind != "name":
            raise Unsupported(f"{quoted(text)} instead of a name")
        return text

    def _enter_level(self) -> None:
        self._depth += 1
        if self._depth > SELECTOR_DEPTH:
            raise Unsupported("nested too deeply")

    def _expression(self) -> Program:
        self._enter_level()
        program = self._binary()
        if self._accept("?"):
            yes = self._binary()
            self._expect(":")
            program = cel.conditional(program, yes, self._expression())
        self._depth -= 1
        return program

    def _binary(self, level: int = 0) -> Program:
        if level == len(_BINARY):
            return self._unary()
        program = self._binary(level + 1)
        sides = [program]
        while sign := self._accept(*_BINARY[level]):
            right = self._binary(level + 1)
            if sign in ("||", "&&"):
                sides.append(right)
            elif sign in cel.RELATIONS:
                program = cel.relation(sign, program, right)
            else:
                program = cel.call(cel.ARITHMETIC[sign], program, right)
        if len(sides) == 1:
            return program
        decisive = level == 0  # True decides "||", False decides "&&"
        return cel.metered(lambda scope: cel.decide(sides, lambda side: side(scope), decisive=decisive))

    def _unary(self) -> Program:
        if sign := self._accept("!", "-"):
            self._enter_level()
            program = cel.call(cel.logical_not if sign == "!" else cel.negate, self._unary())
            self._depth -= 1
            return program
        return self._member()

    def _member(self) -> Program:
        program = self._primary()
        while sign := self._accept(".", "[", ".?", "[?"):
            if sign.startswith("["):
                program = self._item(program, cel.optional_member if sign == "[?" else cel.index_member)
            elif sign == ".?":
                program = cel.member(cel.optional_member, program, self._name())
            else:
                program = self._field_or_method(program)
        return program

    def _item(self, target: Program, take: Callable[[Any, Any], Any]) -> Program:
        key = self._expression()
        self._expect("]")
        return cel.call(take, target, key, cost=lambda *_: 0)

    def _field_or_method(self, target: Program) -> Program:
        name = self._name()
        if not self._accept("("):
            return cel.member(cel.index_member, target, name)
        if name in MACROS:
            return self._macro(name, target)
        if name not in METHODS:
            raise Unsupported(f"function {quoted(name)}")
        arguments = self._list_until(")")
        count, method = METHODS[name]
        if len(arguments) != count:
            raise Unsupported(f"{name}() with {len(arguments)} arguments")
        return cel.call(method, target, *arguments, cost=COSTS.get(name))

    def _macro(self, name: str, target: Program) -> Program:
        if self._macro_depth == MAX_NESTING:
            raise Unsupported("macros within macros within macros")
        item_name = self._name()
        self._expect(",")
        self._macro_depth += 1
        body = self._expression()
        self._macro_depth -= 1
        self._expect(")")

        def evaluate(scope: Scope) -> Result:
            items = items_of(target(scope))
            return MACROS[name](items, lambda item: body(scope.with_variable(item_name, item)))

        return cel.metered(evaluate)

    def _list_until(self, end: str) -> list[Program]:
        items: list[Program] = []
        while not self._accept(end):
            items.append(self._expression())
            if not self._accept(","):
                self._expect(end)
                break
        return items

    def _primary(self) -> Program:
        kind, text = self._next()
        if kind in _LITERALS:
            value = _LITERALS[kind](text)
            return cel.metered(lambda scope: value)
        if text == "(":
            program = self._expression()
            self._expect(")")
            return program
        if text == "[":
            items = self._list_until("]")
            return cel.metered(lambda scope: [item(scope) for item in items])
        if kind == "name":
            return self._identifier(text)
        raise Unsupported(quoted(text) if text else "it ends too early")

    def _identifier(self, name: str) -> Program:
        if name in ("true", "false"):
            return cel.metered(lambda scope: name == "true")
        if name == "cel" and self._accept("."):
            return self._bind()
        if not self._accept("("):
            return cel.variable(name)
        if name == "has":
            return self._has()
        arguments = self._list_until(")")
        if name not in FUNCTIONS or not 1 <= len(arguments) <= 1 + (name in WITH_OPTION):
            raise Unsupported(f"function {quoted(name)}")
        return cel.call(FUNCTIONS[name], *arguments)

    def _bind(self) -> Program:
        if self._name() != "bind":
            raise Unsupported("a function of cel other than bind")
        self._expect("(")
        name = self._name()
        self._expect(",")
        value = self._expression()
        self._expect(",")
        body = self._expression()
        self._expect(")")
        return cel.metered(lambda scope: body(scope.with_variable(name, value(scope))))

    def _has(self) -> Program:
        target, name = self._primary(), ""
        while sign := self._accept(".", "["):
            if name:
                target = cel.member(cel.index_member, target, name)
            name = self._name() if sign == "." else ""
            if not name:
                target = self._item(target, cel.index_member)
        self._expect(")")
        if not name:
            raise Unsupported("has() of an expression that is not a field")
        return cel.member(cel.has_member, target, name)
