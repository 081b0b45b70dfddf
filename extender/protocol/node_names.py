"""Thousands of node names on their way from a request to its reply.

They remain in the JSON text of the request, where kernels find and select them. Converting them to Python
strings took longer than the rest of an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Self

import numpy as np
import numpy.typing as npt
from pydantic_core import from_json, to_json

from extender.protocol.node_name_kernels import build_table, interleave, look_up, scan
from extender.untrusted.limits import MESSAGE_NAMES

Bytes = npt.NDArray[np.uint8]
_Offsets = npt.NDArray[np.uint32]

_WEIGHTS = np.random.default_rng(1).integers(1, 1 << 32, 256, np.uint32)
"""For the hash of a name. Any random numbers work."""


class NodeNames:
    """Names in order, each a part of a JSON text between two quotes."""

    __slots__ = ("_json", "_lengths", "_starts", "_text")

    def __init__(self, text: bytes, starts: _Offsets, lengths: _Offsets) -> None:
        """``starts`` and ``lengths``: (count,), in bytes of ``text``."""
        self._text, self._starts, self._lengths = text, starts, lengths
        self._json: bytes | None = None

    @classmethod
    def of(cls, names: Iterable[str]) -> Self:
        """Create from these names, which may contain any characters."""
        names = list(names)
        text, lengths = to_json(names), np.fromiter(map(len, names), np.uint32, len(names))
        if len(text) == int(np.add.reduce(lengths)) + 3 * len(names) + 1:  # each character is one byte
            made = cls(text, np.cumsum(lengths + np.uint32(3), dtype=np.uint32) - lengths - 1, lengths)
        else:
            escaped = [to_json(name)[1:-1] for name in names]
            made = cls(b"".join(escaped), *_spans(escaped))
        made._json = text
        return made

    @classmethod
    def at_the_end(cls, message: bytes, start: int) -> Self | None:
        """The names of the array that ends a JSON object; the first one starts at ``start``.

        None if the array may contain anything else, names with escapes, or too many names: then a JSON parser
        is needed.
        """
        limit = min((len(message) - start) // 3, MESSAGE_NAMES) + 1  # each name has two quotes and a comma
        starts, lengths = np.empty((2, limit), np.uint32)
        count = scan(np.frombuffer(message, np.uint8), start, starts, lengths)
        return cls(message, starts[:count], lengths[:count]) if count >= 0 else None

    def __len__(self) -> int:
        return self._starts.size

    def __getitem__(self, index: int) -> str:
        start = int(self._starts[index])
        return str(from_json(b'"%b"' % self._text[start : start + int(self._lengths[index])]))

    def __iter__(self) -> Iterator[str]:
        return iter(from_json(self.json()))

    def where(self, which: npt.NDArray[np.bool_]) -> Self:
        """The names for which ``which`` (count,) is true."""
        return type(self)(self._text, self._starts[which], self._lengths[which])

    def json(self) -> bytes:
        if self._json is None:
            self._json = self.interleave((b'","',), head=b'["', cut=2) + b"]" if len(self) else b"[]"
        return self._json

    def interleave(
        self, texts: tuple[bytes, ...], which: Bytes | None = None, *, head: bytes = b"", cut: int = 0
    ) -> bytes:
        """``head``, then each name, followed by one of up to 256 texts: the one with its index in ``which``
        (count,), or by default the first. The last ``cut`` bytes are omitted."""
        after, starts, lengths = _texts(texts)
        size = len(self) * len(texts[0]) if which is None else int(np.add.reduce(lengths[which]))
        which = np.zeros(len(self), np.uint8) if which is None else which
        out = np.empty(int(np.add.reduce(self._lengths)) + size, np.uint8)
        interleave(*self._spans(), after, starts, lengths, which, out)
        return b"".join((head, out[: out.size - cut].data))

    def _spans(self) -> tuple[Bytes, _Offsets, _Offsets]:
        return np.frombuffer(self._text, np.uint8), self._starts, self._lengths


class NameTable:
    """Looks up the numbers of thousands of names at once."""

    def __init__(self, numbers: Mapping[str, int]) -> None:
        names = NodeNames.of(numbers)
        self._known = names._spans()
        self._numbers = np.fromiter(numbers.values(), np.int64, len(names))
        self._table = np.full(1 << (2 * len(names) + 1).bit_length(), -1, np.int32)
        build_table(*self._known, _WEIGHTS, self._table)
        self._after = np.roll(np.arange(len(names), dtype=np.int32), -1)  # until learned from requests

    def find(self, names: NodeNames) -> npt.NDArray[np.int64]:
        """(len(names),) the number of each name, -1 for unknown ones."""
        found = np.empty(len(names), np.int64)
        index = _WEIGHTS, self._table, self._numbers, self._after
        look_up(*names._spans(), *self._known, *index, found)
        return found


@lru_cache(maxsize=64)
def _texts(texts: tuple[bytes, ...]) -> tuple[Bytes, _Offsets, _Offsets]:
    """The joined texts, their starts and lengths. No text comes from a request, so the cache stays small."""
    return np.frombuffer(b"".join(texts), np.uint8), *_spans(texts)


def _spans(parts: Sequence[bytes]) -> tuple[_Offsets, _Offsets]:
    """(len(parts),) each: the start of each part after joining them, and its length."""
    lengths = np.fromiter(map(len, parts), np.uint32, len(parts))
    return np.cumsum(lengths, dtype=np.uint32) - lengths, lengths


NO_NAMES = NodeNames.of([])
