"""A lower bound on the whole GPUs that some work takes, by a mixed-integer program over groups of nodes.

With x_ct pods of type t on the nodes of group c, which take w_c of their whole GPUs:

    min  sum_c w_c    subject to   sum_c x_ct = d_t,   sum_t s_ctr x_ct <= k_cr for each resource r,
                                   sum_t g_ct x_ct <= b_c + w_c,   0 <= w_c <= h_c,   x_ct <= m_ct

g_ct are the whole GPUs that a pod takes there, a part as its part; b_c are the free parts of GPUs that are
not whole. With one node in each group it is the best that any placement reaches where devices are counted.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from packing.fleet.arrays import Doubles, Longs
from packing.plan.sparse_rows import SparseRows

_TOLERANCE = 1e-3  # sizes are sums of 32-bit floats


class Groups(NamedTuple):
    """Of all nodes of a group: ``whole`` GPUs (C,), free parts ``beside`` them (C,), and ``capacity`` (C, R).
    ``sizes`` (C, T, R) and ``takes`` (C, T) of a pod there, and how many of a type fit at most (``most``,
    (C, T))."""

    whole: Longs
    beside: Doubles
    capacity: Doubles
    sizes: Doubles
    takes: Doubles
    most: Longs


def fewest_whole(groups: Groups, demand: Longs, seconds: float = 5.0) -> int:
    """At least so many whole GPUs go to ``demand`` (T,) pods of each type, whatever goes where. Types that
    fit nowhere are left out. The search ends after ``seconds`` with the bound that it has by then."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # half a second, only for plans and replays

    number = len(groups.whole)
    cells = [(c, t) for c, t in zip(*np.nonzero(groups.most), strict=True) if demand[t]]
    if not cells:
        return 0
    rows = _constraints(groups, demand, cells)
    found = milp(
        np.concatenate([np.ones(number), np.zeros(len(cells))]),
        integrality=np.concatenate([np.zeros(number), np.ones(len(cells))]),
        bounds=Bounds(
            np.zeros(number + len(cells)),
            np.concatenate([groups.whole, [groups.most[cell] for cell in cells]]),
        ),
        constraints=LinearConstraint(rows.matrix(number + len(cells)), rows.low, rows.high),
        options={"time_limit": seconds},
    )
    bound = found.mip_dual_bound
    return 0 if bound is None or not np.isfinite(bound) else max(0, math.ceil(bound - _TOLERANCE))


def _constraints(groups: Groups, demand: Longs, cells: list[tuple[int, int]]) -> SparseRows:
    """Columns: whole GPUs taken by group, then the pods of each cell (group, type)."""
    number, resources = groups.capacity.shape
    found = SparseRows()
    for t in sorted({t for _, t in cells}):
        of_type = [(number + i, 1.0) for i, (_, u) in enumerate(cells) if u == t]
        fitting = min(int(demand[t]), int(groups.most[:, t].sum()))
        found.add(of_type, float(fitting), float(demand[t]))
    for c in sorted({c for c, _ in cells}):
        on_group = [(number + i, t) for i, (d, t) in enumerate(cells) if d == c]
        taken = [(column, float(groups.takes[c, t])) for column, t in on_group if groups.takes[c, t]]
        if taken:
            found.add([*taken, (c, -1.0)], -np.inf, float(groups.beside[c]))
        for r in range(resources):
            used = [(column, float(groups.sizes[c, t, r])) for column, t in on_group if groups.sizes[c, t, r]]
            if used:
                found.add(used, -np.inf, float(groups.capacity[c, r]))
    return found
