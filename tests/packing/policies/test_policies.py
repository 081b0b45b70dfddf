"""Every policy behind the one interface: feasibility as the fleet has it, GPUs that really fit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packing.fleet.feasibility import reasons_for
from packing.fleet.fleet import Fleet
from packing.fleet.placement import allocation_of
from packing.model.node_spec import Gpu, NodeSpec, Pool
from packing.model.request import Request, Shares
from packing.policies.baselines import BestFit, LeastAllocated, MostAllocated
from packing.policies.registry import POLICIES

MIB = 1000


def share(milli, cpu=1000, count=1):
    return Request(cpu_milli=cpu, shares=Shares(count, milli, memory_milli=milli))


def fleet_of(*sizes, cpu=32_000):
    fleet = Fleet(nodes=len(sizes), gpus=4)
    for i, gpus in enumerate(sizes):
        fleet.put(NodeSpec(f"n{i}", cpu, 262_144, tuple(Gpu(MIB, divisible=True) for _ in range(gpus))))
    return fleet


def take(fleet, row, milli, gpu=0, cpu=0):
    fleet.take(allocation_of(fleet, row, share(milli, cpu), (gpu,)))


requests = st.one_of(
    st.builds(share, st.integers(1, 1000), st.integers(0, 9000), st.integers(1, 3)),
    st.builds(Request, cpu_milli=st.integers(0, 9000)),
    st.builds(lambda k: Request(devices=(("nvidia.com/gpu", k),)), st.integers(1, 3)),
)


def mixed_fleet():
    """A node that divides its GPUs, one whose plugin counts them, one that does both."""
    fleet = Fleet(nodes=3, gpus=4)
    cut = tuple(Gpu(MIB, divisible=True) for _ in range(3))
    pool = Pool("nvidia.com/gpu", 3, (0, 1, 2), 1000, MIB)
    fleet.put(NodeSpec("divided", 12_000, 9000, cut))
    fleet.put(NodeSpec("counted", 12_000, 9000, tuple(Gpu(MIB) for _ in range(3)), (pool,)))
    half = Pool("nvidia.com/gpu", 2, (0, 1), 1000, MIB)
    fleet.put(NodeSpec("both", 12_000, 9000, (Gpu(MIB), Gpu(MIB), *cut[:2]), (half,)))
    return fleet


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=10)
@given(steps=st.lists(st.tuples(requests, st.integers(0, 2)), max_size=12))
def test_finite_cost_means_that_it_fits_and_the_gpus_hold_it(name, steps):
    place_and_give_back(POLICIES[name](), steps)


def test_names_are_those_of_the_policies():
    assert [POLICIES[name]().name for name in POLICIES] == list(POLICIES)


def place_and_give_back(policy, steps):
    fleet = mixed_fleet()
    before = [
        array.copy()
        for array in (fleet.arrays.cpu, fleet.arrays.compute, fleet.arrays.memory, fleet.arrays.free_devices)
    ]
    held = []
    for request, row in steps:
        cost, fits = policy.cost(fleet, request), reasons_for(fleet, request) == 0
        assert (np.isfinite(cost) == fits)[:3].all()
        if fits[row]:
            held.append(allocation_of(fleet, row, request, policy.choose(fleet, request, row)))
            fleet.take(held[-1])
            assert not fleet.arrays.overcommitted.any()
            assert (fleet.arrays.compute >= 0).all()
            assert (fleet.arrays.memory >= 0).all()
    for one in reversed(held):
        fleet.give_back(one)
    after = fleet.arrays.cpu, fleet.arrays.compute, fleet.arrays.memory, fleet.arrays.free_devices
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_best_fit_takes_the_tightest_node_and_gpu():
    fleet = fleet_of(4, 4)
    take(fleet, 1, 300, gpu=1)
    take(fleet, 1, 600, gpu=2)
    policy = BestFit()
    assert policy.cost(fleet, share(200)).argmin() == 1
    assert policy.choose(fleet, share(200), 1) == (2,)


def test_the_strategies_of_kube_scheduler():
    fleet = fleet_of(4, 4)
    take(fleet, 1, 500, cpu=8000)
    assert MostAllocated().cost(fleet, share(100)).argmin() == 1
    assert LeastAllocated().cost(fleet, share(100)).argmin() == 0
