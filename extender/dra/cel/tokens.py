"""Splits a CEL expression into tokens, and reads its literals."""

from __future__ import annotations

import math
import re

from extender.dra.cel.evaluation import Unsupported
from extender.untrusted.limits import SELECTOR_TOKENS, quoted

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


class TokenStream:
    """The tokens of one expression, consumed from first to last. All methods raise ``Unsupported``."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._position = 0

    def next(self) -> Token:
        """Consume a token; the last one stays."""
        token = self._tokens[self._position]
        self._position = min(self._position + 1, len(self._tokens) - 1)
        return token

    def accept(self, *signs: str) -> str:
        """Consume the next token if it is one of these signs, and return it; "" otherwise."""
        kind, text = self._tokens[self._position]
        if text in signs and (kind == "sign" or text == "in"):
            self.next()
            return text
        return ""

    def expect(self, sign: str) -> None:
        if not self.accept(sign):
            raise Unsupported(f"{quoted(self._peek())} instead of {sign!r}")

    def name(self) -> str:
        kind, text = self.next()
        if kind != "name":
            raise Unsupported(f"{quoted(text)} instead of a name")
        return text

    def expect_end(self) -> None:
        if self._peek():
            raise Unsupported(f"{quoted(self._peek())} where the expression should end")

    def _peek(self) -> str:
        return self._tokens[self._position][1]


def tokenize(text: str) -> list[Token]:
    """The tokens of an expression; the last one marks its end. Raises ``Unsupported``."""
    tokens, position, end = [], 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise Unsupported(quoted(text[position : position + 10]))
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
