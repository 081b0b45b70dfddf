"""Fill by mix: what a remainder of a GPU is worth, on empty GPUs and on GPUs as they are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packing.cost.fill_tables import FillDemand, Part, grid
from tests.examples import examples


def test_plentiful_fillers_make_every_full_gpu_equal_and_fragments_worth_less():
    table, _ = FillDemand([Part(300, 300), Part(500, 500)], [0.5, 0.5], 10).on_empty_gpus()
    assert table[10, 10] > 0
    assert table[2, 2] == 0
    assert table[10, 2] == 0


def test_a_remainder_below_the_minimum_slice_is_waste():
    parts, often = [Part(100, 100), Part(450, 450)], [0.9, 0.1]
    free, _ = FillDemand(parts, often, 20).on_empty_gpus()
    least, _ = FillDemand(parts, often, 20, minimum_milli=200).on_empty_gpus()
    assert (free[2:4, 2:] >= 0).all()
    assert (least[:4] == 0).all()
    assert (least[:, :4] == 0).all()
    assert (least[4:, 4:] == free[4:, 4:]).all()


def test_requests_that_need_a_whole_gpu_together_are_a_combination():
    parts = [Part(50, 50), Part(450, 450), Part(550, 400), Part(950, 950)]
    _, combined = FillDemand(parts, [0.5, 0.2, 0.15, 0.15], 20).on_empty_gpus()
    assert {part for part, _ in combined} == {Part(1000, 850), Part(1000, 1000)}
    assert (Part(1000, 1000), pytest.approx(0.15)) in combined  # 950 and 50
    with_450 = sum(x for part, x in combined if part == Part(1000, 850))
    assert 0.1 < with_450 <= 0.15 + 1e-6


def test_no_combinations_where_one_request_fills_a_gpu():
    assert FillDemand([Part(600, 600), Part(700, 700)], [0.5, 0.5], 10).on_empty_gpus()[1] == []
    assert FillDemand([], [], 10).on_empty_gpus()[1] == []


sizes = st.integers(1, 10).map(lambda tenths: 100 * tenths)


@settings(max_examples=examples(30))
@given(st.lists(st.tuples(sizes, sizes), min_size=1, max_size=4), st.integers(1, 9))
def test_a_stock_of_empty_gpus_has_the_fill_of_ideal_cuts(asked, gpus):
    demand = FillDemand([Part(*one) for one in asked], [1 / len(asked)] * len(asked), 10)
    stock = np.zeros((11, 11), np.int64)
    stock[10, 10] = gpus
    ideal, _ = demand.on_empty_gpus()
    again = demand.on_stock(stock)
    assert again[10, 10] == pytest.approx(ideal[10, 10], abs=1e-6)


@settings(max_examples=examples(30))
@given(
    st.lists(st.tuples(sizes, sizes), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10), st.integers(1, 9)), max_size=6),
)
def test_fill_for_a_stock_grows_with_what_is_free_and_is_at_most_that(asked, states):
    demand = FillDemand([Part(*one) for one in asked], [1 / len(asked)] * len(asked), 10)
    stock = np.zeros((11, 11), np.int64)
    for i, j, number in states:
        stock[i, j] += number
    table = demand.on_stock(stock)
    assert (np.diff(table, axis=0) >= -1e-9).all()
    assert (np.diff(table, axis=1) >= -1e-9).all()
    free = np.add.outer(np.arange(11), np.arange(11)) / 20
    assert (table <= free + 1e-9).all()
    assert demand.on_stock(stock).tolist() == table.tolist()


def test_what_is_in_stock_decides_what_fills_it():
    """Beside 0.7 there is room for each 0.3 that comes. Where there are other places for 0.3, more than come,
    it is worth nothing as a filler."""
    demand = FillDemand([Part(700, 700), Part(300, 300)], [0.5, 0.5], 10)
    stock = np.zeros((11, 11), np.int64)
    stock[10, 10] = 4
    assert demand.on_stock(stock)[3, 3] == pytest.approx(0.3)
    stock[3, 3] = 4
    assert demand.on_stock(stock)[3, 3] == 0
    assert demand.on_stock(stock)[7, 7] == pytest.approx(0.7)


def test_more_states_than_the_lp_takes():
    stock = np.ones((41, 41), np.int64)
    table = FillDemand([Part(300, 300), Part(500, 500)], [0.5, 0.5], 40).on_stock(stock)
    assert table[40, 40] > 0


@pytest.mark.parametrize(("sizes", "bins"), [((100, 250), 20), ((50, 460), 100), ((333, 417), 100)])
def test_the_grid_is_exact_where_sizes_share_a_unit(sizes, bins):
    assert grid([Part(size, size) for size in sizes]) == bins
