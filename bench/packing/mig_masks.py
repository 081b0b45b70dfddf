"""The profiles of a MIG geometry as bit masks over memory slices.

An instance occupies a window of slices at a start that the geometry allows. The state of a GPU is the mask of
its occupied slices, one of at most 256, so every function of a GPU is a table over masks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from packing.fleet.arrays import Doubles, Longs
from packing.model.gpu_catalog import Geometry, MigPlacement


@dataclass(frozen=True)
class MigMasks:
    """The profiles of a geometry as masks of ``slices`` bits: ``starts[t]`` are the windows of profile t of
    the mix, ``every`` those of all profiles of the geometry."""

    slices: int
    starts: tuple[tuple[int, ...], ...]
    every: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, geometry: Geometry, compute: tuple[int, ...]) -> MigMasks:
        """The windows of the profiles with these compute slices, each in its smallest size."""
        sized = [
            min((p for p in geometry.placements if p.compute == c), key=lambda p: p.size) for c in compute
        ]
        return cls(geometry.memory_slices, _masks(sized), _masks(geometry.placements))

    @cached_property
    def sizes(self) -> Longs:
        """Memory slices of each profile (T,)."""
        return np.array([windows[0].bit_count() for windows in self.starts])

    @cached_property
    def free(self) -> Longs:
        """Free slices by mask (2^slices,)."""
        return np.array([self.slices - mask.bit_count() for mask in range(1 << self.slices)])

    @cached_property
    def slots(self) -> Longs:
        """Maximum number of instances of profile t that still fit on a GPU with this mask, (T, 2^slices)."""
        return np.array(
            [[_most_instances(mask, windows) for mask in range(1 << self.slices)] for windows in self.starts]
        )

    @cached_property
    def blocked(self) -> Doubles:
        """MFI's measure by mask: the slices of every blocked window for which the mask has enough free
        slices. All profiles of the geometry count, because the measure is independent of the demand."""
        totals = np.zeros(1 << self.slices)
        for windows in self.every:
            size = windows[0].bit_count()
            for mask in range(1 << self.slices):
                blocked = sum(1 for window in windows if window & mask)
                totals[mask] += size * blocked if size <= self.free[mask] else 0
        return totals

    @cached_property
    def patterns(self) -> Longs:
        """Every maximal multiset of profiles that one GPU holds, (P, T)."""
        found = _fillings(self.starts, 0)
        return np.array(sorted(p for p in found if not any(_is_within(p, q) for q in found if q != p)))

    def layouts(self, mask: int = 0, first: int = 0) -> Iterator[tuple[tuple[int, int], ...]]:
        """Every set of instances that fits on a GPU in addition to ``mask``, as (profile, window) pairs."""
        yield ()
        flat = [(t, window) for t, windows in enumerate(self.starts) for window in windows]
        for i, (t, window) in enumerate(flat[first:], first):
            if not window & mask:
                for rest in self.layouts(mask | window, i + 1):
                    yield ((t, window), *rest)


def _masks(placements: Iterable[MigPlacement]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(((1 << p.size) - 1) << start for start in p.starts) for p in placements)


def _is_within(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))


@cache
def _most_instances(mask: int, windows: tuple[int, ...]) -> int:
    return max(
        (1 + _most_instances(mask | window, windows) for window in windows if not window & mask), default=0
    )


def _fillings(starts: tuple[tuple[int, ...], ...], mask: int) -> set[tuple[int, ...]]:
    found = {(0,) * len(starts)}
    for t, windows in enumerate(starts):
        for window in windows:
            if not window & mask and window > mask:  # from the lowest slice up, each set once
                for rest in _fillings(starts, mask | window):
                    found.add(tuple(count + (i == t) for i, count in enumerate(rest)))
    return found
