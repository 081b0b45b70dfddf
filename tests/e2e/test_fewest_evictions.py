"""The offline solver agrees with a search through all sets of victims."""

import random
from collections import Counter
from itertools import chain, combinations, product

import pytest

from .fewest_evictions import NodeState, Shape, fewest_evictions


@pytest.mark.parametrize("seed", range(30))
def test_it_agrees_with_brute_force(seed: int) -> None:
    draw = random.Random(seed)
    nodes = [
        NodeState(
            draw.choice("ab"), draw.randrange(3), tuple(draw.choices((1, 2, 4), k=draw.randrange(1, 4)))
        )
        for _ in range(3)
    ]
    waiting = [(draw.choice((1, 2, 4)), draw.choice(("", "a"))) for _ in range(3)]
    for by_gpus in (False, True):
        slow = brute_force(nodes, waiting, by_gpus=by_gpus)
        if slow is None:
            with pytest.raises(ValueError, match="infeasible"):
                fewest_evictions(nodes, Counter(waiting), by_gpus=by_gpus)
        else:
            assert fewest_evictions(nodes, Counter(waiting), by_gpus=by_gpus) == slow


def brute_force(nodes: list[NodeState], waiting: list[Shape], *, by_gpus: bool) -> int | None:
    every = [(row, gpus) for row, node in enumerate(nodes) for gpus in node.evictable]
    sets = chain.from_iterable(combinations(every, size) for size in range(len(every) + 1))
    costs = [
        sum(gpus for _, gpus in chosen) if by_gpus else len(chosen)
        for chosen in sets
        if fits(nodes, waiting, chosen)
    ]
    return min(costs, default=None)


def fits(nodes: list[NodeState], waiting: list[Shape], evicted: tuple[tuple[int, int], ...]) -> bool:
    for rows in product(range(len(nodes)), repeat=len(waiting)):
        free = [node.free for node in nodes]
        for row, gpus in evicted:
            free[row] += gpus
        for row, (gpus, _) in zip(rows, waiting, strict=True):
            free[row] -= gpus
        right = all(
            wanted in ("", nodes[row].product) for row, (_, wanted) in zip(rows, waiting, strict=True)
        )
        if right and min(free) >= 0:
            return True
    return False
