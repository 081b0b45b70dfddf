"""Maps and caches that are bounded by the size of what they keep, not only by the number of entries.

What they keep was written by others, so a bound on entries alone is none: 1,000 pods may have 250 MiB.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from functools import wraps
from typing import Generic, ParamSpec, TypeVar

from extender.limits import CACHE

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
P = ParamSpec("P")
R = TypeVar("R")


class BoundedMap(Generic[K, V]):
    """The entries that were put last: at most ``entries`` of them, and together at most ``size``.

    An entry larger than a sixteenth of ``size`` is not kept, so that one cannot push out all others.
    """

    def __init__(self, entries: int, size: int = CACHE) -> None:
        self._entries, self._most, self._size = entries, size, 0
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value of this size as the newest one, in place of the one before."""
        self.pop(key)
        if size > self._most // 16:
            return
        self._kept[key] = value, size
        self._size += size
        while len(self._kept) > self._entries or self._size > self._most:
            _, (_, gone) = self._kept.popitem(last=False)
            self._size -= gone

    def get(self, key: K) -> V | None:
        """The value of a key, None where there is none."""
        found = self._kept.get(key)
        return found[0] if found else None

    def pop(self, key: K) -> None:
        """Forget a key, if it is there."""
        if (found := self._kept.pop(key, None)) is not None:
            self._size -= found[1]

    def values(self) -> Iterator[V]:
        """The values, oldest first."""
        return iter([value for value, _ in self._kept.values()])


def bounded_cache(
    entries: int, weigh: Callable[P, int], size: int = CACHE
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """``functools.lru_cache`` for positional arguments of different sizes, which ``weigh`` gives."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        kept: BoundedMap[tuple[object, ...], R] = BoundedMap(entries, size)

        @wraps(function)
        def cached(*args: P.args, **kwargs: P.kwargs) -> R:
            found = kept.get(args)
            if found is not None:
                return found
            made = function(*args, **kwargs)
            kept.put(args, made, weigh(*args, **kwargs))
            return made

        return cached

    return decorate
