"""The tables of a mix on a fleet: the stock is a recount, combinations have slots, and a new stock counts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packing.cost.demand import Mix
from packing.cost.fill_tables import NO_GPUS, FreeGpus, build_tables
from packing.fleet.fleet import Fleet
from packing.fleet.placement import allocation_of
from packing.model.node_spec import Gpu, NodeSpec
from packing.model.reasons import Reason
from packing.model.request import Request, Shares
from tests.examples import examples


def share(compute, memory=None, count=1, mib=0, resource=""):
    memory = 0 if mib else compute if memory is None else memory
    return Request(shares=Shares(count, compute, memory_mib=mib, memory_milli=memory, resource=resource))


def fleet_of(*memories, gpus=4):
    fleet = Fleet(nodes=len(memories), gpus=gpus)
    for i, mib in enumerate(memories):
        fleet.put(NodeSpec(f"n{i}", 0, 0, (Gpu(mib, divisible=True),) * gpus))
    return fleet


THIRDS = Mix.of({share(700): 1, share(300): 1})
HALVES = Mix.of({share(50): 50, share(450): 20, share(550, 400): 15, share(950): 15})


@settings(max_examples=examples(40))
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.sampled_from([100, 300, 700])), max_size=20)
)
def test_the_stock_is_a_recount_of_every_gpu(steps):
    fleet = fleet_of(10_000, 10_000, 40_000)
    for row, gpu, milli in steps:
        if fleet.arrays.compute[gpu, row] >= milli:
            fleet.take(allocation_of(fleet, row, share(milli), (gpu,)))
    fleet.block(1, Reason.UNREADABLE)
    stock = FreeGpus.of(fleet).by_state((10_000, 40_000), 10)
    assert stock.sum() == 8
    for i in range(11):
        for k, row in ((0, 0), (1, 2)):
            alike = sum(round(fleet.arrays.compute[g, row] / 100) == i for g in range(4))
            assert stock[k, i, i] == alike


def test_combinations_have_slots_and_the_mix_stays_as_it_is():
    tables = build_tables(HALVES, FreeGpus.of(fleet_of(10_000)))
    assert tables.mix is HALVES
    assert tables.slotted.requests[:4] == HALVES.requests
    assert {share(1000, 850), share(1000)} <= set(tables.slotted.requests[4:])
    assert build_tables(HALVES, NO_GPUS).fill.shape == (1, 21, 21)


def test_combinations_are_of_the_resource_that_is_asked_for():
    mix = Mix.of({share(450, resource="a/gpu"): 1, share(550, resource="a/gpu"): 1})
    tables = build_tables(mix, FreeGpus.of(fleet_of(10_000)))
    assert {request.shares.resource for request in tables.slotted.requests} == {"a/gpu"}


def test_sizes_of_memory_have_their_own_tables_where_mib_are_asked_for():
    gpus = FreeGpus.of(fleet_of(10_000, 40_000))
    assert build_tables(HALVES, gpus).memory_mib == (0,)
    tables = build_tables(Mix.of({share(200, mib=9_000): 1}), gpus)
    assert tables.memory_mib == (10_000, 40_000)
    assert tables.fill[0, -1, -1] < tables.fill[1, -1, -1]
    assert tables.stock.sum(axis=(1, 2)).tolist() == [4, 4]


def test_a_new_stock_changes_the_fill_and_nothing_else():
    fleet = fleet_of(10_000, 10_000)
    tables = build_tables(THIRDS, FreeGpus.of(fleet))
    assert tables.moved(FreeGpus.of(fleet)) == 0
    for gpu in range(4):
        fleet.take(allocation_of(fleet, 0, share(700), (gpu,)))
    gpus = FreeGpus.of(fleet)
    assert tables.moved(gpus) == pytest.approx(0.5)
    new = tables.restocked(gpus)
    assert new.restocks(tables)
    assert new.moved(gpus) == 0
    assert (new.fill != tables.fill).any()
    assert new.ideal is tables.ideal
    from_scratch = build_tables(THIRDS, gpus)
    assert not from_scratch.restocks(tables)
    assert np.array_equal(from_scratch.fill, new.fill)
