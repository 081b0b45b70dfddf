"""The policies that only the comparison knows."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.packing.policies import POLICIES, WorstFit
from packing.policies.registry import POLICIES as SERVICE_POLICIES
from tests.packing.policies.test_policies import fleet_of, place_and_give_back, requests, share, take


@pytest.mark.parametrize("name", [name for name in POLICIES if name not in SERVICE_POLICIES])
@settings(max_examples=10, deadline=None)
@given(steps=st.lists(st.tuples(requests, st.integers(0, 2)), max_size=12))
def test_finite_cost_means_that_it_fits_and_the_gpus_hold_it(name, steps):
    place_and_give_back(POLICIES[name](), steps)


def test_worst_fit_takes_the_freest_node_and_gpu():
    fleet = fleet_of(4, 4)
    take(fleet, 1, 500, cpu=8000)
    assert WorstFit().cost(fleet, share(100)).argmin() == 0
    assert WorstFit().choose(fleet, share(100), 1) == (1,)


def test_the_service_offers_neither():
    assert POLICIES.keys() - SERVICE_POLICIES.keys() == {"random", "worst-fit"}
