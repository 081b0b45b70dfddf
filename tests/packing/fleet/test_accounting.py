"""Accounting: whole numbers that never drift, refuse nothing because of rounding, and hold any quantity."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packing.cost.demand import Mix
from packing.cost.kernel_args import nodes_of
from packing.cost.slots import Slots
from packing.fleet.feasibility import could_host, reasons_for
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import allocation_of, freest_gpus, share_mib
from packing.model.mig_instances import Instance, window
from packing.model.node_spec import Gpu, NodeSpec, Pool
from packing.model.reasons import Reason
from packing.model.request import MOST, MOST_DEVICES, NameFilter, Request, Shares, whole_gpus
from packing.policies import inventory
from packing.policies.interface import Due, update_now
from packing.policies.inventory import InventoryPolicy
from packing.policies.registry import POLICIES
from tests.examples import examples

from .builders import GIB, GPU, MIB, MIG, arrays_of, counted_node, divisible_node, fleet_of, why


def everything() -> NodeSpec:
    """Two divisible GPUs, two that a plugin counts as whole ones and as MIG instances, and one that is
    divided into MIG instances on demand."""
    small = Instance("1g", 142, 10_000, tuple(window(i, 1) for i in range(7)))
    large = Instance("4g", 571, 40_000, (window(0, 4),))
    cards = (*[Gpu(MIB, True)] * 2, *[Gpu(MIB)] * 2, Gpu(40_000, True, 571, instances=(small, large)))
    pools = Pool(GPU, 2, (2, 3), 1000, MIB), Pool(MIG, 7, (3,), 142, 10_000, each=(7,))
    return NodeSpec("n", 64_000, 512 * GIB, cards, pools, sharing_resource="share")


huge = st.one_of(st.integers(0, 70_000), st.integers(0, 2**63 - 1), st.just(2**63 - 1), st.just(2**24 + 1))
allocations = st.builds(
    lambda cpu, memory, gpus, mib, whole, mig, mask: Allocation(
        0,
        cpu,
        memory,
        tuple((i, count) for i, count in enumerate((whole, mig)) if count),
        tuple((gpu, 1000 if mask else 333, mib) for gpu in sorted(gpus)),
        ((4, mask),) if mask and 4 in gpus else (),
        further=tuple((gpu, 2) for gpu in sorted(gpus) if mig),
    ),
    huge,
    huge,
    st.sets(st.integers(0, 4)),
    huge,
    st.integers(0, 3) | st.just(MOST_DEVICES),
    st.integers(0, 3) | st.just(MOST_DEVICES),
    st.integers(0, 127),
)


@given(st.lists(st.tuples(allocations, st.booleans(), st.randoms(use_true_random=False)), max_size=12))
def test_arrays_depend_on_what_is_held_and_on_nothing_else(steps):
    """Whatever was taken and given back, in whatever order: as if what is held now had been taken at once."""
    fleet, held = Fleet(nodes=1, gpus=5), []
    fleet.put(everything())
    for one, back, chance in steps:
        if back and held:
            fleet.give_back(held.pop(chance.randrange(len(held))))
        else:
            held.append(one)
            fleet.take(one)
        fresh = Fleet(nodes=1, gpus=5)
        fresh.put(everything())
        for other in reversed(held):
            fresh.take(other)
        expected = arrays_of(fresh)
        for name, array in arrays_of(fleet).items():
            np.testing.assert_array_equal(array, expected[name], err_msg=name)


def test_huge_pods_that_come_and_go_leave_no_trace():
    fleet, row = fleet_of(counted_node()), 0
    huge_one = allocation_of(fleet, row, Request(2**60 + 1, 2**62 + 1, devices=((GPU, 2**40),)))
    small = allocation_of(fleet, row, Request(3, 5, devices=((GPU, 1),)))
    for one in (huge_one, small, huge_one):
        fleet.take(one)
    assert why(fleet, Request(1)) is Reason.OVERCOMMITTED
    for one in (huge_one, huge_one):
        fleet.give_back(one)
    assert fleet.arrays.free_cpu[row] == 64_000 - 3
    assert fleet.arrays.free_memory[row] == 512 * GIB - 5
    assert fleet.arrays.cpu[row] == 64_000 - 3
    assert why(fleet, Request(64_000 - 3, 512 * GIB - 5, devices=((GPU, 7),))) is Reason.FITS
    assert why(fleet, Request(64_000 - 2)) is Reason.NO_FREE_CPU
    assert why(fleet, Request(0, 512 * GIB - 4)) is Reason.NO_FREE_MEMORY


@pytest.mark.parametrize("name", POLICIES)
def test_a_pod_that_asks_for_all_memory_of_a_node_fits(name):
    everything_of_it = 263_856_108 << 10  # 257671.98 MiB
    fleet, policy = Fleet(), POLICIES[name]()
    fleet.put(NodeSpec("n", 64_000, everything_of_it, (Gpu(MIB, True),) * 2))
    fits = Request(64_000, everything_of_it, shares=whole_gpus(1))
    for request, reason in ((fits, Reason.FITS), (Request(1, everything_of_it + 1), Reason.NO_FREE_MEMORY)):
        assert why(fleet, request) is reason
        assert np.isfinite(policy.cost(fleet, request)[0]) == (reason is Reason.FITS)


def test_memory_in_mib_is_rounded_down():
    assert Request(memory_bytes=(1 << 20) + 1).memory_mib == 2
    assert NodeSpec("n", 0, (2 << 20) - 1).memory_mib == 1


def test_a_pod_that_asks_for_no_cpu_fits_where_more_is_taken_than_there_is():
    """As in kube-scheduler: only requested resources are compared."""
    fleet, row = fleet_of(counted_node()), 0
    fleet.take(Allocation(row, 65_000, 513 * GIB))
    assert why(fleet, Request(devices=((GPU, 1),))) is Reason.FITS
    assert np.isfinite(InventoryPolicy().cost(fleet, Request(devices=((GPU, 1),)))[row])
    assert why(fleet, Request(1)) is Reason.NO_FREE_CPU


@given(st.integers(1, 1000), st.integers(1, 2**24 - 1), st.booleans())
def test_a_share_fits_exactly_into_what_is_left(milli, mib, too_little):
    """It takes its part of the memory rounded down: so much suffices, and a MiB less does not."""
    fleet, part = Fleet(), Request(shares=Shares(1, 1, memory_milli=milli))
    row = fleet.put(NodeSpec("n", 1000, 0, (Gpu(mib, divisible=True),)))
    takes = mib * milli // 1000
    assert share_mib(fleet, row, 0, part.shares) == takes
    less = int(too_little and takes > 0)
    fleet.take(Allocation(row, 0, 0, shares=((0, 0, mib - takes + less),)))
    assert (why(fleet, part) is Reason.FITS) == (not less)


counts = st.integers(1, 9) | st.integers(1, 2**80) | st.just(3_000_000_000)
amounts = st.integers(0, 2**80)
any_requests = st.builds(
    Request,
    amounts,
    amounts,
    st.lists(st.tuples(st.sampled_from([GPU, MIG, "gpu.intel.com/i915"]), counts), max_size=3).map(tuple),
    st.none()
    | st.builds(Shares, counts, st.integers(0, 1000), amounts, st.just(1), st.sampled_from(["", GPU])),
    island=st.booleans(),
    cuda=st.integers(0, 2**40),
    together=counts,
)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=examples(25))
@given(wanted=st.lists(any_requests, min_size=1, max_size=4))
def test_no_request_is_too_large_for_a_policy(name, wanted):
    fleet, policy = Fleet(nodes=4, gpus=5), POLICIES[name]()
    for shape in (counted_node("a"), divisible_node("b"), everything()):
        fleet.put(shape)
    for request in wanted:
        policy.observe(request)
    update_now(policy, fleet)
    for request in wanted:
        assert could_host(fleet, request) == (reasons_for(fleet, request) == Reason.FITS).any()
    for request in wanted:
        fits = reasons_for(fleet, request) == Reason.FITS
        assert np.isfinite(policy.cost(fleet, request)[fits]).all()
        for row in range(3):
            chosen = policy.choose(fleet, request, row)
            fleet.take(allocation_of(fleet, row, request, chosen or freest_gpus(fleet, row, request)))
        update_now(policy, fleet, Due.PRICES)
        open_nodes = (fleet.arrays.overcommitted == 0).sum() - 1
        assert np.isfinite(policy.cost(fleet, Request())).sum() == open_nodes


def test_what_is_too_much_for_anybody_is_cut():
    request = Request(2**70, 2**70, ((GPU, 2**70),), Shares(2**70, 1000, 2**70))
    assert (request.cpu_milli, request.memory_bytes) == (MOST, MOST)
    assert request.devices == ((GPU, MOST_DEVICES),)
    assert request.shares == Shares(MOST_DEVICES, 1000, MOST_DEVICES)
    assert request.gpus == MOST_DEVICES


def test_tables_that_cannot_be_used_leave_the_old_ones_in_force(monkeypatch):
    fleet, policy = Fleet(), InventoryPolicy(Mix.of({Request(devices=((GPU, 1),)): 1}))
    fleet.put(counted_node())
    update_now(policy, fleet)
    cost = policy.cost(fleet, Request(devices=((GPU, 1),))).copy()
    broken = replace(policy.tables, mix=Mix((None,), (1.0,)), slotted=Mix((None,), (1.0,)))
    monkeypatch.setattr(inventory, "build_tables", lambda *_: broken)
    with pytest.raises(AttributeError):
        update_now(policy, fleet)
    fleet.put(counted_node("a node of another model", model="other"))  # counts again with the old tables
    assert policy.cost(fleet, Request(devices=((GPU, 1),)))[0] == pytest.approx(cost[0], abs=0.2)


def test_a_resource_of_one_node_takes_no_slots_from_the_others():
    mix = Mix.of({Request(devices=((GPU, 1),)): 1, Request(devices=((MIG, 1),)): 1})
    fleet = Fleet(nodes=2)
    fleet.put(counted_node("a"))
    fleet.put(NodeSpec("b", 64_000, 512 * GIB, (Gpu(MIB),), (Pool(MIG, 7, (0,), 142, 10_000),)))
    slots = Slots(fleet, mix)
    slots.recount(nodes_of(fleet))
    of_kind = {request.devices[0][0]: i for i, request in enumerate(slots.requests)}
    assert slots.counts.slots[:, of_kind[GPU]].tolist() == [8, 0]
    assert slots.counts.slots[:, of_kind[MIG]].tolist() == [0, 7]


# Which requests any node could host.


@pytest.mark.parametrize(
    ("request_", "hostable"),
    [
        (Request(64_000, 512 * GIB, devices=((GPU, 8),)), True),
        (Request(64_001, devices=((GPU, 1),)), False),
        (Request(0, 512 * GIB + 1, devices=((GPU, 1),)), False),
        (Request(devices=((GPU, 9),)), False),
        (Request(devices=((GPU, 3_000_000_000),)), False),
        (Request(devices=((MIG, 1),)), False),
        (Request(shares=Shares(4, 300, 100, resource=GPU)), True),
        (Request(shares=Shares(4, 1, 100, resource=GPU)), False),  # less than the minimum
        (Request(shares=Shares(5, 300, 100, resource=GPU)), False),
        (Request(shares=Shares(1, 300, MIB + 1, resource=GPU)), False),
        (Request(shares=Shares(1, 300, 100, resource="volcano.sh/vgpu-number")), False),
        (Request(shares=Shares(3, 300, 100, resource=GPU), island=True), False),
        (Request(shares=Shares(2, 300, 100, resource=GPU), island=True), True),
        (Request(devices=((GPU, 2),), island=True), True),
        (Request(devices=((GPU, 3),), island=True), False),
        (Request(devices=((GPU, 1),), models=frozenset({"B200"})), False),
        (Request(shares=Shares(1, 300, 1, resource=GPU), uuids=NameFilter((frozenset({"b-3"}),))), True),
        (Request(shares=Shares(1, 300, 1, resource=GPU), uuids=NameFilter((frozenset({"c-3"}),))), False),
        (Request(devices=((GPU, 1),), cuda=12_004), False),
    ],
)
def test_what_some_node_could_host_when_empty(request_, hostable):
    fleet = Fleet(minimum_milli=50)
    assert not could_host(fleet, request_)
    fleet.put(counted_node("a", model="H100", blocked=Reason.REPARTITIONING))
    fleet.put(divisible_node("b", islands=((0, 1), (2, 3))))
    for row, held in ((0, Request(1 << 40, 1 << 50, devices=((GPU, 9),))), (1, Request(devices=((GPU, 4),)))):
        fleet.take(allocation_of(fleet, row, held, range(4) if row else ()))
    assert could_host(fleet, request_) == hostable
    fleet.remove("a")
    fleet.remove("b")
    assert not could_host(fleet, request_)


# Nominated pods.


def test_a_nominated_pod_on_a_full_node_does_not_close_it_for_others():
    pools = Pool(GPU, 2, (0, 1), 1000, MIB), Pool(MIG, 7, (2,), 142, 10_000)
    fleet, row = fleet_of(NodeSpec("n", 64_000, 512 * GIB, (Gpu(MIB),) * 3, pools)), 0
    fleet.take(allocation_of(fleet, row, Request(devices=((GPU, 2),))))
    before = arrays_of(fleet)
    with fleet.holding([allocation_of(fleet, row, Request(1000, devices=((GPU, 2),)))]):
        assert why(fleet, Request(1000, devices=((MIG, 7),))) is Reason.FITS
        assert why(fleet, Request(1000)) is Reason.FITS
        assert why(fleet, Request(devices=((GPU, 1),))) is Reason.NO_FREE_GPUS
    for name, array in arrays_of(fleet).items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


def test_a_nominated_pod_on_a_full_gpu_leaves_the_others():
    fleet, row = fleet_of(divisible_node(gpus=2)), 0
    fleet.take(Allocation(row, 0, 0, shares=((0, 1000, MIB),)))
    fleet.take(Allocation(row, 0, 0, shares=((1, 400, 1000),)))
    promised = Allocation(row, 0, 0, shares=((0, 500, 1000),))
    with fleet.holding([promised]):
        assert why(fleet, Request(shares=Shares(1, 600, 1000, resource=GPU))) is Reason.FITS


def test_a_node_without_its_victims_and_with_a_nominated_pod():
    fleet, row = fleet_of(counted_node()), 0
    victim, promise = (allocation_of(fleet, row, Request(devices=((GPU, n),))) for n in (8, 6))
    fleet.take(victim)
    other = allocation_of(fleet, row, Request(devices=((GPU, 4),)))
    with fleet.holding([promise]):
        with fleet.without([victim]):
            assert why(fleet, Request(devices=((GPU, 2),))) is Reason.FITS
            fleet.take(other)  # of 8 GPUs 4 are taken and 6 nominated
            assert why(fleet, Request()) is Reason.FITS
            fleet.give_back(other)
        assert why(fleet, Request(devices=((GPU, 2),))) is Reason.NO_FREE_GPUS
    assert not fleet.arrays.overcommitted[row]


def test_a_node_that_holds_too_much_stays_closed_with_a_nominated_pod():
    fleet, row = fleet_of(counted_node(gpus=2)), 0
    fleet.take(allocation_of(fleet, row, Request(devices=((GPU, 3),))))
    with fleet.holding([allocation_of(fleet, row, Request(devices=((GPU, 1),)))]):
        assert why(fleet, Request()) is Reason.OVERCOMMITTED
