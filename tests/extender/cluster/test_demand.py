"""Figures of what pods ask for."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.cluster.demand import distance, size_of
from packing.model.request import Request

weights = st.dictionaries(st.sampled_from("abcdef"), st.floats(0.01, 100), min_size=1).map(
    lambda counts: {Request(ord(name)): count / sum(counts.values()) for name, count in counts.items()}
)


@given(weights, weights, weights)
def test_the_distance_is_a_metric_from_0_to_1(a, b, c) -> None:
    assert distance(a, a) == 0
    assert 0 <= distance(a, b) <= 1 + 1e-9
    assert math.isclose(distance(a, b), distance(b, a))
    assert distance(a, c) <= distance(a, b) + distance(b, c) + 1e-9


@pytest.mark.parametrize(
    ("gpus", "size"),
    [(0.14, "part"), (0.5, "part"), (1, "1"), (2, "2"), (3, "3-4"), (4, "3-4"), (8, "5-8"), (9, "9 or more")],
)
def test_sizes(gpus: float, size: str) -> None:
    assert size_of(gpus) == size
