"""The books: whole numbers that never drift, refuse nothing for rounding, and have room for any number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packing.cost.demand import MOST_TYPES, Demand, Mix
from packing.cost.kernel_args import nodes_of
from packing.cost.slots import Slots
from packing.fleet.feasibility import could_host, reasons_for
from packing.fleet.fleet import Fleet
from packing.fleet.names import MOST_KINDS, MOST_RESOURCES, TooMany
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import allocation_of, freest_gpus, share_mib
from packing.model.mig_instances import Instance, window
from packing.model.node_spec import MOST_GPUS, Gpu, NodeSpec, Pool
from packing.model.reasons import Reason
from packing.model.request import (
    ANY,
    MOST,
    MOST_DEVICES,
    ModelName,
    Models,
    NameFilter,
    Request,
    Shares,
    whole_gpus,
)
from packing.policies.inventory import Inventory, Tables
from packing.policies.registry import POLICIES

GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
MIB, GIB = 80_000, 1 << 30


def counted(name: str = "n", gpus: int = 8, **more) -> NodeSpec:
    pools = (Pool(GPU, gpus, tuple(range(gpus)), 1000, MIB),) if gpus else ()
    return NodeSpec(name, 64_000, 512 * GIB, (Gpu(MIB),) * gpus, pools, **more)


def divided(name: str = "n", gpus: int = 4, **more) -> NodeSpec:
    cards = tuple(Gpu(MIB, divisible=True, uuid=f"{name}-{i}") for i in range(gpus))
    pool = Pool(GPU, gpus, tuple(range(gpus)), 1000, MIB)
    return NodeSpec(name, 64_000, 512 * GIB, cards, (pool,), sharing_resource=GPU, **more)


def everything() -> NodeSpec:
    """Two GPUs that are divided, two of which a plugin counts whole ones and MIG instances, and one that is
    divided into MIG instances on demand."""
    small, large = (
        Instance("1g", 142, 10_000, tuple(window(i, 1) for i in range(7))),
        Instance("4g", 571, 40_000, (window(0, 4),)),
    )
    cards = (*[Gpu(MIB, True)] * 2, *[Gpu(MIB)] * 2, Gpu(40_000, True, 571, instances=(small, large)))
    pools = Pool(GPU, 2, (2, 3), 1000, MIB), Pool(MIG, 7, (3,), 142, 10_000, each=(7,))
    return NodeSpec("n", 64_000, 512 * GIB, cards, pools, sharing_resource="share")


def why(fleet: Fleet, request: Request, node: str = "n") -> Reason:
    return Reason(int(reasons_for(fleet, request)[fleet.rows[node]]))


def arrays_of(fleet: Fleet) -> dict[str, np.ndarray]:
    return {
        name: array.copy()
        for name, array in vars(fleet.arrays).items()
        if isinstance(array, np.ndarray) and name != "generation"
    }


huge = st.one_of(st.integers(0, 70_000), st.integers(0, 2**63 - 1), st.just(2**63 - 1), st.just(2**24 + 1))
allocations = st.builds(
    lambda cpu, memory, gpus, mib, whole, mig, mask: Allocation(
        0,
        cpu,
        memory,
        tuple((i, count) for i, count in enumerate((whole, mig)) if count),
        tuple((gpu, 1000 if mask else 333, mib) for gpu in sorted(gpus)),
        ((4, mask),) if mask and 4 in gpus else (),
    ),
    huge,
    huge,
    st.sets(st.integers(0, 4)),
    huge,
    st.integers(0, 3) | st.just(MOST_DEVICES),
    st.integers(0, 3) | st.just(MOST_DEVICES),
    st.integers(0, 127),
)


@settings(deadline=None)
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
    fleet = Fleet()
    row = fleet.put(counted())
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
    for request, reason in (
        (fits, Reason.FITS),
        (Request(1, everything_of_it + 1), Reason.NO_FREE_MEMORY),
    ):
        assert why(fleet, request) is reason
        assert np.isfinite(policy.cost(fleet, request)[0]) == (reason is Reason.FITS)


def test_memory_in_mib_is_rounded_against_the_promise():
    assert Request(memory_bytes=(1 << 20) + 1).memory_mib == 2
    assert NodeSpec("n", 0, (2 << 20) - 1).memory_mib == 1


def test_a_pod_that_asks_for_no_cpu_fits_where_more_is_taken_than_there_is():
    """As kube-scheduler has it: what is not asked for is not compared."""
    fleet = Fleet()
    row = fleet.put(counted())
    fleet.take(Allocation(row, 65_000, 513 * GIB))
    assert why(fleet, Request(devices=((GPU, 1),))) is Reason.FITS
    assert np.isfinite(Inventory().cost(fleet, Request(devices=((GPU, 1),)))[row])
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
    st.lists(st.tuples(st.just("1g.10gb"), counts), max_size=1).map(tuple),
    island=st.booleans(),
    cuda=st.integers(0, 2**40),
    together=counts,
)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=25, deadline=None)
@given(wanted=st.lists(any_requests, min_size=1, max_size=4))
def test_no_request_is_too_large_for_a_policy(name, wanted):
    fleet, policy = Fleet(nodes=4, gpus=5), POLICIES[name]()
    for shape in (counted("a"), divided("b"), everything()):
        fleet.put(shape)
    for request in wanted:
        policy.observe(request)
    policy.adopt(fleet, policy.plan(fleet)())
    for request in wanted:
        assert could_host(fleet, request) == (reasons_for(fleet, request) == Reason.FITS).any()
    for request in wanted:
        fits = reasons_for(fleet, request) == Reason.FITS
        assert np.isfinite(policy.cost(fleet, request)[fits]).all()
        for row in range(3):
            chosen = policy.choose(fleet, request, row)
            fleet.take(allocation_of(fleet, row, request, chosen or freest_gpus(fleet, row, request)))
        policy.refresh(fleet)
        assert (
            np.isfinite(policy.cost(fleet, Request())).sum()
            == (~fleet.arrays.overcommitted.astype(bool)).sum() - 1
        )


def test_what_is_too_much_for_anybody_is_cut():
    request = Request(2**70, 2**70, ((GPU, 2**70),), Shares(2**70, 1000, 2**70))
    assert (request.cpu_milli, request.memory_bytes) == (MOST, MOST)
    assert request.devices == ((GPU, MOST_DEVICES),)
    assert request.shares == Shares(MOST_DEVICES, 1000, MOST_DEVICES)
    assert request.gpus == MOST_DEVICES


def test_tables_that_cannot_be_used_leave_the_old_ones_in_force():
    fleet, policy = Fleet(), Inventory(Mix.of({Request(devices=((GPU, 1),)): 1}))
    fleet.put(counted())
    policy.adopt(fleet, good := policy.plan(fleet)())
    cost = policy.cost(fleet, Request(devices=((GPU, 1),))).copy()
    assert isinstance(good, Tables)
    broken = Tables(Mix((None,), (1.0,)), good.memory_mib, good.fill)
    with pytest.raises(AttributeError):
        policy.adopt(fleet, broken)
    fleet.put(counted("a node of another model", model="other"))  # all is counted anew, from the old tables
    assert policy.cost(fleet, Request(devices=((GPU, 1),)))[0] == pytest.approx(cost[0], abs=0.2)


def test_a_resource_of_one_node_takes_no_slots_from_the_others():
    mix = Mix.of({Request(devices=((GPU, 1),)): 1, Request(devices=((MIG, 1),)): 1})
    fleet = Fleet(nodes=2)
    fleet.put(counted("a"))
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
    fleet.put(counted("a", model="H100", blocked=Reason.REPARTITIONING))
    fleet.put(divided("b", islands=((0, 1), (2, 3))))
    for row, held in ((0, Request(1 << 40, 1 << 50, devices=((GPU, 9),))), (1, Request(devices=((GPU, 4),)))):
        fleet.take(allocation_of(fleet, row, held, range(4) if row else ()))
    assert could_host(fleet, request_) == hostable
    fleet.remove("a")
    fleet.remove("b")
    assert not could_host(fleet, request_)


# Pods that are promised a node.


def test_a_promise_on_a_full_node_does_not_close_it_for_others():
    pools = Pool(GPU, 2, (0, 1), 1000, MIB), Pool(MIG, 7, (2,), 142, 10_000)
    fleet = Fleet()
    row = fleet.put(NodeSpec("n", 64_000, 512 * GIB, (Gpu(MIB),) * 3, pools))
    fleet.take(allocation_of(fleet, row, Request(devices=((GPU, 2),))))
    before = arrays_of(fleet)
    with fleet.holding([allocation_of(fleet, row, Request(1000, devices=((GPU, 2),)))]):
        assert why(fleet, Request(1000, devices=((MIG, 7),))) is Reason.FITS
        assert why(fleet, Request(1000)) is Reason.FITS
        assert why(fleet, Request(devices=((GPU, 1),))) is Reason.NO_FREE_GPUS
    for name, array in arrays_of(fleet).items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


def test_a_promise_on_a_full_gpu_leaves_the_others():
    fleet = Fleet()
    row = fleet.put(divided(gpus=2))
    fleet.take(Allocation(row, 0, 0, shares=((0, 1000, MIB),)))
    fleet.take(Allocation(row, 0, 0, shares=((1, 400, 1000),)))
    promised = Allocation(row, 0, 0, shares=((0, 500, 1000),))
    with fleet.holding([promised]):
        assert why(fleet, Request(shares=Shares(1, 600, 1000, resource=GPU))) is Reason.FITS


def test_what_if_victims_were_gone_under_a_promise():
    fleet = Fleet()
    row = fleet.put(counted())
    victim, promise = (allocation_of(fleet, row, Request(devices=((GPU, n),))) for n in (8, 6))
    fleet.take(victim)
    other = allocation_of(fleet, row, Request(devices=((GPU, 4),)))
    with fleet.holding([promise]):
        with fleet.without([victim]):
            assert why(fleet, Request(devices=((GPU, 2),))) is Reason.FITS
            fleet.take(other)  # 4 are taken and 6 promised of 8
            assert why(fleet, Request()) is Reason.FITS
            fleet.give_back(other)
        assert why(fleet, Request(devices=((GPU, 2),))) is Reason.NO_FREE_GPUS
    assert not fleet.arrays.overcommitted[row]


def test_a_node_that_holds_too_much_stays_closed_under_a_promise():
    fleet = Fleet()
    row = fleet.put(counted(gpus=2))
    fleet.take(allocation_of(fleet, row, Request(devices=((GPU, 3),))))
    with fleet.holding([allocation_of(fleet, row, Request(devices=((GPU, 1),)))]):
        assert why(fleet, Request()) is Reason.OVERCOMMITTED


# NVLink islands where Stowage chooses the GPUs.


def island_of(*, taken: tuple[int, ...], islands=((0, 1), (2, 3)), gpus: int = 4) -> Fleet:
    fleet = Fleet()
    row = fleet.put(divided(gpus=gpus, islands=islands))
    for gpu in taken:
        fleet.take(Allocation(row, 0, 0, shares=((gpu, 1000, MIB),)))
    return fleet


PEERS = [
    Request(devices=((GPU, 2),), island=True),
    Request(shares=Shares(2, 500, 1, resource=GPU), island=True),
]


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("request_", PEERS, ids=["whole", "shares"])
def test_gpus_of_one_island_are_chosen(name, request_):
    fleet = island_of(taken=(0,))
    assert why(fleet, request_) is Reason.FITS
    assert sorted(POLICIES[name]().choose(fleet, request_, 0)) == [2, 3]
    assert sorted(freest_gpus(fleet, 0, request_)) == [2, 3]


@pytest.mark.parametrize(
    ("taken", "islands", "reason"),
    [
        ((0, 2), ((0, 1), (2, 3)), Reason.NO_FREE_PEERS),
        ((0, 1), ((0, 1), (2, 3)), Reason.FITS),
        ((0, 1, 2, 3), ((0, 1), (2, 3)), Reason.NO_FREE_GPUS),
        ((), (), Reason.ISLAND_TOO_SMALL),
        ((), ((0, 9),), Reason.ISLAND_TOO_SMALL),  # names a GPU that the node does not have
        ((0,), ((0, 1),), Reason.NO_FREE_PEERS),
    ],
)
@pytest.mark.parametrize("request_", PEERS, ids=["whole", "shares"])
def test_why_no_island_will_do(taken, islands, reason, request_):
    fleet = island_of(taken=taken, islands=islands)
    assert why(fleet, request_) is reason
    assert np.isfinite(Inventory().cost(fleet, request_)[0]) == (reason is Reason.FITS)


def test_a_small_island_goes_before_a_large_one():
    fleet = island_of(taken=(), islands=((0, 1, 2, 3), (4, 5)), gpus=6)
    for name in POLICIES:
        assert sorted(POLICIES[name]().choose(fleet, PEERS[0], 0)) == [4, 5], name


@st.composite
def states(draw) -> tuple[Fleet, Request]:
    """A node with GPUs in random islands, some of them sick or partly taken, and a request for peers."""
    gpus = draw(st.integers(1, 6))
    order = draw(st.permutations(range(gpus)))
    cuts = sorted(draw(st.sets(st.integers(1, max(gpus - 1, 1)))))
    islands = tuple(tuple(order[a:b]) for a, b in zip([0, *cuts], [*cuts, gpus], strict=True) if b > a)
    sick = draw(st.sets(st.integers(0, gpus - 1), max_size=2))
    cards = tuple(Gpu(MIB, i not in sick, uuid=f"GPU-{i}") for i in range(gpus))
    healthy = tuple(i for i in range(gpus) if i not in sick)
    pools = (Pool(GPU, len(healthy), healthy, 1000, MIB),) if healthy else ()
    islands = tuple(draw(st.sets(st.sampled_from(islands)))) if islands else ()
    fleet = Fleet(nodes=1, gpus=6)
    fleet.put(NodeSpec("n", 64_000, 512 * GIB, cards, pools, islands=islands, sharing_resource=GPU))
    for gpu in range(gpus):
        if milli := draw(st.sampled_from([0, 0, 300, 700, 1000])):
            fleet.take(Allocation(0, 0, 0, shares=((gpu, milli, 80 * milli),)))
    count = draw(st.integers(1, 4))
    milli = draw(st.sampled_from([0, 300, 500]))
    parts = Request(shares=Shares(count, milli, 24_000, resource=GPU), island=True)
    named = NameFilter((frozenset(f"GPU-{i}" for i in draw(st.sets(st.integers(0, 5)))),))
    whole = Request(devices=((GPU, count),), island=True)
    only = Request(shares=Shares(count, 300, 1, resource=GPU), island=True, uuids=named)
    return fleet, draw(st.sampled_from([parts, whole, only]))


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=60, deadline=None)
@given(states())
def test_it_fits_where_one_island_has_the_gpus_and_they_are_chosen_there(name, state):
    fleet, request = state
    shape, policy = fleet.specs[0], POLICIES[name]()
    assert shape is not None
    part = request.shares or whole_gpus(request.devices[0][1])

    def fits(gpu: int) -> bool:
        free = fleet.arrays.compute[gpu, 0], fleet.arrays.memory[gpu, 0]
        need = max(part.compute_milli, 1), part.memory_mib + part.memory_milli * MIB // 1000
        card = shape.gpus[gpu]
        return card.divisible and free >= need and free[1] >= need[1] and request.uuids.permits(card.uuid)

    grouped = {gpu for island in shape.islands for gpu in island}
    groups = [*shape.islands, *((gpu,) for gpu in range(len(shape.gpus)) if gpu not in grouped)]
    able = [{gpu for gpu in group if fits(gpu)} for group in groups]
    able = [group for group in able if len(group) >= part.count]
    assert (why(fleet, request) is Reason.FITS) == bool(able)
    if request.uuids is ANY:  # policies leave names of GPUs to ``reasons``
        assert np.isfinite(policy.cost(fleet, request)[0]) == bool(able)
    if able:
        fewest = min(map(len, able))
        chosen = policy.choose(fleet, request, 0)
        assert len(chosen) == len(set(chosen)) == part.count
        assert any(set(chosen) <= group for group in able if len(group) == fewest)
        assert any(set(freest_gpus(fleet, 0, request)) <= group for group in able)


# What nodes can make grow.


def test_resources_are_bounded_and_those_that_no_node_has_are_forgotten():
    fleet = Fleet()
    fleet.put(counted("honest"))
    cost = Inventory()
    for i in range(3 * MOST_RESOURCES):
        pools = (Pool(f"nvidia.com/mig-{i}g.1gb", 1, (0,), 1000, MIB), Pool("x", 1, (0,), 1000, MIB))
        fleet.put(NodeSpec("rogue", 1000, GIB, (Gpu(MIB),), pools))
        held = allocation_of(fleet, 1, Request(devices=((f"nvidia.com/mig-{i}g.1gb", 1),)))
        fleet.take(held)
        assert why(fleet, Request(devices=((GPU, 8),)), "honest") is Reason.FITS
        assert why(fleet, Request(devices=((f"nvidia.com/mig-{i}g.1gb", 1),)), "rogue") is Reason.NO_FREE_GPUS
        if i % 50 == 0:
            assert np.isfinite(cost.cost(fleet, Request(devices=((GPU, 8),)))).tolist()[:2] == [True, False]
    assert len(fleet.names.resources) <= len(fleet.arrays.free_devices) <= MOST_RESOURCES


def test_a_node_with_too_many_resources_stays_as_it_was():
    fleet = Fleet()
    fleet.put(counted())
    before, names = arrays_of(fleet), dict(fleet.names.resources)
    pools = tuple(Pool(f"r{i}", 1, (0,), 1, 1) for i in range(MOST_RESOURCES))
    with pytest.raises(TooMany, match="different resources"):
        fleet.put(NodeSpec("n", 1, 1, (Gpu(MIB),), (*pools, Pool(GPU, 1, (0,), 1000, MIB))))
    with pytest.raises(TooMany, match="GPUs on one node"):
        fleet.put(NodeSpec("n", 1, 1, (Gpu(MIB),) * (MOST_GPUS + 1)))
    assert fleet.names.resources == names
    for name, array in arrays_of(fleet).items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


def test_kinds_of_gpus_are_bounded_and_those_that_no_node_has_are_forgotten():
    fleet = Fleet()
    only = Request(devices=((GPU, 1),), products=Models((frozenset({ModelName.of("honest")}),)))
    fleet.put(counted("honest", product="honest"))
    for i in range(2 * MOST_KINDS):
        fleet.put(counted("rogue", product=f"product {i}"))
        assert (why(fleet, only, "honest"), why(fleet, only, "rogue")) == (Reason.FITS, Reason.WRONG_MODEL)
    assert len(fleet.names.products) <= MOST_KINDS
    for i in range(MOST_KINDS):
        try:
            fleet.put(counted(f"rogue {i}", product=f"product {i}"))
        except TooMany:
            break
    else:
        pytest.fail("there is no bound")
    assert len(fleet.names.products) <= MOST_KINDS
    assert why(fleet, only, "honest") is Reason.FITS


def test_demand_remembers_the_requests_that_come_most():
    demand = Demand()
    for _ in range(5):
        demand.observe(Request(devices=((GPU, 1),)))
    for i in range(5 * MOST_TYPES):
        demand.observe(Request(i, devices=((GPU, 2),)))
    assert len(demand._counts) <= 2 * MOST_TYPES
    assert Request(devices=((GPU, 1),)) in demand._counts
