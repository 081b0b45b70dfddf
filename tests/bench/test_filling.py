"""The replay: the published protocol's queue, seeds that repeat, and figures that add up."""

import numpy as np
import pytest

from bench.packing.filling import Filling, arrivals, build_fleet, fill, gpus_of
from bench.packing.pick_node import NodePicker
from bench.packing.placer import Placer
from bench.packing.policies import FirstFit
from bench.packing.timeline import TimedPod, Timeline
from bench.packing.timeline_figures import waiting_times
from packing.cost.demand import Demand, Mix, by_pods
from packing.model.node_spec import Gpu, NodeSpec
from packing.model.request import Request, Shares, whole_gpus
from packing.policies.inventory import InventoryPolicy


def share(milli, cpu=1000):
    return Request(cpu, shares=Shares(1, milli, memory_milli=milli))


def nodes(count, gpus=4):
    return [NodeSpec(f"n{i}", 64_000, 9000, (Gpu(1000, divisible=True),) * gpus) for i in range(count)]


REQUESTS = [share(250), share(500), share(750), Request(2000), Request(4000, shares=whole_gpus(2))] * 8


@pytest.mark.parametrize("capacity", [10.0, 100.0])
def test_the_queue_reaches_the_ratio_from_below_and_from_above(capacity):
    queue = arrivals(REQUESTS, capacity, 1.3, seed=1)
    total = sum(gpus_of(REQUESTS[i]) for i in queue)
    assert 1.3 * capacity - 2.0 <= total <= 1.3 * capacity + 1.0
    if capacity == 100.0:
        assert sorted(queue[: len(REQUESTS)]) == list(range(len(REQUESTS)))
    else:
        assert len(set(queue)) == len(queue)


def test_equal_seeds_repeat_and_others_differ():
    assert arrivals(REQUESTS, 50, 1.3, 1) == arrivals(REQUESTS, 50, 1.3, 1) != arrivals(REQUESTS, 50, 1.3, 2)


@pytest.mark.parametrize("learn", [False, True])
def test_a_fill_repeats_itself_and_never_overcommits(learn):
    queue = [REQUESTS[i] for i in arrivals(REQUESTS, 16, 1.3, 3)]
    mix = None if learn else Mix.of(dict.fromkeys(REQUESTS, 1))
    runs = []
    for _ in range(2):
        fleet = build_fleet(nodes(4))
        placer = Placer(fleet, InventoryPolicy(mix), NodePicker(np.arange(4)), learns=learn)
        runs.append(fill(placer, queue))
        assert (fleet.arrays.compute >= 0).all()
        assert not fleet.arrays.overcommitted.any()
    assert np.array_equal(runs[0].rows, runs[1].rows)
    assert 0.8 * 16 < runs[0].gpus[runs[0].rows >= 0].sum() <= 16


def test_figures_at_an_arrival():
    filling = Filling(np.array([0, 0, -1, 1]), np.array([1.0, 1.0, 1.0, 1.0]))
    assert filling.at(4, 0.5).allocation == 50
    assert filling.at(4, 1.0).allocation == 75
    assert filling.at(4, 1.0).failed_pods == 1
    assert filling.at(8, 2.0).allocation == 37.5  # never reached: the last arrival counts
    assert filling.knee(4) == 75
    assert filling.knee(200) is None  # one GPU of 200 is less than 1 %


def test_pick_samples_from_where_it_stopped_and_breaks_ties_as_told():
    cost = np.array([3, 1, np.inf, 1, 0], np.float32)
    assert NodePicker(np.arange(5))(cost) == 4
    assert NodePicker(np.array([3, 1, 0, 2, 4]))(np.array([1, 1, 1, 1, 1], np.float32)) == 3
    sampled = NodePicker(np.arange(5), sample=2)
    assert [sampled(cost), sampled(cost), sampled(cost)] == [1, 4, 1]
    random = NodePicker(np.arange(5), ties=np.random.default_rng(0))
    assert {random(np.where(np.isinf(cost), np.inf, 0).astype(np.float32)) for _ in range(60)} == {0, 1, 3, 4}
    assert NodePicker(np.arange(1))(np.array([np.inf], np.float32)) == -1


def test_a_request_is_placed_on_an_allowed_row_or_nowhere():
    fleet = build_fleet(nodes(3, gpus=1))
    placer = Placer(fleet, FirstFit(), NodePicker(np.arange(3)))
    rows = np.zeros(fleet.arrays.capacity, bool)
    assert placer.place(share(600), rows) is None
    rows[[1, 2]] = True
    assert [placer.place(share(600), rows).row for _ in range(2)] == [1, 2]
    assert placer.place(share(600), rows) is None
    assert placer.place(share(600)).row == 0


def test_shares_below_the_minimum_are_refused():
    placer = Placer(build_fleet(nodes(1)), FirstFit(), NodePicker(np.arange(1)))
    filling = fill(placer, [share(100), share(500), Request(1000)], minimum_milli=250)
    assert filling.rows.tolist() == [-1, 0, 0]
    assert filling.gpus.tolist() == [0.1, 0.5, 0]


def test_demand_forgets_and_starts_from_its_prior():
    demand = Demand(half_life=10, prior=Mix((share(100),), (1.0,)), prior_weight=5)
    assert demand.mix().requests == (share(100),)
    for _ in range(400):
        demand.observe(share(500))
    assert demand.mix().requests == (share(500),)
    for _ in range(15):
        demand.observe(share(900))
    assert demand.mix().requests[0] == share(900)


def test_a_mix_covers_the_most_frequent_requests_and_merges_memory():
    counts = {Request(1, m << 20, shares=Shares(1, 500)): 1 for m in range(10, 105)} | {
        share(1 + i): 1 for i in range(5)
    }
    mix = Mix.of(counts)
    assert len(mix.requests) == 1
    assert mix.requests[0].memory_mib == 57
    assert mix.frequency == (1.0,)


def test_a_mix_has_what_few_pods_ask_much_of():
    counts = {share(500): 970, Request(4000): 20, Request(8000, shares=whole_gpus(8)): 10}
    assert Mix.of(counts).requests == (share(500), Request(8000, shares=whole_gpus(8)))
    assert Mix.of(counts, [by_pods]).requests == (share(500),)
    assert Mix.of({Request(4000): 1, Request(8000): 1}).requests == (Request(4000), Request(8000))


def test_a_timeline_queues_what_does_not_fit_and_counts_its_wait():
    requests = [Request(shares=whole_gpus(4)), Request(shares=whole_gpus(4)), share(500)]
    placer = Placer(build_fleet(nodes(1)), FirstFit(), NodePicker(np.arange(1)))
    times = (0.0, 100.0), (10.0, 50.0), (20.0, 10.0)
    pods = [TimedPod(request, *time) for request, time in zip(requests, times, strict=True)]
    waited = waiting_times(Timeline(placer, pods).replay(), len(pods))
    assert waited.tolist() == [0.0, 90.0, 130.0]  # the share behind both
