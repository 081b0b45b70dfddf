"""From text to a step: recursive descent over the grammar of CEL's language definition."""

from __future__ import annotations

import re

from extender.dra.cel import operators
from extender.dra.cel.functions import FUNCTIONS, METHODS
from extender.dra.cel.macros import DEEPEST, MACROS, items
from extender.dra.cel.operators import ARITHMETIC, RELATIONS, applied, binary, constant, logical
from extender.dra.cel.terms import Names, NotUnderstood, Result, Step, fail

_TOKEN = re.compile(
    r"""\s*(?:(?://[^\n]*\n?)|
    (?P<text>[rR]?(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))|
    (?P<double>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)|(?P<int>0x[0-9a-fA-F]+|\d+)|
    (?P<name>[A-Za-z_]\w*)|(?P<sign>&&|\|\||[=!<>]=|\.\?|\[\?|[-+*/%!<>?:.,()\[\]{}]))""",
    re.VERBOSE | re.ASCII,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'", "`": "`", "?": "?"}


class Parser:
    """Of one expression. All of it raises ``NotUnderstood``."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._macros = 0  # that we are within

    def whole(self) -> Step:
        """The step for all of the text."""
        step = self._choice()
        if self._peek() != "":
            raise NotUnderstood(f"{self._peek()!r} where the expression should end")
        return step

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
            raise NotUnderstood(f"{self._peek()!r} instead of {sign!r}")

    def _choice(self) -> Step:
        condition = self._any()
        if not self._takes("?"):
            return condition
        yes = self._any()
        self._expect(":")
        return operators.choice(condition, yes, self._choice())

    def _any(self) -> Step:
        step = self._all()
        while self._takes("||"):
            step = logical(step, self._all(), decides=True)
        return step

    def _all(self) -> Step:
        step = self._relation()
        while self._takes("&&"):
            step = logical(step, self._relation(), decides=False)
        return step

    def _relation(self) -> Step:
        step = self._sum()
        while sign := self._takes("==", "!=", "<", "<=", ">", ">=", "in"):
            step = binary(RELATIONS[sign], step, self._sum())
        return step

    def _sum(self) -> Step:
        step = self._product()
        while sign := self._takes("+", "-"):
            step = binary(ARITHMETIC[sign], step, self._product())
        return step

    def _product(self) -> Step:
        step = self._unary()
        while sign := self._takes("*", "/", "%"):
            step = binary(ARITHMETIC[sign], step, self._unary())
        return step

    def _unary(self) -> Step:
        if self._takes("!"):
            return applied(operators.negation, self._unary())
        if self._takes("-"):
            return applied(operators.negative, self._unary())
        return self._member()

    def _member(self) -> Step:
        step = self._primary()
        while sign := self._takes(".", "[", ".?", "[?"):
            if sign.startswith("["):
                key = self._choice()
                self._expect("]")
                step = binary(operators.optional if sign == "[?" else operators.index, step, key)
            elif sign == ".?":
                step = binary(operators.optional, step, constant(self._name()))
            else:
                step = self._field_or_method(step)
        return step

    def _field_or_method(self, target: Step) -> Step:
        name = self._name()
        if not self._takes("("):
            return binary(operators.index, target, constant(name))
        if name in MACROS:
            return self._macro(name, target)
        if name not in METHODS:
            raise NotUnderstood(f"function {name!r}")
        arguments = self._until(")")
        count, method = METHODS[name]
        if len(arguments) != count:
            raise NotUnderstood(f"{name}() with {len(arguments)} arguments")
        return lambda names: method(target(names), *[argument(names) for argument in arguments])

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
            return MACROS[name](items(target(names)), lambda item: of_item({**names, variable: item}))

        return run

    def _name(self) -> str:
        kind, text = self._next()
        if kind != "name":
            raise NotUnderstood(f"{text!r} instead of a name")
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
            return constant(int(text, 0) if text[:2] == "0x" else int(text))
        if kind == "double":
            return constant(float(text))
        if text == "(":
            step = self._choice()
            self._expect(")")
            return step
        if text == "[":
            items = self._until("]")
            return lambda names: [item(names) for item in items]
        if kind == "name":
            return self._named(text)
        raise NotUnderstood(f"{text!r}" if text else "it ends too early")

    def _named(self, name: str) -> Step:
        if name in ("true", "false"):
            return constant(name == "true")
        if name == "cel" and self._takes("."):
            return self._bind()
        if self._takes("("):
            return self._present() if name == "has" else self._call(name)
        return lambda names: names[name] if name in names else fail(f"{name} is not known")

    def _call(self, name: str) -> Step:
        arguments = self._until(")")
        if name not in FUNCTIONS or len(arguments) != 1:
            raise NotUnderstood(f"function {name!r}")
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
        return lambda names: body({**names, name: value(names)})

    def _present(self) -> Step:
        target = self._primary()
        name = ""
        while sign := self._takes(".", "["):
            if name:
                target = binary(operators.index, target, constant(name))
                name = ""
            if sign == "[":
                target = binary(operators.index, target, self._choice())
                self._expect("]")
            else:
                name = self._name()
        self._expect(")")
        if not name:
            raise NotUnderstood("has() of what is no field")
        return lambda names: operators.has(target(names), name)


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise NotUnderstood(f"{text[at : at + 10]!r}")
        if match.lastgroup:
            tokens.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return [*tokens, ("end", "")]


def _unquoted(text: str) -> str:
    if text[0] in "rR":
        return text[2:-1]
    pieces = re.split(r"\\(.)", text[1:-1])
    if any(escape not in _ESCAPES for escape in pieces[1::2]):
        raise NotUnderstood(f"an escape in {text[:40]}")
    return "".join(_ESCAPES[piece] if index % 2 else piece for index, piece in enumerate(pieces))
