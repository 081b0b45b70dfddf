"""The fewest pods to evict, so that all waiting pods fit: an integer program for the whole cluster.

An offline solver knows all waiting pods at once, while a scheduler sees one after the other. GPUs are counted
by node, so this is for clusters of whole GPUs. It shares no code with Stowage.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_array

Shape = tuple[int, str]
"""GPUs of a waiting pod, and the product that its node must have ("" for any)."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """GPUs of a node: how many are free, and how many each pod holds that may be evicted."""

    product: str
    free: int
    evictable: tuple[int, ...]


def fewest_evictions(nodes: Sequence[NodeState], waiting: Counter[Shape], *, by_gpus: bool = False) -> int:
    """The smallest number of evicted pods (with `by_gpus`, of GPUs that they hold) that makes room for all
    waiting pods. Raises ValueError if not even the eviction of all does."""
    evictions = [(row, gpus) for row, node in enumerate(nodes) for gpus in sorted(set(node.evictable))]
    placements = [
        (row, shape)
        for row, node in enumerate(nodes)
        for shape in sorted(waiting)
        if shape[1] in ("", node.product)
    ]
    most = [nodes[row].evictable.count(gpus) for row, gpus in evictions]
    most += [waiting[shape] for _, shape in placements]
    room = lil_array((len(nodes), len(most)))
    placed = lil_array((len(waiting), len(most)))
    for column, (row, gpus) in enumerate(evictions):
        room[row, column] = -gpus
    order = {shape: index for index, shape in enumerate(sorted(waiting))}
    for column, (row, shape) in enumerate(placements, start=len(evictions)):
        room[row, column] = shape[0]
        placed[order[shape], column] = 1
    costs = [gpus if by_gpus else 1 for _, gpus in evictions] + [0] * len(placements)
    demand = [waiting[shape] for shape in sorted(waiting)]
    answer = milp(
        costs,
        integrality=np.ones(len(most), dtype=int),
        bounds=Bounds(0, most),
        constraints=[
            LinearConstraint(room.tocsr(), -np.inf, [node.free for node in nodes]),
            LinearConstraint(placed.tocsr(), demand, demand),
        ],
        options={"time_limit": 60, "mip_rel_gap": 0},
    )
    if answer.status != 0:
        raise ValueError(answer.message)
    return round(answer.fun)
