"""Ranks and scores: a strict order for any costs, and only the best node has the top score."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from extender.verbs.evaluate import MAX_SCORE, fitting_scores, rank_keys, shortlist

costs = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40)


def keys_of(values: list[float]) -> tuple[np.ndarray, np.ndarray]:
    cost = np.array(values, np.float32)
    return cost, rank_keys(cost, np.arange(len(values), dtype=np.uint32))


@given(costs)
def test_keys_sort_as_cost_then_order(values):
    cost, keys = keys_of([0.0 if v == 0 else v for v in values])  # -0.0 sorts before 0.0, which is no matter
    assert np.argsort(keys).tolist() == np.lexsort((np.arange(len(values)), cost)).tolist()


def best(keys: np.ndarray, count: int) -> np.ndarray:
    return np.argsort(keys)[:count]


def node_scores(cost: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """By the formula."""
    if not cost.size:
        return np.zeros(0, np.int64)
    low, high = float(cost.min()), float(cost.max())
    scores = np.floor((MAX_SCORE - 1) * (high - cost.astype(np.float64)) / (high - low or 1.0)).astype(
        np.int64
    )
    if high == low:
        scores[:] = MAX_SCORE - 1
    scores[np.argmin(keys)] = MAX_SCORE
    return scores


@given(costs)
def test_only_the_best_has_the_top_score_and_scores_never_contradict_the_cost(values):
    cost, keys = keys_of(values)
    scores = fitting_scores(np.zeros(len(values), np.int8), cost, keys)
    assert scores[np.argmin(keys)] == MAX_SCORE
    assert (scores == MAX_SCORE).sum() == 1
    assert scores.min() >= 0
    for i in range(len(values)):
        assert not ((cost[i] < cost) & (scores[i] < scores)).any()


def test_equal_nodes_have_the_score_below_the_best():
    cost, keys = keys_of([1.0, 1.0, 1.0])
    assert node_scores(cost, keys).tolist() == [10, 9, 9]
    assert node_scores(*keys_of([])).tolist() == []


@given(st.lists(st.tuples(st.sampled_from([-1.5, 0.0, 0.25, 7.0, 1e30]), st.booleans())), st.integers(1, 9))
def test_kernels_do_what_the_functions_do_for_the_nodes_that_fit(nodes, count):
    cost, keys = keys_of([value for value, _ in nodes])
    codes = np.array([not fits for _, fits in nodes], np.int8)
    fits = np.flatnonzero(codes == 0)
    expected = np.zeros(len(nodes), np.int64)
    expected[fits] = node_scores(cost[fits], keys[fits])
    assert fitting_scores(codes, cost, keys).tolist() == expected.tolist()
    assert np.flatnonzero(shortlist(codes, keys, count, int((codes == 0).sum()))).tolist() == sorted(
        fits[best(keys[fits], count)].tolist()
    )


@given(st.lists(st.integers(-3, 3), min_size=1), st.integers(1, 9))
def test_a_shortlist_is_no_longer_where_keys_are_equal(values, count):
    keys, codes = np.array(values, np.int64), np.zeros(len(values), np.int8)
    chosen = shortlist(codes, keys, count, int((codes == 0).sum()))
    assert chosen.sum() == min(count, len(values))
    assert sorted(keys[chosen].tolist()) == sorted(values)[:count]
