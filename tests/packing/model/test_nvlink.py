"""NVLink islands: the label form and the reference form."""

from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packing.model.nvlink import parse_islands, reference_islands, sure_peers
from tests.examples import examples


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


def sure_by_trial(groups: tuple[int, ...], free: int, together: tuple[int, ...]) -> int:
    """Oracle: the smallest of the largest free groups, over all ways in which pods can be on the devices."""

    def ways(left: tuple[int, ...], pods: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if not pods:
            yield left
            return
        for i, size in enumerate(left):
            if size >= pods[0]:
                yield from ways((*left[:i], size - pods[0], *left[i + 1 :]), pods[1:])

    others = sum(groups) - free - sum(together)
    worst = [
        max(rest)
        for after in set(ways(groups, together))
        for rest in product(*(range(size + 1) for size in after))
        if sum(after) - sum(rest) == others
    ]
    return min(worst)


@settings(max_examples=examples(300))
@given(st.data())
def test_sure_peers_are_peers_wherever_the_plugin_put_the_pods(data: st.DataObject):
    groups = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    left, together = sum(groups), []
    for size in groups:
        if count := data.draw(st.integers(0, size)):
            together.append(count)
            left -= count
    free = data.draw(st.integers(0, left))
    sure, exact = (
        sure_peers(groups, free, tuple(sorted(together))),
        sure_by_trial(groups, free, tuple(together)),
    )
    assert sure <= exact
    if not together:
        assert sure == exact


@pytest.mark.parametrize(
    ("groups", "free", "together", "sure"),
    [
        ((8,), 5, (), 5),
        ((2, 2), 4, (), 2),
        ((2, 2), 3, (), 2),
        ((2, 2), 2, (), 1),  # one of each pair may be free
        ((2, 2), 2, (2,), 2),  # the pod has one pair, so the other is free
        ((4, 4), 4, (4,), 4),
        ((4, 4), 4, (), 2),
        ((1, 1), 2, (), 1),
        ((7, 1), 8, (), 7),
        ((2, 2), 0, (), 0),
        ((2, 2), -3, (), 0),
    ],
)
def test_examples_of_sure_peers(groups, free, together, sure):
    assert sure_peers(groups, free, together) == sure
