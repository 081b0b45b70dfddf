"""The bound never exceeds what an exhaustive search takes, and is reached where devices are only counted."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bench.packing.bounds import Groups, fewest_whole

NODES = st.lists(st.tuples(st.booleans(), st.integers(1, 4), st.integers(1, 6)), min_size=1, max_size=3)
"""Whether a node has whole GPUs or parts, how many, and its CPU."""
PODS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2)), min_size=1, max_size=4)
"""GPUs and CPU that a pod asks for."""


def exhaustive(nodes: list[tuple[bool, int, int]], pods: list[tuple[int, int]]) -> int | None:
    """The fewest whole GPUs, None if not all pods find a place."""
    found = []
    for places in product(range(len(nodes)), repeat=len(pods)):
        on = [[pod for pod, at in zip(pods, places, strict=True) if at == n] for n in range(len(nodes))]
        used = [(sum(gpus for gpus, _ in one), sum(cpu for _, cpu in one)) for one in on]
        if all(g <= gpus and c <= cpu for (g, c), (_, gpus, cpu) in zip(used, nodes, strict=True)):
            found.append(sum(g for (g, _), (whole, *_) in zip(used, nodes, strict=True) if whole))
    return min(found, default=None)


@given(NODES, PODS)
def test_it_is_what_an_exhaustive_search_takes(nodes, pods):
    kinds = sorted(set(pods))
    whole = np.array([gpus if is_whole else 0 for is_whole, gpus, _ in nodes])
    takes = np.array([[float(gpus) if is_whole else 0.0 for gpus, _ in kinds] for is_whole, *_ in nodes])
    most = np.array([[min(n // g, cpu // c if c else 9) for g, c in kinds] for _, n, cpu in nodes])
    groups = Groups(
        whole=whole,
        beside=np.zeros(len(nodes)),
        capacity=np.array([[gpus, cpu] for _, gpus, cpu in nodes], float),
        sizes=np.array([[[g, c] for g, c in kinds] for _ in nodes], float),
        takes=takes,
        most=most,
    )
    needed = exhaustive(nodes, pods)
    if needed is not None:
        assert fewest_whole(groups, np.array([pods.count(kind) for kind in kinds])) == needed


def test_a_part_takes_of_what_is_free_beside_whole_gpus_first():
    groups = Groups(
        whole=np.array([2]),
        beside=np.array([0.5]),
        capacity=np.array([[9.0]]),
        sizes=np.array([[[1.0]]]),
        takes=np.array([[0.5]]),
        most=np.array([[9]]),
    )
    assert [fewest_whole(groups, np.array([pods])) for pods in range(5)] == [0, 0, 1, 1, 2]
