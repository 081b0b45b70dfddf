"""The pattern LP: how much GPU a demand can fill, and the worth of each request type as a filler.

Filling GPUs is a cutting-stock problem (Gilmore and Gomory, 1961). A pattern is a multiset of requests that
fit together into the free part of one GPU. With x_t requests of type t served, and y_ps GPUs in state s cut
by pattern p:

    max  sum_t v_t x_t    subject to   x_t <= d_t,   x_t <= sum_ps p_t y_ps,   sum_p y_ps <= n_s

v_t is the GPU of one request, d_t the demand and n_s the number of GPUs in state s; a state is a free amount
of compute and memory. Patterns may be used fractionally. The duals w_t of the second rows are the worth of a
request as a filler: v_t for rare ones, 0 for abundant ones. The best pattern for a state at these worths is a
knapsack, which generates the columns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from packing.cost.knapsack_kernels import knapsack
from packing.fleet.arrays import Doubles, Longs

_ROUNDS = 200
_TOLERANCE = 1e-7


class Filling(NamedTuple):
    """The ``worth`` (T,) of each type, the best worth by free compute and memory as ``table``
    (B + 1, B + 1), and the ``patterns`` (P, T) with the number of GPUs ``used`` (P,) that are cut by each."""

    worth: Doubles
    table: Doubles
    patterns: Longs
    used: Doubles


def fill_stock(
    sizes: Longs,
    values: Doubles,
    demand: Doubles,
    bins: int,
    states: Longs,
    numbers: Doubles,
) -> Filling:
    """Solve the LP by column generation.

    ``sizes`` (T, 2) in bins, ``values`` (T,) in GPUs, ``demand`` (T,) requests; ``states`` (S, 2) free bins
    and ``numbers`` (S,) of GPUs.
    """
    table = np.zeros((bins + 1, bins + 1))
    pick = np.empty((bins + 1, bins + 1), np.int64)
    at = states[:, 0], states[:, 1]
    worth, per_gpu = np.where(demand > 0, values, 0.0), np.zeros(len(states))
    columns: dict[tuple[int, bytes], Longs] = {}
    used = np.zeros(0)
    for _ in range(_ROUNDS):
        knapsack(sizes, worth, table, pick)
        better = np.flatnonzero(table[at] > per_gpu + _TOLERANCE)
        known = len(columns)
        for s in better.tolist():
            pattern = _pattern(pick, sizes, *states[s])
            columns.setdefault((s, pattern.tobytes()), pattern)
        if len(columns) == known:  # nothing is better, or only by less than the solver's tolerance
            break
        worth, per_gpu, used = _solve(list(columns), list(columns.values()), values, demand, numbers)
    patterns = np.array(list(columns.values()), np.int64).reshape(-1, len(sizes))
    return Filling(worth, table, patterns, used)


def _solve(
    keys: list[tuple[int, bytes]],
    patterns: list[Longs],
    values: Doubles,
    demand: Doubles,
    numbers: Doubles,
) -> tuple[Doubles, Doubles, Doubles]:
    """The LP over these columns: the worth of each type, the value of a GPU in each state, and the use of
    each column."""
    from scipy.optimize import linprog  # half a second, which commands that learn no mix do not spend

    kinds, columns = len(values), len(keys)
    held = np.array(patterns)
    column, kind = np.nonzero(held)
    matrix = np.zeros((kinds + len(numbers), kinds + columns))
    matrix[np.arange(kinds), np.arange(kinds)] = 1.0
    matrix[kind, kinds + column] = -held[column, kind].astype(np.float64)
    matrix[[kinds + s for s, _ in keys], kinds + np.arange(columns)] = 1.0
    upper = np.concatenate([demand, np.full(columns, np.inf)])
    bounds = np.column_stack([np.zeros(upper.size), upper])
    gains = np.concatenate([-values, np.zeros(columns)])
    solution = linprog(  # type: ignore[call-overload]  # its stubs know no bounds as an array
        gains, matrix, np.concatenate([np.zeros(kinds), numbers]), bounds=bounds, method="highs"
    )
    duals = -np.asarray(solution.ineqlin.marginals)
    return duals[:kinds].clip(0.0, values), duals[kinds:], np.asarray(solution.x)[kinds:]


def _pattern(pick: Longs, sizes: Longs, i: int, j: int) -> Longs:
    pattern = np.zeros(len(sizes), np.int64)
    while (t := pick[i, j]) >= 0:
        pattern[t] += 1
        i, j = i - sizes[t, 0], j - sizes[t, 1]
    return pattern
