"""Fill tables agree with exact solutions of small cases."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packing.cost.fill_value import Part, fill_table, grid, price_patterns, solve_patterns
from packing.cost.knapsack_kernels import knapsack


def multisets(sizes, bins):
    """Every multiset of these sizes that fits one GPU."""
    ranges = [range(bins // max(size) + 1) for size in sizes]
    return [counts for counts in product(*ranges) if (np.array(counts) @ sizes <= bins).all()]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(1, 20), min_size=4, max_size=4),
)
def test_columns_are_generated_until_no_pattern_is_better(sizes, weights):
    """The optimum is that of the LP over every multiset, and the table has what duality leaves to fillers."""
    bins, sizes = 8, np.array(sizes)
    values, demand = sizes.mean(axis=1) / bins, np.array(weights[: len(sizes)]) / 10
    table, optimum = solve_patterns(sizes, values, demand, bins)
    duals, exact = price_patterns(np.array(multisets(sizes, bins)).T, values, demand)
    assert optimum == pytest.approx(exact, abs=1e-6)
    assert demand @ duals[:-1] + duals[-1] == pytest.approx(exact, abs=1e-6)
    assert table[bins, bins] <= optimum + 1e-6
    assert (np.diff(table, axis=0) >= -1e-9).all()
    assert (np.diff(table, axis=1) >= -1e-9).all()


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
        assert table[i, j] == pytest.approx((fits @ worth)[(fits @ sizes <= (i, j)).all(axis=1)].max())


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
