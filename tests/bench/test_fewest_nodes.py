"""The bound never exceeds what exhaustive search needs, and is exact where pods cannot share badly."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bench.packing.bounds import Classes, fewest_nodes


def fits(capacities: list[tuple[int, int]], pods: list[tuple[int, int]]) -> bool:
    """Whether the pods can be given to the nodes, by trying everything."""
    return any(
        all(
            sum(pod[r] for pod, at in zip(pods, places, strict=True) if at == node) <= capacity[r]
            for node, capacity in enumerate(capacities)
            for r in range(2)
        )
        for places in product(range(len(capacities)), repeat=len(pods))
    )


def exhaustive(groups: list[tuple[int, tuple[int, int]]], pods: list[tuple[int, int]]) -> int | None:
    """The fewest nodes that hold the pods; None if all of them do not."""
    best = None
    for counts in product(*(range(count + 1) for count, _ in groups)):
        nodes = [capacity for n, (_, capacity) in zip(counts, groups, strict=True) for _ in range(n)]
        if (best is None or len(nodes) < best) and (not pods or (nodes and fits(nodes, pods))):
            best = len(nodes)
    return best


def classes_of(groups: list[tuple[int, tuple[int, int]]], kinds: list[tuple[int, int]]) -> Classes:
    capacity = np.array([c for _, c in groups], float)
    sizes = np.array([[kind for kind in kinds] for _ in groups], float).reshape(len(groups), len(kinds), 2)
    most = [[min(c[r] // kind[r] for r in range(2) if kind[r]) for kind in kinds] for _, c in groups]
    count = np.array([n for n, _ in groups], np.int64)
    zero = np.zeros_like(count)
    return Classes(count, zero, zero + 1, capacity, sizes, np.array(most, np.int64))


SIZE = st.tuples(st.integers(1, 5), st.integers(0, 5))
GROUPS = st.lists(
    st.tuples(st.integers(1, 2), st.tuples(st.integers(1, 8), st.integers(1, 8))), min_size=1, max_size=2
)


@given(GROUPS, st.lists(SIZE, min_size=1, max_size=5))
def test_never_more_than_exhaustive_search_needs(groups, pods):
    kinds = sorted(set(pods))
    demand = np.array([pods.count(kind) for kind in kinds], np.int64)
    classes = classes_of(groups, kinds)
    needed = exhaustive(groups, pods)
    everywhere = (classes.most > 0).any(axis=0)
    if needed is not None:
        assert everywhere.all()
        assert fewest_nodes(classes, demand) <= needed


def test_large_pods_do_not_share_a_node():
    groups, pods = [(4, (8, 8))], [(5, 0)] * 3
    assert fewest_nodes(classes_of(groups, [(5, 0)]), np.array([3])) == exhaustive(groups, pods) == 3


def test_nodes_that_stay_count_and_their_room_is_used():
    classes = classes_of([(1, (8, 8)), (3, (8, 8))], [(4, 0)])
    classes = classes._replace(kept=np.array([1, 0]))
    assert fewest_nodes(classes, np.array([2])) == 1
    assert fewest_nodes(classes, np.array([3])) == 2


def test_nodes_that_do_not_count_are_free():
    classes = classes_of([(1, (8, 8)), (3, (8, 8))], [(4, 0)])
    classes = classes._replace(kept=np.array([1, 0]), counts=np.array([0, 1]))
    assert fewest_nodes(classes, np.array([2])) == 0


def test_more_than_fits_leaves_no_node_to_go():
    assert fewest_nodes(classes_of([(2, (8, 8))], [(8, 0)]), np.array([3])) == 2


def test_nothing_needs_nothing():
    assert fewest_nodes(classes_of([(2, (8, 8))], [(8, 0)]), np.array([0])) == 0
