"""How much can still be made of the free part of a GPU: the fill tables of a demand mix.

The pattern LP (``pattern_lp.py``) for a mix that arrives at ``OVERLOAD`` times the capacity says what each
request type is worth as a filler, w_t. A GPU with s free has the value of the best pattern that fits in s:

    phi(s) = max over patterns p that fit in s of sum_t p_t w_t
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from packing.cost.pattern_lp import fill_stock
from packing.fleet.arrays import Doubles, Longs

OVERLOAD = 1.01
"""Arrivals in the LP as a multiple of capacity: slightly more than fits, so that the LP has to choose. With
more it counts on the best requests only, but the others come too. On the two-dimensional mixes 1.03 is 0.1
points worse, 1.5 is 0.7 worse, and 0.95 is 0.3 worse. Of the openb traces only multigpu40 and multigpu50
depend on it, and gain up to 0.1 over 1.1."""
_FINEST = 128


@dataclass(frozen=True, slots=True)
class Part:
    """What a request takes of one GPU: thousandths of its compute and memory, and how many such parts."""

    compute_milli: float
    memory_milli: float
    count: int = 1

    @property
    def gpu(self) -> float:
        """Size of one part in GPUs."""
        return (self.compute_milli + self.memory_milli) / 2000


def grid(parts: Sequence[Part]) -> int:
    """Bins per axis: exact where all sizes share a unit of at least 1/128 GPU, else 100."""
    sizes = [round(size) for part in parts for size in (part.compute_milli, part.memory_milli)]
    unit = math.gcd(1000, *sizes)
    return 1000 // unit if 1000 // unit <= _FINEST else 100


def fill_table(
    parts: Sequence[Part], frequency: Sequence[float], bins: int, minimum_milli: int = 0
) -> npt.NDArray[np.float32]:
    """phi as a table (bins + 1, bins + 1) over free compute and memory, in GPUs.

    A remainder with less than ``minimum_milli`` of compute or memory has no value. ``frequency`` is that of
    the requests; a request of k parts brings k of them. All zero without parts.
    """
    sizes, values, arrivals = _by_size(parts, frequency, bins)
    if not sizes.size:
        return np.zeros((bins + 1, bins + 1), np.float32)
    demand = OVERLOAD * arrivals / (arrivals @ values)
    table = fill_stock(sizes, values, demand, bins, np.full((1, 2), bins), np.ones(1)).table
    least = math.ceil(minimum_milli * bins / 1000)
    table[:least], table[:, :least] = 0.0, 0.0
    return table.astype(np.float32)


def _by_size(parts: Sequence[Part], frequency: Sequence[float], bins: int) -> tuple[Longs, Doubles, Doubles]:
    """Distinct sizes in bins (at least one), their values in GPUs, and how often they come."""
    arrivals: defaultdict[tuple[int, int], float] = defaultdict(float)
    weighed: defaultdict[tuple[int, int], float] = defaultdict(float)
    for part, x in zip(parts, frequency, strict=True):
        size = _bins(part.compute_milli, bins), _bins(part.memory_milli, bins)
        if max(size) <= bins and max(size) > 0:
            arrivals[size] += x * part.count
            weighed[size] += x * part.count * part.gpu
    ordered = sorted(arrivals)
    counts = np.array([arrivals[size] for size in ordered])
    values = np.array([weighed[size] / arrivals[size] for size in ordered])
    return np.array(ordered, np.int64).reshape(-1, 2), values, counts


def _bins(milli: float, bins: int) -> int:
    return max(1, round(milli * bins / 1000)) if milli > 0 else 0
