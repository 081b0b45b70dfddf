"""How much can still be made of the free part of a GPU: the pattern LP of the demand mix and its tables.

Filling GPUs is a cutting-stock problem (Gilmore and Gomory, 1961). A pattern is a multiset of requests
that fit one GPU together. For a mix that arrives at ``OVERLOAD`` times the capacity, choose how many GPUs
are cut by each pattern so that most GPU is used:

    max  sum_p (sum_t v_t p_t) y_p    subject to   sum_p p_t y_p <= d_t,   sum_p y_p <= GPUs

v_t is the GPU of one request. The dual pi_t of the first rows is what one more request of type t would add:
it is high for the small requests that fill gaps, and 0 for those that come in plenty. So v_t - pi_t is the
value of type t as a filler, and a GPU with s free has the value of the best pattern that fits in s:

    phi(s) = max over patterns p that fit in s of sum_t p_t (v_t - pi_t)

which is a knapsack table. The same knapsack generates the columns, so any number of sizes is possible. A
request whose dual exceeds its value is worth nothing as a filler, and no pattern counts on it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from packing.cost.knapsack_kernels import knapsack
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
    table, _ = solve_patterns(sizes, values, demand, bins)
    least = math.ceil(minimum_milli * bins / 1000)
    table[:least], table[:, :least] = 0.0, 0.0
    return table.astype(np.float32)


def solve_patterns(sizes: Longs, values: Doubles, demand: Doubles, bins: int) -> tuple[Doubles, float]:
    """The fill table, and the optimum of the LP per GPU: an upper bound for the allocation of any packing.

    ``sizes`` (T, 2) in bins, ``values`` (T,) in GPUs, ``demand`` (T,) requests per GPU. By weak duality any
    worth between 0 and the value gives a bound, so the bound holds even where the generation ends at the
    tolerance of the solver.
    """
    table = np.zeros((bins + 1, bins + 1))
    pick = np.empty((bins + 1, bins + 1), np.int64)
    patterns = [np.eye(len(sizes), dtype=np.int64)[t] * (bins // max(sizes[t])) for t in range(len(sizes))]
    while True:
        worth, per_gpu, _ = price_patterns(np.array(patterns).T, values, demand)
        knapsack(sizes, worth, table, pick)
        pattern = _pattern(pick, sizes)
        known = any(
            (pattern == other).all() for other in patterns
        )  # the gain is below the solver's tolerance
        if known or table[bins, bins] <= per_gpu + 1e-7:
            return table, float(demand @ (values - worth) + table[bins, bins])
        patterns.append(pattern)


def price_patterns(columns: Longs, values: Doubles, demand: Doubles) -> tuple[Doubles, float, float]:
    """The worth v_t - pi_t of each type (T,), the value of one GPU, and the optimum per GPU of the LP over
    these patterns (T, P).

    A pattern may be used in part: the LP has a variable for the requests of each type that are served, at
    most the demand and at most what the patterns hold, and the worth is the dual of the latter. So it is
    never negative, and the patterns of largest content are enough.
    """
    from scipy.optimize import linprog  # half a second, which commands that learn no mix do not spend

    kinds, number = columns.shape
    held = np.hstack([np.eye(kinds), -columns])
    gpus = np.concatenate([np.zeros(kinds), np.ones(number)])
    solution = linprog(
        np.concatenate([-values, np.zeros(number)]),
        A_ub=np.vstack([held, gpus]),
        b_ub=np.append(np.zeros(kinds), 1.0),
        bounds=[*((0.0, most) for most in demand), *[(0.0, None)] * number],
        method="highs",
    )
    duals = -np.asarray(solution.ineqlin.marginals)
    return duals[:-1].clip(0.0, values), float(duals[-1]), float(np.asarray(solution.x)[:kinds] @ values)


def _pattern(pick: Longs, sizes: Longs) -> Longs:
    """The multiset of requests that gives the table's value of an empty GPU."""
    pattern = np.zeros(len(sizes), np.int64)
    i, j = pick.shape[0] - 1, pick.shape[1] - 1
    while (t := pick[i, j]) >= 0:
        pattern[t] += 1
        i, j = i - sizes[t, 0], j - sizes[t, 1]
    return pattern


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
