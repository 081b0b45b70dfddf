"""From text to a step: recursive descent over the grammar of CEL's language definition."""

from __future__ import annotations

import math
import re

from extender.dra.cel import operators
from extender.dra.cel.functions import COSTS, FUNCTIONS, METHODS
from extender.dra.cel.macros import DEEPEST, MACROS, items
from extender.dra.cel.operators import ARITHMETIC, applied, constant, listed, logical, member, related
from extender.dra.cel.terms import Names, NotUnderstood, Result, Step
from extender.untrusted.limits import SELECTOR_DEPTH, SELECTOR_TOKENS, quoted

Token = tuple[str, str]
"""(kind, text)."""

_TOKEN = re.compile(
    r"""\s*(?:(?://[^\n]*\n?)|
    (?P<text>[rR]?(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))|
    (?P<double>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)|(?P<int>0x[0-9a-fA-F]+|\d+)|
    (?P<name>[A-Za-z_]\w*)|(?P<sign>&&|\|\||[=!<>]=|\.\?|\[\?|[-+*/%!<>?:.,()\[\]{}]))""",
    re.VERBOSE | re.ASCII,
)
_LONGEST_NUMBER = 32  # characters of an integer
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'", "`": "`", "?": "?"}


class Parser:
    """Of the ``tokens`` of one expression. All of it raises ``NotUnderstood``."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._macros = 0  # that we are within
        self._depth = 0

    def whole(self) -> Step:
        """The step for all of the text."""
        step = self._choice()
        if self._peek() != "":
            raise NotUnderstood(f"{quoted(self._peek())} where the expression should end")
        return step

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > SELECTOR_DEPTH:
            raise NotUnderstood("nested too deeply")

    def _peek(self) -> str:
        return self._tokens[self._at][1]

    def _next(self) -> tuple[str, str]:
        token = self._tokens[self._at]
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def _takes(self, *signs: str) -> str:
        kind, text = self._tokens[self._at]
        if text in signs and (kind == "sign" or text == "in"):
            self._next()
            return text
        return ""

    def _expect(self, sign: str) -> None:
        if not self._takes(sign):
            raise NotUnderstood(f"{quoted(self._peek())} instead of {sign!r}")

    def _choice(self) -> Step:
        self._deeper()
        step = self._any()
        if self._takes("?"):
            yes = self._any()
            self._expect(":")
            step = operators.choice(step, yes, self._choice())
        self._depth -= 1
        return step

    def _any(self) -> Step:
        sides = [self._all()]
        while self._takes("||"):
            sides.append(self._all())
        return logical(sides, decides=True) if len(sides) > 1 else sides[0]

    def _all(self) -> Step:
        sides = [self._relation()]
        while self._takes("&&"):
            sides.append(self._relation())
        return logical(sides, decides=False) if len(sides) > 1 else sides[0]

    def _relation(self) -> Step:
        step = self._sum()
        while sign := self._takes("==", "!=", "<", "<=", ">", ">=", "in"):
            step = related(sign, step, self._sum())
        return step

    def _sum(self) -> Step:
        step = self._product()
        while sign := self._takes("+", "-"):
            step = applied(ARITHMETIC[sign], step, self._product())
        return step

    def _product(self) -> Step:
        step = self._unary()
        while sign := self._takes("*", "/", "%"):
            step = applied(ARITHMETIC[sign], step, self._unary())
        return step

    def _unary(self) -> Step:
        if sign := self._takes("!", "-"):
            self._deeper()
            step = applied(operators.negation if sign == "!" else operators.negative, self._unary())
            self._depth -= 1
            return step
        return self._member()

    def _member(self) -> Step:
        step = self._primary()
        while sign := self._takes(".", "[", ".?", "[?"):
            if sign.startswith("["):
                key = self._choice()
                self._expect("]")
                take = operators.optional if sign == "[?" else operators.index
                step = applied(take, step, key, cost=operators.nothing)
            elif sign == ".?":
                step = member(operators.optional, step, self._name())
            else:
                step = self._field_or_method(step)
        return step

    def _field_or_method(self, target: Step) -> Step:
        name = self._name()
        if not self._takes("("):
            return member(operators.index, target, name)
        if name in MACROS:
            return self._macro(name, target)
        if name not in METHODS:
            raise NotUnderstood(f"function {quoted(name)}")
        arguments = self._until(")")
        count, method = METHODS[name]
        if len(arguments) != count:
            raise NotUnderstood(f"{name}() with {len(arguments)} arguments")
        return applied(method, target, *arguments, cost=COSTS.get(name))

    def _macro(self, name: str, target: Step) -> Step:
        if self._macros == DEEPEST:
            raise NotUnderstood("macros within macros within macros")
        variable = self._name()
        self._expect(",")
        self._macros += 1
        of_item = self._choice()
        self._macros -= 1
        self._expect(")")

        def run(names: Names) -> Result:
            names.meter.spend()
            found = items(target.run(names))
            return MACROS[name](found, lambda item: of_item.run(names.also(variable, item)))

        return Step.of(run, target, of_item)

    def _name(self) -> str:
        kind, text = self._next()
        if kind != "name":
            raise NotUnderstood(f"{quoted(text)} instead of a name")
        return text

    def _until(self, end: str) -> list[Step]:
        found: list[Step] = []
        while not self._takes(end):
            found.append(self._choice())
            if not self._takes(","):
                self._expect(end)
                break
        return found

    def _primary(self) -> Step:
        kind, text = self._next()
        if kind == "text":
            return constant(_unquoted(text))
        if kind == "int":
            return constant(_integer(text))
        if kind == "double":
            return constant(_double(text))
        if text == "(":
            step = self._choice()
            self._expect(")")
            return step
        if text == "[":
            return listed(self._until("]"))
        if kind == "name":
            return self._named(text)
        raise NotUnderstood(quoted(text) if text else "it ends too early")

    def _named(self, name: str) -> Step:
        if name in ("true", "false"):
            return constant(name == "true")
        if name == "cel" and self._takes("."):
            return self._bind()
        if self._takes("("):
            return self._present() if name == "has" else self._call(name)
        return operators.variable(name)

    def _call(self, name: str) -> Step:
        arguments = self._until(")")
        if name not in FUNCTIONS or len(arguments) != 1:
            raise NotUnderstood(f"function {quoted(name)}")
        return applied(FUNCTIONS[name], arguments[0])

    def _bind(self) -> Step:
        if self._name() != "bind":
            raise NotUnderstood("a function of cel other than bind")
        self._expect("(")
        name = self._name()
        self._expect(",")
        value = self._choice()
        self._expect(",")
        body = self._choice()
        self._expect(")")

        def run(names: Names) -> Result:
            names.meter.spend()
            return body.run(names.also(name, value.run(names)))

        return Step.of(run, value, body)

    def _present(self) -> Step:
        target = self._primary()
        name = ""
        while sign := self._takes(".", "["):
            if name:
                target = member(operators.index, target, name)
                name = ""
            if sign == "[":
                target = applied(operators.index, target, self._choice(), cost=operators.nothing)
                self._expect("]")
            else:
                name = self._name()
        self._expect(")")
        if not name:
            raise NotUnderstood("has() of what is no field")
        return member(operators.has, target, name)


def tokens(text: str) -> list[Token]:
    """The tokens of an expression, the last of which is its end. Raises ``NotUnderstood``."""
    found, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise NotUnderstood(quoted(text[at : at + 10]))
        found.append((match.lastgroup or "", match[match.lastgroup] if match.lastgroup else ""))
        if len(found) > SELECTOR_TOKENS:
            raise NotUnderstood(f"a selector of more than {SELECTOR_TOKENS} words and signs")
        at = match.end()
    return [*(token for token in found if token[0]), ("end", "")]


def _integer(text: str) -> int:
    base = 16 if text[:2] == "0x" else 10
    number = int(text, base) if len(text) <= _LONGEST_NUMBER else 1 << 64
    if number > 1 << 63:  # as it is written before a minus
        raise NotUnderstood("an integer of more than 64 bits")
    return number


def _double(text: str) -> float:
    if math.isinf(number := float(text)):
        raise NotUnderstood("a number that is too large")
    return number


def _unquoted(text: str) -> str:
    if text[0] in "rR":
        return text[2:-1]
    pieces = re.split(r"\\(.)", text[1:-1])
    if any(escape not in _ESCAPES for escape in pieces[1::2]):
        raise NotUnderstood(f"an escape in {quoted(text)}")
    return "".join(_ESCAPES[piece] if index % 2 else piece for index, piece in enumerate(pieces))
