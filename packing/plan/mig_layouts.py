"""Which MIG layouts serve a demand best: how a GPU can be divided, and which nodes to divide how.

A layout of a GPU is a set of instances whose windows of memory slices do not overlap
(``packing.model.gpu_catalogue.Geometry``). The choice for the nodes of a pool is a mixed-integer program:

    max  sum_r v_r (served_r), and of equal choices  min  sum_gp ((N + 1) pods_g + 1) z_gp
    served_r <= d_r,   served_r >= running_r,   served_r <= sum_gp z_gp c_gpr,   sum_p z_gp = n_g,
    z_gp <= N use_p,   sum_p use_p <= K

z_gp: how many of the N nodes, those of group g (equal today), get layout p; c_gpr: instances of resource r on
such a node; pods_g: pods that restart for it. So a node changes only if that serves more; of equal gains the
fewest pods restart, and then the fewest nodes change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from packing.fleet.arrays import Doubles, Longs
from packing.model.gpu_catalogue import Placement
from packing.model.mig_instances import window

MOST_LAYOUTS = 512
"""Layouts of one GPU that are looked at. The six profiles of an H100 have about a hundred."""


def layouts(placements: Mapping[str, Placement]) -> list[dict[str, int]]:
    """The layouts of a GPU for these profiles to which nothing can be added: instances by profile. At most
    ``MOST_LAYOUTS``."""
    names = sorted(placements)
    windows = [
        (name, window(start, placements[name].size)) for name in names for start in placements[name].starts
    ]
    found: dict[tuple[int, ...], None] = {}
    seen: set[tuple[int, tuple[int, ...]]] = set()

    def extend(taken: int, counts: tuple[int, ...]) -> None:
        if (taken, counts) in seen or len(found) >= MOST_LAYOUTS:
            return
        seen.add((taken, counts))
        is_full = True
        for name, mask in windows:
            if not taken & mask:
                is_full = False
                place = names.index(name)
                extend(taken | mask, (*counts[:place], counts[place] + 1, *counts[place + 1 :]))
        if is_full and any(counts):
            found[counts] = None

    extend(0, (0,) * len(names))
    best = [layout for layout in found if not any(_contains(other, layout) for other in found)]
    return [
        {name: n for name, n in zip(names, layout, strict=True) if n} for layout in sorted(best, reverse=True)
    ]


def _contains(larger: tuple[int, ...], counts: tuple[int, ...]) -> bool:
    return larger != counts and all(a >= b for a, b in zip(larger, counts, strict=True))


class Pool(NamedTuple):
    """Groups of nodes that are equal today: how many (``nodes``, (G,)), what one has today (``today``,
    (G, R)) and with each layout (``with_layout``, (G, P, R)), whether it may change (``free``, (G,)), and how
    many pods restart then (``pods``, (G,))."""

    nodes: Longs
    today: Longs
    with_layout: Longs
    free: Sequence[bool]
    pods: Longs


class Demand(NamedTuple):
    """Instances by resource, (R,) each: those of pods that ``run``, those ``wanted`` in all, and what one is
    worth (``value``, a whole number of slices)."""

    run: Longs
    wanted: Longs
    value: Longs


class Choice(NamedTuple):
    """``changed`` (G, P): nodes of a group that get a layout; ``served`` (R,) instances; ``is_best``: it is
    proven that no choice serves more, or as much with fewer restarts."""

    changed: Longs
    served: Longs
    is_best: bool


def choose_layouts(pool: Pool, demand: Demand, most_layouts: int, seconds: float = 10.0) -> Choice:
    """The best choice of at most so many new layouts that is found within ``seconds``."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    groups, kinds, resources = pool.with_layout.shape
    changes, used = groups * kinds, groups * kinds + kinds
    limit = np.where(np.array(pool.free, bool), pool.nodes, 0)
    matrix, most = _constraints(pool, limit, most_layouts)
    value = np.concatenate([np.zeros(used), demand.value.astype(float)])
    price = np.repeat((int(pool.nodes.sum()) + 1) * pool.pods + 1, kinds).astype(float)
    low = np.concatenate([np.zeros(used), np.minimum(demand.run, demand.wanted)])
    high = np.concatenate([np.repeat(limit, kinds), np.ones(kinds), demand.wanted])
    rules = LinearConstraint(matrix, -np.inf, most)

    def best(cost: Doubles, *more: LinearConstraint) -> tuple[Longs | None, bool]:
        found = milp(
            cost,
            integrality=np.ones(cost.size, np.int64),
            bounds=Bounds(low, high),
            constraints=[rules, *more],
            options={"time_limit": seconds / 2, "mip_rel_gap": 0.0},
        )
        return None if found.x is None else np.rint(found.x).astype(np.int64), found.status == 0

    values, is_best = best(-value)
    if values is None:  # not even what runs fits, by these counts: nothing changes
        served = np.minimum(demand.wanted, pool.nodes @ pool.today)
        return Choice(np.zeros((groups, kinds), np.int64), served, is_best=False)
    as_much = LinearConstraint(value[None, :], value @ values, np.inf)
    cheapest, is_cheapest = best(np.concatenate([price, np.zeros(kinds + resources)]), as_much)
    values = values if cheapest is None else cheapest
    return Choice(values[:changes].reshape(groups, kinds), values[used:], is_best and is_cheapest)


def _constraints(pool: Pool, limit: Longs, most_layouts: int) -> tuple[Doubles, Doubles]:
    """Rows of the program, and the most that each may be. Columns: changed nodes by group and layout, layouts
    in use, served by resource."""
    groups, kinds, resources = pool.with_layout.shape
    changes, used = groups * kinds, groups * kinds + kinds
    matrix = np.zeros((groups + kinds + 1 + resources, used + resources))
    for g in range(groups):
        matrix[g, g * kinds : (g + 1) * kinds] = 1
    for p in range(kinds):
        matrix[groups + p, p:changes:kinds] = 1
        matrix[groups + p, changes + p] = -float(pool.nodes.sum())
    matrix[groups + kinds, changes:used] = 1
    for r in range(resources):
        row = matrix[groups + kinds + 1 + r]
        row[used + r] = 1
        row[:changes] = (pool.today[:, None, r] - pool.with_layout[:, :, r]).ravel()
    most = np.concatenate([limit, np.zeros(kinds), np.array([most_layouts]), pool.nodes @ pool.today])
    return matrix, most.astype(np.float64)
