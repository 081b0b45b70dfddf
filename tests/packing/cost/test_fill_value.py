"""Fill tables agree with exact solutions of small cases."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from packing.cost.fill_value import Part, fill_table, grid, price_patterns, solve_patterns
from packing.cost.knapsack_kernels import knapsack


def multisets(sizes, bins):
    """Every multiset of these sizes that fits one GPU."""
    found = [[]]
    for t, size in enumerate(sizes):
        more = range(bins // max(size) + 1)
        longer = ([*counts, number] for counts in found for number in more)
        found = [counts for counts in longer if (np.array(counts) @ sizes[: t + 1] <= bins).all()]
    return found


def lp_over(patterns, values, demand):
    """The optimum of the pattern LP as the module's docstring states it, over all these patterns (T, P)."""
    rows = np.vstack([patterns, np.ones(patterns.shape[1])])
    solution = linprog(-(values @ patterns), A_ub=rows, b_ub=[*demand, 1.0], method="highs")
    return -solution.fun


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(0, 20), min_size=4, max_size=4),
)
def test_columns_are_generated_until_no_pattern_is_better(sizes, weights):
    """The optimum is that of the LP over every multiset, and the table has what duality leaves to fillers."""
    bins, sizes = 8, np.array(sizes)
    values, demand = sizes.mean(axis=1) / bins, np.array(weights[: len(sizes)]) / 10
    table, optimum = solve_patterns(sizes, values, demand, bins)
    every = np.array(multisets(sizes, bins)).T
    exact = lp_over(every, values, demand)
    worth, per_gpu, same = price_patterns(every, values, demand)
    assert optimum == pytest.approx(exact, abs=1e-6)
    assert same == pytest.approx(exact, abs=1e-6)
    assert demand @ (values - worth) + per_gpu == pytest.approx(exact, abs=1e-6)
    assert table[bins, bins] <= optimum + 1e-6
    assert (np.diff(table, axis=0) >= -1e-9).all()
    assert (np.diff(table, axis=1) >= -1e-9).all()


SMALL_AND_LARGE = [(2, 5), (19, 20), (3, 5), (14, 14), (2, 3), (10, 10), (1, 1)]
OFTEN = [0.37, 0.27, 0.21, 0.06, 0.05, 0.02, 0.02]


@settings(max_examples=40, deadline=None)
@given(st.permutations(range(7)), st.lists(st.floats(0.8, 1.25), min_size=7, max_size=7))
def test_requests_without_value_do_not_end_the_generation(order, noise):
    """The pattern that is read back used to hold requests of no value, was found among the known ones, and
    the generation ended: a policy packed more than the "optimum" of this mix."""
    sizes, frequency = np.array(SMALL_AND_LARGE)[order], (np.array(OFTEN) * noise)[order]
    values = sizes.mean(axis=1) / 20
    demand = frequency / (frequency @ values)
    _, optimum = solve_patterns(sizes, values, demand, 20)
    assert optimum == pytest.approx(lp_over(np.array(multisets(sizes, 20)).T, values, demand), abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=4, unique=True),
    st.lists(st.floats(0, 1), min_size=4, max_size=4),
)
def test_the_table_is_the_best_of_all_patterns(sizes, worth):
    bins, sizes, worth = 6, np.array(sizes), np.array(worth[: len(sizes)])
    table, pick = np.zeros((bins + 1, bins + 1)), np.empty((bins + 1, bins + 1), np.int64)
    knapsack(sizes, worth, table, pick)
    fits = np.array(multisets(sizes, bins))
    for i, j in product(range(bins + 1), repeat=2):
        best = (fits @ worth)[(fits @ sizes <= (i, j)).all(axis=1)].max()
        assert table[i, j] == pytest.approx(best, abs=1e-9)


def test_plentiful_fillers_make_every_full_gpu_equal_and_fragments_worth_less():
    table = fill_table([Part(300, 300), Part(500, 500)], [0.5, 0.5], 10)
    assert table[10, 10] > 0
    assert table[2, 2] == 0
    assert table[10, 2] == 0


def test_a_remainder_below_the_minimum_slice_is_waste():
    parts, often = [Part(100, 100), Part(450, 450)], [0.9, 0.1]
    free, least = fill_table(parts, often, 20), fill_table(parts, often, 20, minimum_milli=200)
    assert (free[2:4, 2:] >= 0).all()
    assert (least[:4] == 0).all()
    assert (least[:, :4] == 0).all()
    assert (least[4:, 4:] == free[4:, 4:]).all()


def test_the_pattern_lp_finds_the_cutting_stock_optimum():
    _, optimum = solve_patterns(np.array([[4, 4], [6, 6]]), np.array([0.4, 0.6]), np.array([1.0, 1.0]), 10)
    assert optimum == pytest.approx(1.0)
    _, optimum = solve_patterns(np.array([[6, 6]]), np.array([0.6]), np.array([5.0]), 10)
    assert optimum == pytest.approx(0.6)


@pytest.mark.parametrize(("sizes", "bins"), [((100, 250), 20), ((50, 460), 100), ((333, 417), 100)])
def test_the_grid_is_exact_where_sizes_share_a_unit(sizes, bins):
    assert grid([Part(size, size) for size in sizes]) == bins


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4), st.lists(st.integers(0, 3), min_size=4, max_size=4)
)
def test_a_pattern_holds_nothing_without_value(sizes, worth):
    bins = 8
    square, values = np.array([(size, size) for size in sizes]), np.array(worth[: len(sizes)], np.float64)
    table, pick = np.zeros((bins + 1, bins + 1)), np.empty((bins + 1, bins + 1), np.int64)
    knapsack(square, values, table, pick)
    assert all(t < 0 or values[t] > 0 for t in pick.flat)
