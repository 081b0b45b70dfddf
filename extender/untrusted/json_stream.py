"""Reads a JSON file value by value: of a list only one item is in memory, whatever the size of the file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, TextIO

from extender.untrusted.yaml_reader import TextError

_CHUNK = 1 << 20
"""Characters that are read at once."""
_SPACE = re.compile(r"[ \t\n\r]*")
_ENDS = frozenset(" \t\n\r,:]}")
"""What may follow a value."""
_DECODER = json.JSONDecoder()


def members(file: TextIO, most: int) -> Iterator[tuple[str, Any, bool]]:
    """The members of the map in a file: name, value and False. Of a list that is a member, or that the file
    holds (its name is ""), each item on its own: name, item and True.

    Raises ``TextError`` if it is no JSON, or if a value or item has more than about ``most`` characters.
    """
    text = _Window(file, most)
    if text.peek() == "[":
        yield from (("", item, True) for item in text.items())
    else:
        for name in text.names():
            if text.peek() == "[":
                yield from ((name, item, True) for item in text.items())
            else:
                yield name, text.value(), False
    if text.peek():
        raise text.error("expected the end")


class _Window:
    """The part of a file that is being read."""

    def __init__(self, file: TextIO, most: int) -> None:
        self._file, self._most = file, most
        self._text, self._at, self._before = "", 0, 0

    def items(self) -> Iterator[Any]:
        """The items of the list that comes next."""
        self._expect("[")
        more = self.peek() != "]" or self._expect("]") != "]"
        while more:
            yield self.value()
            more = self._expect(",]") == ","

    def names(self) -> Iterator[str]:
        """The names in the map that comes next. After each, its value must be taken."""
        self._expect("{")
        more = self.peek() != "}" or self._expect("}") != "}"
        while more:
            if self.peek() != '"':
                raise self.error("expected the name of a member")
            name: str = self.value()
            self._expect(":")
            yield name
            more = self._expect(",}") == ","

    def value(self) -> Any:  # noqa: ANN401 (whatever JSON holds)
        """The value that comes next."""
        self.peek()
        while True:
            problem = "the end of a value is missing"
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
                if self._text[end : end + 1] in _ENDS:  # else a number may go on
                    self._at = end
                    return value
            except RecursionError:
                raise TextError("lists and maps are nested too deep") from None
            except ValueError as error:
                problem = str(getattr(error, "msg", "a number has too many digits"))
            if not self._read():
                raise self.error(problem)

    def peek(self) -> str:
        """The next character that is no space, "" at the end."""
        while True:
            if found := _SPACE.match(self._text, self._at):
                self._at = found.end()
            if self._at < len(self._text) or not self._read():
                return self._text[self._at : self._at + 1]

    def _expect(self, chars: str) -> str:
        char = self.peek()
        if not char or char not in chars:
            raise self.error(f"expected {' or '.join(chars)}")
        self._at += 1
        return char

    def _read(self) -> bool:
        """Read on. False at the end of the file."""
        self._before += self._at
        self._text, self._at = self._text[self._at :], 0
        if len(self._text) > self._most:
            raise self.error(f"a value has more than {self._most} characters")
        chunk = self._file.read(_CHUNK)
        self._text += chunk
        return bool(chunk)

    def error(self, problem: str) -> TextError:
        return TextError(f"{problem} (character {self._before + self._at})")
