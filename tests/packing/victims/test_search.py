"""The victim search: as cheap as exhaustion, and nothing of the fleet is changed by it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packing.victims.search import VictimSearch

from ..fleet.builders import arrays_of
from .random_nodes import cheapest_by_exhaustion, random_case


@pytest.mark.parametrize("first", range(0, 2000, 500))
def test_the_search_is_as_cheap_as_exhaustion(first):
    """Nodes of all kinds; no answer comes from the slow search."""
    found = 0
    for seed in range(first, first + 500):
        case = random_case(seed)
        search = VictimSearch(case.fleet, case.request)
        answer = search.on(0, case.victims, case.gangs, case.required)
        expected = cheapest_by_exhaustion(case)
        assert (answer is None) == (expected is None), seed
        if answer and expected:
            assert (answer.cost, answer.exact) == (expected.cost, True), seed
            found += bool(answer.victims)
        assert search.disagreements == 0, seed
    assert found > 100


@settings(deadline=None, max_examples=100)
@given(st.integers(10_000, 1 << 40))
def test_the_fleet_is_as_before(seed):
    case = random_case(seed)
    before = arrays_of(case.fleet)
    VictimSearch(case.fleet, case.request).on(0, case.victims, case.gangs, case.required)
    after = arrays_of(case.fleet)
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array, err_msg=name)
