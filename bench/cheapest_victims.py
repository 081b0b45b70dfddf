"""The cheapest victims of a node without gangs, by HiGHS: slow but proven, as a reference for the search."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from packing.victims.amounts import Demand, Holdings
from packing.victims.victims import Cost, Victims

_WORTH = 1e8
"""Weight of one unit of the first component, in units of the second: all victims of a node together cost less
there."""


def least_cost(demand: Demand, holdings: Holdings, victims: Victims) -> Cost:
    """The first two components of the cost of the cheapest set that frees the demand. Raises ValueError if
    even all victims are not sufficient.

    There is one variable for each victim (it is evicted), each target (it is used), and each island of each
    choice (all GPUs are in it).
    """
    rows: list[tuple[dict[int, float], float]] = []  # sums of variables, and their minimum
    first_target = len(victims)
    number = first_target + len(demand.targets)
    for (count, end), start in zip(
        demand.choices.tolist(), [0, *demand.choices[:, 1].tolist()], strict=False
    ):
        by_island = defaultdict[int, list[int]](list)
        by_gpu = defaultdict[int, list[int]](list)
        for t in range(start, end):
            by_island[int(demand.targets[t, 0])].append(first_target + t)
            by_gpu[int(demand.targets[t, 1])].append(first_target + t)
        rows += [(dict.fromkeys(same, -1.0), -1.0) for same in by_gpu.values()]
        rows += [
            (dict.fromkeys(inside, 1.0) | {number + i: -count}, 0.0)
            for i, inside in enumerate(by_island.values())
        ]
        rows.append(({number + i: 1.0 for i in range(len(by_island))}, 1.0))
        number += len(by_island)
    for t, (start, end) in enumerate(pairwise([0, *demand.targets[:, 2].tolist()])):
        for e in range(start, end):
            freed = np.minimum(holdings.amounts[:, demand.rows[e]] / demand.missing[e], 1.0)
            rows.append((dict(enumerate(freed.tolist())) | {first_target + t: -1.0}, 0.0))
    return _solve(rows, number, victims.costs)


def _solve(rows: list[tuple[dict[int, float], float]], variables: int, costs: np.ndarray) -> Cost:
    matrix = np.zeros((len(rows), variables))
    for place, (sums, _) in enumerate(rows):
        matrix[place, list(sums)] = list(sums.values())
    price = np.zeros(variables)
    price[: len(costs)] = _WORTH * costs[:, 0] + costs[:, 1]
    found = milp(
        price,
        constraints=LinearConstraint(matrix, lb=[least for _, least in rows]),
        integrality=np.ones(variables, np.int64),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 0},
    )
    if found.x is None:
        raise ValueError(found.message)
    chosen = found.x[: len(costs)].round().astype(bool)
    total = costs[chosen, :2].sum(axis=0)
    return float(total[0]), float(total[1])
