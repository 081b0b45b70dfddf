"""Slots and fill of a GPU in MIG mode, by its occupancy mask.

*Fill* is that of ``packing.cost.fill_tables``, with sets of windows as patterns:

    phi(mask) = max over sets of free windows of sum_t n_t w_t,

with n_t windows of profile t in the set, and w_t its worth in the pattern LP.

*Slots* are the expected number after a fraction ``LEAVING`` of the instances has ended: a GPU with one small
instance will soon be the empty GPU that the largest profile needs, a GPU with seven will not. The instances
behind a mask are estimated from the mix: the weight of each layout is proportional to the product of the
frequencies of its profiles.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.packing.mig_masks import MigMasks
from bench.packing.pattern_bounds import worth_by_patterns
from packing.cost.fill_tables import OVERLOAD
from packing.fleet.arrays import Doubles

LEAVING = 0.1
"""Tuned on arrivals with departures (four mixes, three loads, 40 seeds): 0.05 to 0.15 differ by less than
0.01 points, 0 costs 0.13. Fills without departures do not change."""


def expected_slots(geometry: MigMasks, frequency: Doubles) -> Doubles:
    """Expected slots by profile and mask (T, M) once each instance has ended with probability ``LEAVING``.
    ``frequency`` (T,) is that of the profiles. Masks of no layout of these profiles keep their present
    slots."""
    slots = geometry.slots.astype(np.float64)
    total, weight = np.zeros_like(slots), np.zeros(slots.shape[1])
    for layout in geometry.layouts():
        mask = sum(window for _, window in layout)
        probability = float(np.prod([frequency[t] for t, _ in layout]))
        total[:, mask] += probability * _thinned(slots, mask, [window for _, window in layout])
        weight[mask] += probability
    known = weight > 0
    slots[:, known] = total[:, known] / weight[known]
    return slots


def _thinned(slots: Doubles, mask: int, leaving: Sequence[int]) -> Doubles:
    """Mean slots (T,) of a mask over all subsets of these windows that may have been released."""
    if not leaving:
        return slots[:, mask]
    first, rest = leaving[0], leaving[1:]
    stays, left = _thinned(slots, mask, rest), _thinned(slots, mask & ~first, rest)
    return (1 - LEAVING) * stays + LEAVING * left


def fill_by_mask(geometry: MigMasks, values: Doubles, frequency: Doubles) -> Doubles:
    """phi by mask (M,), in GPUs. ``values`` (T,) are GPUs per instance."""
    demand = OVERLOAD * frequency / (frequency @ values)
    worth, _ = worth_by_patterns(geometry.patterns, values, demand)
    return best_fill(geometry, worth)


def best_fill(geometry: MigMasks, worth: Doubles) -> Doubles:
    """By mask (M,), the maximum ``worth`` (T,) of instances in its free slices."""
    table = np.zeros(1 << geometry.slices)
    for mask in reversed(range(table.size)):
        for value, starts in zip(worth, geometry.starts, strict=True):
            for window in starts:
                if not window & mask:
                    table[mask] = max(table[mask], value + table[mask | window])
    return table
