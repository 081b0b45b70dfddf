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
    (B + 1, B + 1), the ``patterns`` (P, T) with the number of GPUs ``used`` (P,) that are cut by each, and an
    upper ``bound`` in GPUs on what can be allocated."""

    worth: Doubles
    table: Doubles
    patterns: Longs
    used: Doubles
    bound: float


class SideLimit(NamedTuple):
    """One more resource that all requests consume: ``amount`` (T,) per request, and the ``total``."""

    amount: Doubles
    total: float


def fill_stock(
    sizes: Longs,
    values: Doubles,
    demand: Doubles,
    bins: int,
    states: Longs,
    numbers: Doubles,
    side: SideLimit | None = None,
) -> Filling:
    """Solve the LP by column generation.

    ``sizes`` (T, 2) in bins, ``values`` (T,) in GPUs, ``demand`` (T,) requests; ``states`` (S, 2) free bins
    and ``numbers`` (S,) of GPUs. By weak duality any worth between 0 and the value gives a bound, so the
    bound holds even if column generation ends at the solver's tolerance.
    """
    table = np.zeros((bins + 1, bins + 1))
    pick = np.empty((bins + 1, bins + 1), np.int64)
    at = states[:, 0], states[:, 1]
    worth, per_gpu, price = np.where(demand > 0, values, 0.0), np.zeros(len(states)), 0.0
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
        worth, per_gpu, price, used = _solve(
            list(columns), list(columns.values()), values, demand, numbers, side
        )
    bound = float(numbers @ table[at])
    amount, total = side or (np.zeros_like(values), 0.0)
    bound += price * total + float(demand @ (values - worth - price * amount).clip(0.0))
    patterns = np.array(list(columns.values()), np.int64).reshape(-1, len(sizes))
    return Filling(worth, table, patterns, used, bound)


def worth_by_patterns(patterns: Longs, values: Doubles, demand: Doubles) -> tuple[Doubles, float]:
    """The worth (T,) of each type for GPUs in one state, and the optimum per GPU, over these patterns (P, T);
    maximal patterns are sufficient. ``demand`` (T,) is per GPU."""
    keys = [(0, b"")] * len(patterns)
    worth, per_gpu, _, _ = _solve(keys, list(patterns), values, demand, np.ones(1), None)
    return worth, float(demand @ (values - worth) + per_gpu[0])


def _solve(
    keys: list[tuple[int, bytes]],
    patterns: list[Longs],
    values: Doubles,
    demand: Doubles,
    numbers: Doubles,
    side: SideLimit | None,
) -> tuple[Doubles, Doubles, float, Doubles]:
    """The LP over these columns: the worth of each type, the value of a GPU in each state, the price of the
    side limit, and the use of each column."""
    from scipy.optimize import linprog  # half a second, which commands that learn no mix do not spend

    kinds, columns, states = len(values), len(keys), len(numbers)
    held = np.array(patterns)
    column, kind = np.nonzero(held)
    rows = [np.arange(kinds), kind, kinds + np.array([s for s, _ in keys])]
    cells = [np.arange(kinds), kinds + column, kinds + np.arange(columns)]
    entries = [np.ones(kinds), -held[column, kind].astype(np.float64), np.ones(columns)]
    limits = [np.zeros(kinds), numbers]
    if side is not None:
        rows.append(np.full(kinds, kinds + states))
        cells.append(np.arange(kinds))
        entries.append(side.amount)
        limits.append(np.array([side.total]))
    shape = sum(map(len, limits)), kinds + columns
    matrix = np.zeros(shape)
    matrix[np.concatenate(rows), np.concatenate(cells)] = np.concatenate(entries)
    upper = np.concatenate([demand, np.full(columns, np.inf)])
    bounds = np.column_stack([np.zeros(upper.size), upper])
    gains = np.concatenate([-values, np.zeros(columns)])
    solution = linprog(  # type: ignore[call-overload]  # its stubs know no bounds as an array
        gains, matrix, np.concatenate(limits), bounds=bounds, method="highs"
    )
    duals = -np.asarray(solution.ineqlin.marginals)
    price = float(duals[-1]) if side is not None else 0.0
    worth = duals[:kinds].clip(0.0, values)
    return worth, duals[kinds : kinds + states], max(price, 0.0), np.asarray(solution.x)[kinds:]


def _pattern(pick: Longs, sizes: Longs, i: int, j: int) -> Longs:
    """The multiset of requests behind the table's value at (i, j)."""
    pattern = np.zeros(len(sizes), np.int64)
    while (t := pick[i, j]) >= 0:
        pattern[t] += 1
        i, j = i - sizes[t, 0], j - sizes[t, 1]
    return pattern
