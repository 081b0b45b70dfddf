"""NVLink islands: the label form and the reference form."""

import pytest

from packing.model.nvlink import parse_islands, reference_islands


@pytest.mark.parametrize(
    ("value", "islands"),
    [
        ("0-7", (tuple(range(8)),)),
        ("0.1_2.3", ((0, 1), (2, 3))),
        ("0.1.3-7", ((0, 1, 3, 4, 5, 6, 7),)),
        ("0-3_4-7", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("none", ()),
    ],
)
def test_labels(value, islands):
    assert parse_islands(value) == islands


@pytest.mark.parametrize("value", ["", "0,1", "7-0", "0.1_1.2", "a", "0-", "0.1_", "1-9999"])
def test_malformed_labels(value):
    with pytest.raises(ValueError, match="islands"):
        parse_islands(value)


@pytest.mark.parametrize(
    ("gpus", "island", "islands"),
    [
        (4, 2, ((0, 1), (2, 3))),
        (8, 8, (tuple(range(8)),)),
        (3, 2, ((0, 1),)),
        (4, 1, ()),
        (1, 8, ()),
        (0, 0, ()),
    ],
)
def test_reference_form(gpus, island, islands):
    assert reference_islands(gpus, island) == islands
