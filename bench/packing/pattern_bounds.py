"""Upper bounds, in GPUs, on what can be allocated, by the pattern LP of ``packing.cost.fill_tables``."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar

from packing.cost.fill_tables import fill_stock
from packing.fleet.arrays import Doubles, Longs


def bound(
    sizes: Longs,
    values: Doubles,
    demand: Doubles,
    bins: int,
    states: Longs,
    numbers: Doubles,
    amount: Doubles | None = None,
    total: float = 0.0,
) -> float:
    """The optimum of ``fill_stock``, if all requests also share a ``total`` of one more resource, of which
    each consumes its ``amount`` (T,).

    By weak duality any worth between 0 and the value gives a bound, and so does any price of the resource.
    """

    def at_price(price: float) -> float:
        left = values if amount is None else (values - price * amount).clip(0.0)
        found = fill_stock(sizes, left, demand, bins, states, numbers)
        on_gpus = float(numbers @ found.table[states[:, 0], states[:, 1]])
        return on_gpus + float(demand @ (left - found.worth).clip(0.0)) + price * total

    if amount is None or not amount.any():
        return at_price(0.0)
    most = float((values[amount > 0] / amount[amount > 0]).max())
    best = minimize_scalar(at_price, bounds=(0.0, most), method="bounded", options={"xatol": 1e-9 * most})
    return min(at_price(0.0), float(best.fun), at_price(most))


def worth_by_patterns(patterns: Longs, values: Doubles, demand: Doubles) -> tuple[Doubles, float]:
    """The worth (T,) of each type for GPUs in one state, and the optimum per GPU, over these patterns (P, T);
    maximal patterns are sufficient. ``demand`` (T,) is per GPU."""
    from scipy.optimize import linprog

    kinds, columns = len(values), len(patterns)
    served = np.hstack([np.eye(kinds), -patterns.T])
    one_gpu = np.concatenate([np.zeros(kinds), np.ones(columns)])
    upper = np.concatenate([demand, np.full(columns, np.inf)])
    solution = linprog(  # type: ignore[call-overload]  # its stubs know no bounds as an array
        np.concatenate([-values, np.zeros(columns)]),
        np.vstack([served, one_gpu]),
        np.concatenate([np.zeros(kinds), [1.0]]),
        bounds=np.column_stack([np.zeros(upper.size), upper]),
        method="highs",
    )
    duals = -np.asarray(solution.ineqlin.marginals)
    worth = duals[:kinds].clip(0.0, values)
    return worth, float(demand @ (values - worth) + duals[kinds])
