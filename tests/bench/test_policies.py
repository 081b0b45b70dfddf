"""The policies that only the comparison knows."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.packing.policies import POLICIES, WorstFit
from bench.packing.published.gpu_clustering import GpuClustering
from bench.packing.published.gpu_packing import GpuPacking
from packing.fleet.fleet import Fleet
from packing.fleet.placement import allocation_of
from packing.model.node_spec import Gpu, NodeSpec, Pool
from packing.model.request import Request, Shares, whole_gpus
from packing.policies.registry import POLICIES as SERVICE_POLICIES
from tests.packing.policies.test_policies import MIB, fleet_of, place_and_give_back, requests, share, take


@pytest.mark.parametrize("name", [name for name in POLICIES if name not in SERVICE_POLICIES])
@settings(max_examples=10)
@given(steps=st.lists(st.tuples(requests, st.integers(0, 2)), max_size=12))
def test_finite_cost_means_that_it_fits_and_the_gpus_hold_it(name, steps):
    place_and_give_back(POLICIES[name](), steps)


def test_worst_fit_takes_the_freest_node_and_gpu():
    fleet = fleet_of(4, 4)
    take(fleet, 1, 500, cpu=8000)
    assert WorstFit().cost(fleet, share(100)).argmin() == 0
    assert WorstFit().choose(fleet, share(100), 1) == (1,)


def test_gpu_packing_scores_as_published():
    fleet = fleet_of(2, 2, 2)
    take(fleet, 1, 400)
    take(fleet, 2, 600)
    assert (100 - GpuPacking().cost(fleet, share(300))).tolist() == [31, 94, 96]
    assert (100 - GpuPacking().cost(fleet, Request(shares=whole_gpus(1)))).tolist() == [31, 49, 49]
    assert (100 - GpuPacking().cost(fleet, Request(1000))).tolist() == [0, 0, 0]


def test_gpu_clustering_scores_as_published():
    # Of two GPUs: empty, shares alone, shares and a whole GPU, a whole GPU alone.
    fleet, policy = fleet_of(2, 2, 2, 2), GpuClustering()
    for row, milli in ((1, 400), (2, 400), (2, 1000), (3, 1000)):
        fleet.take(allocation_of(fleet, row, share(milli, 0), policy.choose(fleet, share(milli, 0), row)))
    assert (100 - policy.cost(fleet, share(300))).tolist() == [25, 80, 67, 12]
    assert (100 - policy.cost(fleet, Request(shares=whole_gpus(1))))[[0, 3]].tolist() == [25, 87]
    assert (100 - policy.cost(fleet, Request(shares=whole_gpus(2))))[0] == 25
    assert (100 - policy.cost(fleet, Request(1000))).tolist() == [0, 0, 0, 0]


def test_gpu_clustering_knows_devices_of_a_plugin_by_their_size():
    fleet = Fleet(nodes=2, gpus=2)
    pools = Pool("whole", 2, (0, 1), 1000, MIB), Pool("slice", 4, (0, 1), 500, MIB // 2)
    for name in "ab":
        fleet.put(NodeSpec(name, 9000, 9000, (Gpu(MIB), Gpu(MIB)), pools))
    policy, part, whole = GpuClustering(), Request(devices=(("slice", 1),)), Request(devices=(("whole", 1),))
    for row, request in enumerate((part, whole)):
        fleet.take(allocation_of(fleet, row, request, policy.choose(fleet, request, row)))
    assert policy.cost(fleet, part)[:2].argmin() == 0
    assert policy.cost(fleet, whole)[:2].argmin() == 1


def test_least_squares_looks_at_both_axes():
    fleet = fleet_of(2, 2)
    fleet.take(allocation_of(fleet, 0, Request(shares=Shares(1, 500, memory_milli=100)), (0,)))
    fleet.take(allocation_of(fleet, 1, Request(shares=Shares(1, 100, memory_milli=500)), (0,)))
    policy, request = POLICIES["least-squares"](), Request(shares=Shares(1, 500, memory_milli=900))
    assert policy.cost(fleet, request).argmin() == 0
    assert policy.choose(fleet, request, 0) == (0,)
