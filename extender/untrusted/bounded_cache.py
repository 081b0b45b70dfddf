"""Caches that are bounded by the size of their entries, not only by their number.

The entries are derived from untrusted texts, so a bound on their number is not enough: 1,000 pods may have
250 MiB.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from functools import wraps
from typing import Generic, ParamSpec, TypeVar

from extender.untrusted.limits import CACHE

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
P = ParamSpec("P")
R = TypeVar("R")


class BoundedMap(Generic[K, V]):
    """The newest entries: at most ``entries`` of them, with a total size of at most ``size``.

    An entry larger than a sixteenth of ``size`` is not kept, so that it cannot evict all others.
    """

    def __init__(self, entries: int, size: int = CACHE) -> None:
        self._max_entries, self._max_size, self._size = entries, size, 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, key: K, value: V, size: int) -> None:
        """Replace the value of the key. It becomes the newest entry, and counts with this size."""
        self.pop(key)
        if size > self._max_size // 16:
            return
        self._entries[key] = value, size
        self._size += size
        while len(self._entries) > self._max_entries or self._size > self._max_size:
            _, (_, evicted) = self._entries.popitem(last=False)
            self._size -= evicted

    def get(self, key: K) -> V | None:
        """The value of the key, None for an unknown key."""
        entry = self._entries.get(key)
        return entry[0] if entry else None

    def pop(self, key: K) -> None:
        if (entry := self._entries.pop(key, None)) is not None:
            self._size -= entry[1]

    def values(self) -> Iterator[V]:
        return iter([value for value, _ in self._entries.values()])


def bounded_cache(
    entries: int, weigh: Callable[P, int], size: int = CACHE
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Cache results by positional arguments. ``weigh`` returns the size of the arguments of a call."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        results: BoundedMap[tuple[object, ...], R] = BoundedMap(entries, size)

        @wraps(function)
        def cached(*args: P.args, **kwargs: P.kwargs) -> R:
            result = results.get(args)
            if result is None:
                result = function(*args, **kwargs)
                results.put(args, result, weigh(*args, **kwargs))
            return result

        return cached

    return decorate
