"""Splits a large JSON message into its parts, so that only those are parsed that somebody reads.

A parser builds a tree of all values first: 60 MiB of JSON become gigabytes. Here a message costs nothing but
the positions of its members, of which there are at most as many as the caller allows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic_core import from_json

from extender.protocol.json_kernels import MALFORMED, TOO_MANY, split

_BLANK = b" \t\n\r"
_KEYS = 64
"""Members of an envelope: the messages have three or four fields."""


class NotSplit(ValueError):
    """Not a JSON object or list, or one with too many members. The text says which."""


class Value(NamedTuple):
    """A part of a JSON text."""

    text: bytes
    start: int
    end: int

    @property
    def json(self) -> bytes:
        """A copy."""
        return self.text[self.start : self.end]

    @property
    def is_null(self) -> bool:
        return self.text.startswith(b"null", self.start) and self.end == self.start + 4

    def members(self, most: int) -> list[tuple[str, Value]]:
        """The members of an object, at most so many. Raises ``NotSplit``."""
        spans = self._split(b"{", most)
        return [(_key(self.text[a:b]), Value(self.text, c, d)) for a, b, c, d in spans.tolist()]

    def elements(self, most: int) -> list[Value]:
        """The elements of a list, at most so many. Raises ``NotSplit``."""
        return [Value(self.text, start, end) for *_, start, end in self._split(b"[", most).tolist()]

    def count(self, most: int) -> int:
        """How many elements the list has, at most so many. Raises ``NotSplit``."""
        return len(self._split(b"[", most))

    def fields(self) -> dict[str, Value]:
        """The members of an envelope by their keys in lower case: Go takes them in any case. Without those
        that are null. Raises ``NotSplit``."""
        return {key.casefold(): value for key, value in self.members(_KEYS) if not value.is_null}

    def _split(self, begins: bytes, most: int) -> npt.NDArray[np.int64]:
        if not self.text.startswith(begins, self.start):
            raise NotSplit(f"expected {'an object' if begins == b'{' else 'a list'}")
        limit = min(most, (self.end - self.start) // 2 + 1)  # each member has a comma and a letter
        spans, end = np.empty((limit, 4), np.int64), np.empty(1, np.int64)
        count = split(np.frombuffer(self.text, np.uint8), self.start, spans, end)
        if count == TOO_MANY:
            raise NotSplit(f"more than {most} members")
        if count == MALFORMED or end[0] != self.end:
            raise NotSplit("not valid JSON")
        return spans[:count]


def whole(text: bytes) -> Value:
    """All of a text but the blanks around it."""
    start = len(text) - len(text.lstrip(_BLANK))
    return Value(text, start, max(len(text.rstrip(_BLANK)), start))


def _key(text: bytes) -> str:
    try:
        return text.decode() if b"\\" not in text else str(from_json(b'"%b"' % text))
    except ValueError:
        raise NotSplit("a key is not valid JSON") from None
