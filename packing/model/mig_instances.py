"""MIG instances that are made on demand: which one a share of a GPU becomes, and what room that leaves.

A GPU's memory slices are bits of a mask. An instance takes a window of them that starts where the GPU allows.
What is left is not an amount: free slices that are apart make no large instance. So the room of a GPU is the
size of the largest instance that still finds a window, and a share fits if that is large enough for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

Instances = tuple["Instance", ...]
"""The kinds of instances of a GPU, the smallest first, by memory."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A kind of MIG instance: its profile, what it has, and the windows that it may take, as masks of memory
    slices, the ones to be taken first in front."""

    profile: str
    compute_milli: int
    memory_mib: int
    windows: tuple[int, ...]


def window(start: int, size: int) -> int:
    """The mask of ``size`` slices from ``start``."""
    return ((1 << size) - 1) << start


def every_slice(instances: Instances) -> int:
    """The mask of all slices that any instance may take."""
    mask = 0
    for instance in instances:
        for one in instance.windows:
            mask |= one
    return mask


@lru_cache(maxsize=4096)
def largest_free(instances: Instances, taken: int) -> tuple[int, int]:
    """Compute (milli) and memory (MiB) of the largest instance that finds a window beside ``taken``."""
    for instance in reversed(instances):
        if _free(instance, taken):
            return instance.compute_milli, instance.memory_mib
    return 0, 0


def smallest(
    instances: Instances, taken: int, compute_milli: int, memory_mib: int
) -> tuple[Instance, int] | None:
    """The smallest instance that is large enough and finds a window beside ``taken``, and that window."""
    for instance in instances:
        enough = instance.compute_milli >= compute_milli and instance.memory_mib >= memory_mib
        if enough and (free := _free(instance, taken)):
            return instance, free
    return None


def _free(instance: Instance, taken: int) -> int:
    """The first window that is free, 0 for none."""
    return next((one for one in instance.windows if not one & taken), 0)
