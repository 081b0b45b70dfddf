"""Names of nodes by the thousand, which come with a request and go with its reply.

Hardly one of them is ever looked at: so they stay in the JSON that they came in, and are found, picked and
written there. As Python texts they took longer than all the rest of an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Self

import numpy as np
import numpy.typing as npt
from pydantic_core import from_json, to_json

from extender.protocol import node_name_kernels as kernels

Bytes = npt.NDArray[np.uint8]
_Offsets = npt.NDArray[np.uint32]

_WEIGHTS = np.random.default_rng(1).integers(1, 1 << 32, 256, np.uint32)
"""For the places of names in a table. Any odd-looking numbers do."""


class NodeNames:
    """Names in their order, each what stands between two quotes of a JSON text."""

    __slots__ = ("_lengths", "_starts", "_text")

    def __init__(self, text: bytes, starts: _Offsets, lengths: _Offsets) -> None:
        """``starts`` and ``lengths``: (count,), in bytes of ``text``."""
        self._text, self._starts, self._lengths = text, starts, lengths

    @classmethod
    def of(cls, names: Iterable[str]) -> Self:
        """These names, whatever is in them."""
        names = list(names)
        if plain := cls.at_the_end(to_json({"": names}), len('{"":["')):
            return plain
        written = [to_json(name)[1:-1] for name in names]
        starts, lengths = _spans(written)
        return cls(b"".join(written), starts, lengths)

    @classmethod
    def at_the_end(cls, message: bytes, start: int) -> Self | None:
        """The names of the array that ends a JSON object; the first one starts at ``start``.

        None where there may be anything else, or another way of writing: that is for a parser to read.
        """
        most = (len(message) - start) // 3 + 1  # each has two quotes and a comma
        starts, lengths = np.empty((2, most), np.uint32)
        count = kernels.scan(np.frombuffer(message, np.uint8), start, starts, lengths)
        return cls(message, starts[:count], lengths[:count]) if count >= 0 else None

    def __len__(self) -> int:
        return self._starts.size

    def __getitem__(self, index: int) -> str:
        start = int(self._starts[index])
        name: str = from_json(b'"%b"' % self._text[start : start + int(self._lengths[index])])
        return name

    def __iter__(self) -> Iterator[str]:
        return iter(from_json(self.json()))

    def where(self, which: npt.NDArray[np.bool_]) -> Self:
        """Those of the names that are picked: ``which`` is (count,)."""
        return type(self)(self._text, self._starts[which], self._lengths[which])

    def json(self) -> bytes:
        """All of them as an array."""
        return b'["' + self.woven((b'","',))[:-2] + b"]" if len(self) else b"[]"

    def woven(self, texts: tuple[bytes, ...], which: Bytes | None = None) -> bytes:
        """Each name, and after it the text that ``which`` (count,) has for it out of up to 256; the first one
        after all of them without ``which``."""
        which = np.zeros(len(self), np.uint8) if which is None else which
        after, starts, lengths = _texts(texts)
        out = np.empty(int(self._lengths.sum() + lengths[which].sum()), np.uint8)
        kernels.weave(*self._spans(), after, starts, lengths, which, out)
        return out.tobytes()

    def _spans(self) -> tuple[Bytes, _Offsets, _Offsets]:
        return np.frombuffer(self._text, np.uint8), self._starts, self._lengths


class NameTable:
    """A number for each name, looked up for thousands of names at a time."""

    def __init__(self, numbers: Mapping[str, int]) -> None:
        names = NodeNames.of(numbers)
        self._known = names._spans()
        self._numbers = np.fromiter(numbers.values(), np.int64, len(names))
        self._table = np.full(1 << (2 * len(names) + 1).bit_length(), -1, np.int32)
        kernels.fill(*self._known, _WEIGHTS, self._table)

    def find(self, names: NodeNames) -> npt.NDArray[np.int64]:
        """The number of each name, -1 for one that has none: (len(names),)."""
        found = np.empty(len(names), np.int64)
        kernels.find(*names._spans(), *self._known, _WEIGHTS, self._table, self._numbers, found)
        return found


@lru_cache(maxsize=64)
def _texts(texts: tuple[bytes, ...]) -> tuple[Bytes, _Offsets, _Offsets]:
    """Texts that may follow names. All of them are Stowage's own, so the cache is bounded."""
    return np.frombuffer(b"".join(texts), np.uint8), *_spans(texts)


def _spans(parts: Sequence[bytes]) -> tuple[_Offsets, _Offsets]:
    """Where each part starts once they are joined, and its length: (len(parts),) each."""
    lengths = np.fromiter(map(len, parts), np.uint32, len(parts))
    return np.cumsum(lengths, dtype=np.uint32) - lengths, lengths


NO_NAMES = NodeNames.of([])
