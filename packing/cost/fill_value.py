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

from packing.cost.pattern_lp import Filling, fill_stock
from packing.fleet.arrays import Doubles, Longs

OVERLOAD = 1.01
"""Arrivals in the LP as a multiple of capacity: slightly more than fits, so that the LP has to choose. With
more it counts on the best requests only, but the others come too. On the two-dimensional mixes 1.03 is 0.1
points worse, 1.5 is 0.7 worse, and 0.95 is 0.3 worse. Of the openb traces only multigpu40 and multigpu50
depend on it, and gain up to 0.1 over 1.1."""
_FINEST = 128
_MOST_STATES = 256
"""States of GPUs in the LP; the others, which have the least free GPU in all, are left out."""

Stock = Longs
"""How many GPUs have how much free, (B + 1, B + 1) over bins of compute and memory."""


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


class FillDemand:
    """The shares of a mix on GPUs of one memory size, which ask for ``parts`` of one GPU. ``frequency`` is
    that of the requests; a request of k parts brings k of them. A remainder of a GPU with less than
    ``minimum_milli`` of compute or memory has no value."""

    def __init__(
        self, parts: Sequence[Part], frequency: Sequence[float], bins: int, minimum_milli: int = 0
    ) -> None:
        self.bins = bins
        self._sizes, self._values, self._arrivals = _by_size(parts, frequency, bins)
        self._per_arrival = float(self._arrivals @ self._values)
        self._least = math.ceil(minimum_milli * bins / 1000)

    def on_empty_gpus(self) -> tuple[Doubles, list[tuple[Part, float]]]:
        """phi as a table (bins + 1, bins + 1) over free compute and memory, in GPUs, if GPUs are cut ideally;
        and the combinations of two parts or more that the LP cuts, with their frequency."""
        if not self._sizes.size:
            return self._no_value(), []
        found = self._fill(np.full((1, 2), self.bins), np.ones(1))
        return self._usable(found.table), self._combinations(found)

    def on_stock(self, stock: Stock) -> Doubles:
        """phi for GPUs that are in these states now. The demand is what would fill what is free."""
        states = np.argwhere(stock)
        numbers = stock[tuple(states.T)].astype(np.float64)
        if len(states) > _MOST_STATES:
            kept = np.sort(np.argsort(-numbers * states.mean(axis=1), kind="stable")[:_MOST_STATES])
            states, numbers = states[kept], numbers[kept]
        if not (self._sizes.size and states.any()):
            return self._no_value()
        return self._usable(self._fill(states, numbers).table)

    def _fill(self, states: Longs, numbers: Doubles) -> Filling:
        free = float(numbers @ states.mean(axis=1)) / self.bins
        demand = OVERLOAD * free * self._arrivals / self._per_arrival
        return fill_stock(self._sizes, self._values, demand, self.bins, states, numbers)

    def _combinations(self, found: Filling) -> list[tuple[Part, float]]:
        combined = []
        for pattern, used in zip(found.patterns, found.used, strict=True):
            if used > 1e-6 and pattern.sum() > 1:
                compute, memory = (pattern @ self._sizes * 1000 / self.bins).tolist()
                combined.append((Part(compute, memory), float(used) * self._per_arrival / OVERLOAD))
        return combined

    def _usable(self, table: Doubles) -> Doubles:
        table[: self._least], table[:, : self._least] = 0.0, 0.0
        return table

    def _no_value(self) -> Doubles:
        return np.zeros((self.bins + 1, self.bins + 1))


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
