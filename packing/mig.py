"""Replay of MIG instances that are made on demand, over GPUs of one geometry.

A GPU is the set of its memory slices that are taken, as a bit mask; an instance occupies a window of slices
that starts where the geometry allows. There are at most 256 masks, so what a policy thinks of putting a
profile on a GPU is a table over masks, and the best start follows from it.

- ``best-fit``: the fullest GPU that has room, at the start that the fewest other windows need.
- ``mfi``: the smallest rise of the slices in windows that would still fit by size but are hit (Zambianco et
  al., "An Online Fragmentation-Aware GPU Scheduler for Multi-Tenant MIG-based Clouds", arXiv 2511.18906).
- ``fgd``: the smallest rise of the expected free slices that the next instance cannot use.
- ``inventory``: the instances that legal placements still allow (slots), each at the price x_t g_t / Cap_t.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, milp

from packing.catalogue import Geometry

Doubles = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]
POLICIES = ("inventory", "fgd", "best-fit", "mfi")


@dataclass(frozen=True)
class Windows:
    """The profiles of a geometry as masks: ``starts[t]`` are the windows of profile t, all masks have
    ``slices`` bits."""

    slices: int
    starts: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, geometry: Geometry, compute: tuple[int, ...]) -> Windows:
        """The windows of the profiles with these compute slices, each in its smallest size."""
        sized = [
            min((p for p in geometry.placements if p.compute == c), key=lambda p: p.size) for c in compute
        ]
        starts = tuple(tuple(((1 << p.size) - 1) << start for start in p.starts) for p in sized)
        return cls(geometry.memory_slices, starts)

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
        """Most instances of profile t that can still be put on a GPU with this mask, (T, 2^slices)."""
        return np.array(
            [[_most(mask, windows) for mask in range(1 << self.slices)] for windows in self.starts]
        )

    @cached_property
    def blocked(self) -> Doubles:
        """MFI's measure by mask: slices of every window that is small enough for the free slices, yet hit."""
        totals = np.zeros(1 << self.slices)
        for size, windows in zip(self.sizes, self.starts, strict=True):
            for mask in range(1 << self.slices):
                hit = sum(1 for window in windows if window & mask)
                totals[mask] += size * hit if size <= self.free[mask] else 0
        return totals

    def patterns(self) -> Longs:
        """Every maximal multiset of profiles that one GPU holds, (P, T)."""
        found = _fillings(self.starts, 0)
        return np.array(sorted(p for p in found if not any(_within(p, q) for q in found if q != p)))


def _within(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))


@cache
def _most(mask: int, windows: tuple[int, ...]) -> int:
    return max((1 + _most(mask | window, windows) for window in windows if not window & mask), default=0)


def _fillings(starts: tuple[tuple[int, ...], ...], mask: int) -> set[tuple[int, ...]]:
    found = {(0,) * len(starts)}
    for t, windows in enumerate(starts):
        for window in windows:
            if not window & mask and window > mask:  # from the lowest slice up, each set once
                for rest in _fillings(starts, mask | window):
                    found.add(tuple(count + (i == t) for i, count in enumerate(rest)))
    return found


@dataclass(frozen=True)
class ProfileMix:
    """Frequencies (T,) of instances by profile, and the GPUs they come to."""

    name: str
    windows: Windows
    compute: tuple[int, ...]
    frequency: Doubles
    gpus: int = 100

    @property
    def axes(self) -> Doubles:
        """Memory slices that an instance takes, as part of the GPU, (T, 1)."""
        return (self.windows.sizes / self.windows.slices)[:, None]

    def host(self, policy: str) -> Instances:
        """The GPUs, empty, under this policy, which knows the mix."""
        return Instances(self, policy)

    def bound(self, counts: Longs) -> float:
        """Most GPU, in GPUs, that any packing of these instances (T,) allocates: an integer program,
        exact."""
        patterns = self.windows.patterns()
        number, kinds = patterns.shape
        gain = np.concatenate([np.zeros(number), -self.axes[:, 0]])
        held = np.hstack([-patterns.T, np.eye(kinds)])
        gpus = np.concatenate([np.ones(number), np.zeros(kinds)])
        constraints = [LinearConstraint(held, ub=0.0), LinearConstraint(gpus[None], ub=float(self.gpus))]
        upper = np.concatenate([np.full(number, self.gpus), counts])
        whole = np.ones(gain.size, np.int64)
        solution = milp(gain, constraints=constraints, integrality=whole, bounds=Bounds(0, upper))
        return -float(gain @ np.asarray(solution.x))


class Instances:
    """GPUs of one geometry under a policy. Ties go to the first GPU, then to the start that blocks least."""

    def __init__(self, mix: ProfileMix, policy: str) -> None:
        if policy not in POLICIES:
            raise ValueError(f"{policy} knows no MIG placements; {', '.join(POLICIES)} do")
        self._windows, self._policy = mix.windows, policy
        self._masks = np.zeros(mix.gpus, np.int64)
        self._frequency = mix.frequency
        self._gpu = np.array(mix.compute) / 7
        usable = self._windows.slots * self._windows.sizes[:, None]
        self._wasted = mix.frequency @ (self._windows.free - usable)

    def place(self, kind: int) -> tuple[int, int] | None:
        """The GPU and window taken, ``None`` if no GPU has a legal place."""
        rise, window = self._table(kind)
        costs = rise[self._masks]
        gpu = int(costs.argmin())
        if not np.isfinite(costs[gpu]):
            return None
        taken = int(window[self._masks[gpu]])
        self._masks[gpu] |= taken
        return gpu, taken

    def leave(self, held: object) -> None:
        """Give the window back."""
        assert isinstance(held, tuple)
        gpu, window = held
        self._masks[gpu] &= ~window

    def _table(self, kind: int) -> tuple[Doubles, Longs]:
        """Cost and best window by mask for one profile; infinite where no window is free."""
        masks = np.arange(1 << self._windows.slices)
        value = self._value()
        best, window = np.full(masks.size, np.inf), np.zeros(masks.size, np.int64)
        for start in self._windows.starts[kind]:
            fits = masks & start == 0
            cost = np.where(fits, value[masks | start] - value[masks], np.inf)
            blocking = 1e-6 * (self._windows.blocked[masks | start] - self._windows.blocked[masks])
            cost = np.where(fits, cost + blocking, np.inf)
            window[cost < best] = start
            best = np.minimum(best, cost)
        if self._policy == "best-fit":
            best = best + self._windows.free
        return best, window

    def _value(self) -> Doubles:
        """What a mask costs in itself; placements cost the difference."""
        if self._policy == "best-fit":
            return np.zeros(1 << self._windows.slices)
        if self._policy == "mfi":
            return self._windows.blocked
        if self._policy == "fgd":
            return np.asarray(self._wasted)
        totals = self._windows.slots[:, self._masks].sum(axis=1)
        prices = self._frequency * self._gpu / np.maximum(totals, 1)
        return np.asarray(-(prices @ self._windows.slots))
