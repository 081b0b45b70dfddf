"""Parses CEL: recursive descent over the grammar of CEL's language definition."""

from __future__ import annotations

from extender.dra.cel import operators
from extender.dra.cel.evaluation import Result, Unsupported
from extender.dra.cel.functions import COSTS, FUNCTIONS, MACROS, MAX_NESTING, METHODS, items_of
from extender.dra.cel.operators import ARITHMETIC, RELATIONS
from extender.dra.cel.program import (
    Program,
    Scope,
    call,
    conditional,
    constant,
    list_of,
    logical,
    member,
    relation,
    variable,
)
from extender.dra.cel.tokens import Token, TokenStream, parse_double, parse_integer, unquote
from extender.untrusted.limits import SELECTOR_DEPTH, quoted

_BINARY = (tuple(RELATIONS), ("+", "-"), ("*", "/", "%"))
"""Binary operators; those that bind more strongly come later."""


class Parser:
    """Parses the tokens of one expression: a method for each rule of the grammar."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = TokenStream(tokens)
        self._macro_depth = 0
        self._depth = 0

    def parse(self) -> Program:
        """The program for the whole expression. Raises ``Unsupported``."""
        program = self._expression()
        self._tokens.expect_end()
        return program

    def _enter_level(self) -> None:
        self._depth += 1
        if self._depth > SELECTOR_DEPTH:
            raise Unsupported("nested too deeply")

    def _expression(self) -> Program:
        self._enter_level()
        program = self._or()
        if self._tokens.accept("?"):
            yes = self._or()
            self._tokens.expect(":")
            program = conditional(program, yes, self._expression())
        self._depth -= 1
        return program

    def _or(self) -> Program:
        sides = [self._and()]
        while self._tokens.accept("||"):
            sides.append(self._and())
        return logical(sides, decisive=True) if len(sides) > 1 else sides[0]

    def _and(self) -> Program:
        sides = [self._binary()]
        while self._tokens.accept("&&"):
            sides.append(self._binary())
        return logical(sides, decisive=False) if len(sides) > 1 else sides[0]

    def _binary(self, level: int = 0) -> Program:
        if level == len(_BINARY):
            return self._unary()
        program = self._binary(level + 1)
        while sign := self._tokens.accept(*_BINARY[level]):
            right = self._binary(level + 1)
            if sign in RELATIONS:
                program = relation(sign, program, right)
            else:
                program = call(ARITHMETIC[sign], program, right)
        return program

    def _unary(self) -> Program:
        if sign := self._tokens.accept("!", "-"):
            self._enter_level()
            program = call(operators.logical_not if sign == "!" else operators.negate, self._unary())
            self._depth -= 1
            return program
        return self._member()

    def _member(self) -> Program:
        program = self._primary()
        while sign := self._tokens.accept(".", "[", ".?", "[?"):
            if sign.startswith("["):
                key = self._expression()
                self._tokens.expect("]")
                take = operators.optional if sign == "[?" else operators.index
                program = call(take, program, key, cost=lambda *_: 0)
            elif sign == ".?":
                program = member(operators.optional, program, self._tokens.name())
            else:
                program = self._field_or_method(program)
        return program

    def _field_or_method(self, target: Program) -> Program:
        name = self._tokens.name()
        if not self._tokens.accept("("):
            return member(operators.index, target, name)
        if name in MACROS:
            return self._macro(name, target)
        if name not in METHODS:
            raise Unsupported(f"function {quoted(name)}")
        arguments = self._list_until(")")
        count, method = METHODS[name]
        if len(arguments) != count:
            raise Unsupported(f"{name}() with {len(arguments)} arguments")
        return call(method, target, *arguments, cost=COSTS.get(name))

    def _macro(self, name: str, target: Program) -> Program:
        if self._macro_depth == MAX_NESTING:
            raise Unsupported("macros within macros within macros")
        item_name = self._tokens.name()
        self._tokens.expect(",")
        self._macro_depth += 1
        body = self._expression()
        self._macro_depth -= 1
        self._tokens.expect(")")

        def run(scope: Scope) -> Result:
            scope.meter.spend()
            items = items_of(target.run(scope))
            return MACROS[name](items, lambda item: body.run(scope.with_variable(item_name, item)))

        return Program.of(run, target, body)

    def _list_until(self, end: str) -> list[Program]:
        items: list[Program] = []
        while not self._tokens.accept(end):
            items.append(self._expression())
            if not self._tokens.accept(","):
                self._tokens.expect(end)
                break
        return items

    def _primary(self) -> Program:
        kind, text = self._tokens.next()
        if kind == "text":
            return constant(unquote(text))
        if kind == "int":
            return constant(parse_integer(text))
        if kind == "double":
            return constant(parse_double(text))
        if text == "(":
            program = self._expression()
            self._tokens.expect(")")
            return program
        if text == "[":
            return list_of(self._list_until("]"))
        if kind == "name":
            return self._identifier(text)
        raise Unsupported(quoted(text) if text else "it ends too early")

    def _identifier(self, name: str) -> Program:
        if name in ("true", "false"):
            return constant(name == "true")
        if name == "cel" and self._tokens.accept("."):
            return self._bind()
        if self._tokens.accept("("):
            return self._has() if name == "has" else self._call(name)
        return variable(name)

    def _call(self, name: str) -> Program:
        arguments = self._list_until(")")
        if name not in FUNCTIONS or len(arguments) != 1:
            raise Unsupported(f"function {quoted(name)}")
        return call(FUNCTIONS[name], arguments[0])

    def _bind(self) -> Program:
        if self._tokens.name() != "bind":
            raise Unsupported("a function of cel other than bind")
        self._tokens.expect("(")
        name = self._tokens.name()
        self._tokens.expect(",")
        value = self._expression()
        self._tokens.expect(",")
        body = self._expression()
        self._tokens.expect(")")

        def run(scope: Scope) -> Result:
            scope.meter.spend()
            return body.run(scope.with_variable(name, value.run(scope)))

        return Program.of(run, value, body)

    def _has(self) -> Program:
        target = self._primary()
        name = ""
        while sign := self._tokens.accept(".", "["):
            if name:
                target = member(operators.index, target, name)
                name = ""
            if sign == "[":
                target = call(operators.index, target, self._expression(), cost=lambda *_: 0)
                self._tokens.expect("]")
            else:
                name = self._tokens.name()
        self._tokens.expect(")")
        if not name:
            raise Unsupported("has() of an expression that is not a field")
        return member(operators.has, target, name)
