"""Maps and caches that are bounded by the size of what they keep, not only by the number of entries.

What they keep was written by others, so a bound on entries alone is none: 1,000 pods may have 250 MiB. What
belongs to an object of the cluster is best kept with it: then it goes when the object goes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from copy import copy
from functools import wraps
from typing import Concatenate, Generic, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, ref

from extender.untrusted.limits import CACHE

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


class WeakInterner(Generic[K]):
    """The first of equal objects stands for all of them, as long as anybody has it."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[K, ref[K]] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, one: K) -> K | None:
        """The object that stands for this one, None if none does."""
        known = self._known.get(one)
        return known() if known is not None else None

    def add(self, one: K) -> K:
        """Let this object stand for those that equal it."""
        self._known[one] = ref(one)
        return one


def cached_with_owner(
    weigh: Callable[P, int], size: int = CACHE
) -> Callable[[Callable[Concatenate[K, P], R]], Callable[Concatenate[K, P], R]]:
    """A cache of what a function makes of its first argument, kept as long as anybody has one equal to it.

    For each first argument it keeps results of ``size`` together: ``weigh`` gives the size of the other
    arguments. A ``ValueError`` is a result, too. A result must not refer to the first argument.
    """

    def decorate(function: Callable[Concatenate[K, P], R]) -> Callable[Concatenate[K, P], R]:
        owners: WeakKeyDictionary[K, BoundedMap[tuple[object, ...], R | ValueError]] = WeakKeyDictionary()

        @wraps(function)
        def cached(owner: K, *args: P.args, **kwargs: P.kwargs) -> R:
            kept = owners.get(owner)
            if kept is None:
                kept = owners[owner] = BoundedMap(size, size)
            found = kept.get(args)
            if found is None:
                found = _made(function, owner, *args, **kwargs)
                kept.put(args, found, weigh(*args, **kwargs))
            if isinstance(found, ValueError):
                raise copy(found)
            return found

        return cached  # type: ignore[return-value]  # the first argument is positional

    return decorate


def _made(
    function: Callable[Concatenate[K, P], R], owner: K, *args: P.args, **kwargs: P.kwargs
) -> R | ValueError:
    try:
        return function(owner, *args, **kwargs)
    except ValueError as error:
        return copy(error)  # without its traceback, whose frames refer to the owner
