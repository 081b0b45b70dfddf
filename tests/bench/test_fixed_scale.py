"""Scores on a fixed scale: whole numbers from 0 to 10 that never contradict the cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.packing.filling import build_fleet
from bench.packing.fixed_scale import FixedScale
from packing.cost.demand import Mix
from packing.fleet.fleet import Fleet
from packing.fleet.placement import allocation_of
from packing.model.node_spec import Gpu, NodeSpec
from packing.model.request import Request, Shares, whole_gpus
from packing.policies.interface import update_now
from packing.policies.inventory import InventoryPolicy
from tests.examples import examples


def share(milli: int, cpu: int = 1000) -> Request:
    return Request(cpu_milli=cpu, shares=Shares(1, milli, memory_milli=milli))


WHOLE_GPU = Request(cpu_milli=4000, shares=whole_gpus(1))
MIX = Mix.of({share(250): 4, share(500): 3, share(800): 2, WHOLE_GPU: 3})


def fleet_of(nodes: int) -> Fleet:
    gpu = Gpu(40_960, divisible=True)
    return build_fleet([NodeSpec(f"n{i}", 32_000, 262_144, (gpu,) * (1 + i % 4)) for i in range(nodes)])


def ready(policy: InventoryPolicy, fleet: Fleet) -> InventoryPolicy:
    update_now(policy, fleet)
    return policy


kinds = st.sampled_from([share(250), share(500, 8000), share(800), WHOLE_GPU, Request(cpu_milli=6000)])


@settings(max_examples=examples(30))
@given(st.lists(st.tuples(kinds, st.integers(0, 7)), max_size=20), kinds)
def test_scores_are_whole_numbers_that_never_contradict_the_cost(steps, request):
    fleet = fleet_of(8)
    exact, scored = ready(InventoryPolicy(MIX), fleet), ready(FixedScale(MIX), fleet)
    for placed, row in steps:
        if np.isfinite(exact.cost(fleet, placed)[row]):
            fleet.take(allocation_of(fleet, row, placed, exact.choose(fleet, placed, row)))
    cost, lost = exact.cost(fleet, request), scored.cost(fleet, request)
    fits = np.isfinite(cost)
    assert (np.isfinite(lost) == fits).all()
    assert set(lost[fits].tolist()) <= set(range(11))
    by_cost = np.argsort(cost[fits], kind="stable")
    assert (np.diff(lost[fits][by_cost]) >= 0).all()


@pytest.mark.parametrize("request_", [share(250), share(500), share(800), WHOLE_GPU])
def test_no_node_takes_less_fill_than_par_and_an_empty_gpu_takes_it_for_a_whole_one(request_):
    fleet = fleet_of(8)
    policy = ready(FixedScale(MIX), fleet)
    least = policy.par(fleet, request_) - request_.shares.compute_milli / 1000
    for first in (share(250), share(500), share(800)):
        fills = [policy.terms(fleet, request_, row)["fill"] for row in range(8)]
        assert min(fills) >= least - 1e-3
        if request_ == WHOLE_GPU:
            assert min(fills) == pytest.approx(least, abs=1e-3)
        fleet.take(allocation_of(fleet, 3, first, policy.choose(fleet, first, 3)))


def test_a_request_without_gpu_has_par_zero():
    fleet = fleet_of(4)
    policy = ready(FixedScale(MIX), fleet)
    assert policy.par(fleet, Request(cpu_milli=1000)) == 0
