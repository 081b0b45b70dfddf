"""MIG instances on demand: the instance for a share of a GPU, and the largest one still possible after it.

A GPU's memory slices are bits of a mask. An instance takes a window of them at one of the positions that the
GPU allows. Separate free slices cannot form one large instance, so the free part of a GPU is the size of the
largest instance that still has a free window, and a share fits if that is large enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import or_

Instances = tuple["Instance", ...]
"""The kinds of instances of a GPU, in ascending order of memory."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A kind of MIG instance: its profile and size, and its possible windows, as masks of memory slices, in
    the order in which they are tried."""

    profile: str
    compute_milli: int
    memory_mib: int
    windows: tuple[int, ...]


def window(start: int, size: int) -> int:
    """The mask of ``size`` slices from ``start``."""
    return ((1 << size) - 1) << start


def every_slice(instances: Instances) -> int:
    """The mask of all slices that any instance may take."""
    return reduce(or_, (mask for instance in instances for mask in instance.windows), 0)


@lru_cache(maxsize=4096)
def largest_free(instances: Instances, taken: int) -> tuple[int, int]:
    """Compute (milli) and memory (MiB) of the largest instance with a window outside ``taken``; (0, 0) for
    none."""
    for instance in reversed(instances):
        if _free(instance, taken):
            return instance.compute_milli, instance.memory_mib
    return 0, 0


def smallest(
    instances: Instances, taken: int, compute_milli: int, memory_mib: int
) -> tuple[Instance, int] | None:
    """The smallest sufficiently large instance with a window outside ``taken``, and that window; None if
    there is none."""
    for instance in instances:
        enough = instance.compute_milli >= compute_milli and instance.memory_mib >= memory_mib
        if enough and (free := _free(instance, taken)):
            return instance, free
    return None


def _free(instance: Instance, taken: int) -> int:
    """The first free window, 0 if there is none."""
    return next((mask for mask in instance.windows if not mask & taken), 0)
