"""A lower bound on the nodes that hold some work, by a mixed-integer program over classes of equal nodes.

With y_c kept nodes of class c and x_ct pods of type t on them:

    min  sum_c y_c    subject to   sum_c x_ct >= d_t,   sum_t s_ctr x_ct <= k_cr y_c   for each resource r,
                                   x_ct <= m_ct y_c,    f_c <= y_c <= n_c

The nodes of a class share what they have, and x need not be whole, so no packing needs fewer nodes. m_ct, how
many pods of a type alone fit on one node, keeps the bound from filling nodes with parts of large pods.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from packing.fleet.arrays import Doubles, Longs
from packing.plan.sparse_rows import SparseRows

_TOLERANCE = 1e-6


class Classes(NamedTuple):
    """``nodes`` (C,) of each class, of which so many are ``kept`` (C,) anyway; ``counts`` (C,) whether a node
    of the class counts (1) or is there in any case (0). ``capacity`` (C, R) of one node, ``sizes`` (C, T, R)
    of a pod there, and how many of a type alone fit on one (``most``, (C, T))."""

    nodes: Longs
    kept: Longs
    counts: Longs
    capacity: Doubles
    sizes: Doubles
    most: Longs


def fewest_nodes(classes: Classes, demand: Longs, seconds: float = 5.0) -> int:
    """At least so many nodes that count hold ``demand`` (T,) pods of each type, whatever goes where. Types
    that fit nowhere are left out. The search ends after ``seconds`` with the bound that it has by then."""
    kept = int((classes.kept * classes.counts).sum())
    cells = [(c, t) for c, t in zip(*np.nonzero(classes.most), strict=True) if demand[t]]
    if not cells:
        return kept
    bound = _solve(classes, demand, cells, seconds)
    return max(kept, math.ceil(bound - _TOLERANCE))


def _solve(classes: Classes, demand: Longs, cells: list[tuple[int, int]], seconds: float) -> float:
    from scipy.optimize import Bounds, LinearConstraint, milp  # half a second, only for plans

    kinds = len(classes.nodes)
    of = _constraints(classes, demand, cells)
    found = milp(
        np.concatenate([classes.counts, np.zeros(len(cells))]),
        integrality=np.concatenate([np.ones(kinds), np.zeros(len(cells))]),
        bounds=Bounds(
            np.concatenate([classes.kept, np.zeros(len(cells))]),
            np.concatenate([classes.nodes, np.full(len(cells), np.inf)]),
        ),
        constraints=LinearConstraint(of.matrix(kinds + len(cells)), of.low, of.high),
        options={"time_limit": seconds},
    )
    if found.status == 2:  # more is asked for than fits anywhere: then no node can go
        return float((classes.nodes * classes.counts).sum())
    bound = found.mip_dual_bound
    return 0.0 if bound is None or not np.isfinite(bound) else float(bound)


def _constraints(classes: Classes, demand: Longs, cells: list[tuple[int, int]]) -> SparseRows:
    """Columns: kept nodes by class, then the pods of each cell (class, type)."""
    kinds, resources = classes.capacity.shape
    found = SparseRows()
    for t in {t for _, t in cells}:
        of_type = [(kinds + i, 1.0) for i, (_, u) in enumerate(cells) if u == t]
        found.add(of_type, float(demand[t]), np.inf)
    for c in {c for c, _ in cells}:
        on_class = [(kinds + i, t) for i, (d, t) in enumerate(cells) if d == c]
        for r in range(resources):
            used = [(column, float(classes.sizes[c, t, r])) for column, t in on_class]
            if any(size for _, size in used):
                found.add([*used, (c, -float(classes.capacity[c, r]))], -np.inf, 0.0)
        for column, t in on_class:
            found.add([(column, 1.0), (c, -float(classes.most[c, t]))], -np.inf, 0.0)
    return found
