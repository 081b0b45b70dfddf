"""MIG instances that are created on demand, on GPUs of one geometry.

Each policy has a table of the cost of a profile by the occupancy mask of the GPU (``mig_masks.py``), which
determines the best start.

- ``best-fit``: the fullest GPU with room, at the start that blocks the fewest other windows.
- ``mfi``: the smallest increase of the slices in windows that are blocked although they are small enough for
  the free slices (Zambianco et al., "An Online Fragmentation-Aware GPU Scheduler for Multi-Tenant MIG-based
  Clouds", arXiv 2511.18906).
- ``fgd``: the smallest increase of the expected free slices that the next instance cannot use.
- ``inventory``: priced slots and fill (``mask_tables.py``), a slot of type t at x_t g_t / Cap_t, scaled as in
  ``slots.py`` with a = b = 1, and fill at its face value.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from bench.packing import mask_tables
from bench.packing.mig_masks import MigMasks
from packing.fleet.arrays import Doubles, Longs

POLICIES = ("inventory", "fgd", "best-fit", "mfi")


@dataclass(frozen=True)
class ProfileMix:
    """Frequencies (T,) of instances by profile, and the number of GPUs."""

    name: str
    geometry: MigMasks
    compute: tuple[int, ...]
    frequency: Doubles
    gpus: int = 100

    @property
    def axes(self) -> Doubles:
        """Memory slices of an instance, as a fraction of the GPU, (T, 1)."""
        return (self.geometry.sizes / self.geometry.slices)[:, None]

    @cached_property
    def sizes(self) -> Doubles:
        """GPU of an instance, the mean of its fractions of compute and memory, (T,)."""
        return (np.array(self.compute) / 7 + self.axes[:, 0]) / 2

    @cached_property
    def slots(self) -> Doubles:
        return mask_tables.expected_slots(self.geometry, self.frequency)

    @cached_property
    def fill(self) -> Doubles:
        return mask_tables.fill_by_mask(self.geometry, self.sizes, self.frequency)

    def host(self, policy: str) -> Instances:
        """Empty GPUs under this policy, which knows the mix."""
        return Instances(self, policy)

    def bound(self, counts: Longs) -> float:
        """The most GPU, in GPUs, that any packing of ``counts`` (T,) instances can allocate: an integer
        program."""
        patterns = self.geometry.patterns
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
    """GPUs of one geometry under a policy. Ties are broken by the first GPU, then by the start that blocks
    the least."""

    def __init__(self, mix: ProfileMix, policy: str) -> None:
        if policy not in POLICIES:
            raise ValueError(f"{policy} places no MIG instances; expected {', '.join(POLICIES)}")
        self._mix, self._geometry, self._policy = mix, mix.geometry, policy
        self._masks = np.zeros(mix.gpus, np.int64)
        usable = self._geometry.slots * self._geometry.sizes[:, None]
        self._wasted = mix.frequency @ (self._geometry.free - usable)

    def place(self, kind: int) -> tuple[int, int] | None:
        """The GPU and the window of the new instance, None if no GPU has a free window."""
        rise, window = self._table(kind)
        costs = rise[self._masks]
        gpu = int(costs.argmin())
        if not np.isfinite(costs[gpu]):
            return None
        taken = int(window[self._masks[gpu]])
        self._masks[gpu] |= taken
        return gpu, taken

    def leave(self, held: object) -> None:
        assert isinstance(held, tuple)
        gpu, window = held
        self._masks[gpu] &= ~window

    def _table(self, kind: int) -> tuple[Doubles, Longs]:
        """Cost and best window by mask for one profile; infinite where no window is free."""
        masks = np.arange(1 << self._geometry.slices)
        value, blocked = self._value(), self._geometry.blocked
        best, least = np.full(masks.size, np.inf), np.full(masks.size, np.inf)
        window = np.zeros(masks.size, np.int64)
        for start in self._geometry.starts[kind]:
            after = masks | start
            cost = np.where(masks & start == 0, np.round(value[after] - value, 9), np.inf)
            better = (cost < best) | ((cost == best) & (blocked[after] < least))
            best, least = np.where(better, cost, best), np.where(better, blocked[after], least)
            window[better] = start
        if self._policy == "best-fit":
            best = best + self._geometry.free
        return best, window

    def _value(self) -> Doubles:
        """The value by mask; a placement costs the difference."""
        if self._policy == "best-fit":
            return np.zeros(1 << self._geometry.slices)
        if self._policy == "mfi":
            return self._geometry.blocked
        if self._policy == "fgd":
            return np.asarray(self._wasted)
        slots = self._mix.slots
        totals = slots[:, self._masks].sum(axis=1)
        prices = self._mix.frequency * self._mix.sizes / np.maximum(totals, 1)
        free = self._geometry.free[self._masks].sum() / self._geometry.slices
        scale = free / max(float(prices @ totals), 1e-9)
        return np.asarray(-scale * (prices @ slots) - self._mix.fill)
