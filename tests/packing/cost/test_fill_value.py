"""Fill tables: what a remainder of a GPU is worth."""

import pytest

from packing.cost.fill_value import Part, fill_table, grid


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


@pytest.mark.parametrize(("sizes", "bins"), [((100, 250), 20), ((50, 460), 100), ((333, 417), 100)])
def test_the_grid_is_exact_where_sizes_share_a_unit(sizes, bins):
    assert grid([Part(size, size) for size in sizes]) == bins
