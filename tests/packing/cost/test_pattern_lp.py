"""The pattern LP and its knapsack agree with exact solutions of small cases."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from packing.cost.fill_tables import fill_stock
from packing.cost.knapsack_kernels import knapsack
from tests.examples import examples

EMPTY, ONE = np.full((1, 2), 8), np.ones(1)


def multisets(sizes, free):
    """Every multiset of these sizes that fits into so much free compute and memory."""
    found = [[]]
    for t, size in enumerate(sizes):
        more = range(max(free) // max(size) + 1)
        longer = ([*counts, number] for counts in found for number in more)
        found = [counts for counts in longer if (np.array(counts) @ sizes[: t + 1] <= free).all()]
    return found


def lp_over(patterns, values, demand):
    """The optimum over all these patterns (T, P) of one GPU, where what is cut is also served."""
    rows = np.vstack([patterns, np.ones(patterns.shape[1])])
    solution = linprog(-(values @ patterns), A_ub=rows, b_ub=[*demand, 1.0], method="highs")
    return -solution.fun


def optimum(found, values, demand, states, numbers):
    """What duality says of the worths that were found."""
    return numbers @ found.table[states[:, 0], states[:, 1]] + demand @ (values - found.worth)


sizes_of = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), min_size=1, max_size=4, unique=True)
four = st.lists(st.integers(0, 20), min_size=4, max_size=4)


@settings(max_examples=examples(100))
@given(sizes_of, four)
def test_columns_are_generated_until_no_pattern_is_better(sizes, weights):
    """The optimum is that of the LP over every multiset, and the table has what duality leaves to fillers."""
    sizes = np.array(sizes)
    values, demand = sizes.mean(axis=1) / 8, np.array(weights[: len(sizes)]) / 10
    found = fill_stock(sizes, values, demand, 8, EMPTY, ONE)
    every = np.array(multisets(sizes, (8, 8)))
    exact = lp_over(every.T, values, demand)
    assert optimum(found, values, demand, EMPTY, ONE) == pytest.approx(exact, abs=1e-6)
    assert (found.patterns @ sizes <= 8).all()
    assert np.minimum(found.used @ found.patterns, demand) @ values == pytest.approx(exact, abs=1e-6)
    assert (np.diff(found.table, axis=0) >= -1e-9).all()
    assert (np.diff(found.table, axis=1) >= -1e-9).all()


SMALL_AND_LARGE = [(2, 5), (19, 20), (3, 5), (14, 14), (2, 3), (10, 10), (1, 1)]
OFTEN = [0.37, 0.27, 0.21, 0.06, 0.05, 0.02, 0.02]


@settings(max_examples=examples(40))
@given(st.permutations(range(7)), st.lists(st.floats(0.8, 1.25), min_size=7, max_size=7))
def test_requests_without_value_do_not_end_the_generation(order, noise):
    """The pattern that is read back used to hold requests of no value, was found among the known ones, and
    the generation ended: a policy packed more than the "optimum" of this mix."""
    sizes, frequency = np.array(SMALL_AND_LARGE)[order], (np.array(OFTEN) * noise)[order]
    values = sizes.mean(axis=1) / 20
    demand = frequency / (frequency @ values)
    exact = lp_over(np.array(multisets(sizes, (20, 20))).T, values, demand)
    states = np.full((1, 2), 20)
    found = fill_stock(sizes, values, demand, 20, states, ONE)
    assert optimum(found, values, demand, states, ONE) == pytest.approx(exact, abs=1e-6)


@settings(max_examples=examples(40))
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=4, unique=True),
    st.lists(st.floats(0, 1), min_size=4, max_size=4),
)
def test_the_table_is_the_best_of_all_patterns(sizes, worth):
    bins, sizes, worth = 6, np.array(sizes), np.array(worth[: len(sizes)])
    table, pick = np.zeros((bins + 1, bins + 1)), np.empty((bins + 1, bins + 1), np.int64)
    knapsack(sizes, worth, table, pick)
    fits = np.array(multisets(sizes, (bins, bins)))
    for i, j in product(range(bins + 1), repeat=2):
        best = (fits @ worth)[(fits @ sizes <= (i, j)).all(axis=1)].max()
        assert table[i, j] == pytest.approx(best, abs=1e-9)


@settings(max_examples=examples(60))
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4), st.lists(st.integers(0, 3), min_size=4, max_size=4)
)
def test_a_pattern_holds_nothing_without_value(sizes, worth):
    bins = 8
    square, values = np.array([(size, size) for size in sizes]), np.array(worth[: len(sizes)], np.float64)
    table, pick = np.zeros((bins + 1, bins + 1)), np.empty((bins + 1, bins + 1), np.int64)
    knapsack(square, values, table, pick)
    assert all(t < 0 or values[t] > 0 for t in pick.flat)


def test_the_cutting_stock_optimum():
    sizes, values, bins = np.array([[4, 4], [6, 6]]), np.array([0.4, 0.6]), np.full((1, 2), 10)
    for some, demand, best in ((slice(0, 2), np.ones(2), 1.0), (slice(1, 2), np.array([5.0]), 0.6)):
        found = fill_stock(sizes[some], values[some], demand, 10, bins, ONE)
        assert optimum(found, values[some], demand, bins, ONE) == pytest.approx(best)
