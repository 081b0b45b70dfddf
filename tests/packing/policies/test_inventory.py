"""The inventory policy: it keeps what must stay possible, and what it keeps per node equals a recount."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packing.cost.demand import Mix
from packing.cost.kernel_args import STEP, nodes_of
from packing.cost.slots import Slots
from packing.fleet.feasibility import reasons_for
from packing.fleet.fleet import Fleet
from packing.fleet.placement import allocation_of
from packing.model.node_spec import Gpu, NodeSpec, Pool
from packing.model.request import Request, Shares
from packing.policies.interface import Due, update_now
from packing.policies.inventory import InventoryPolicy
from tests.examples import examples

MIB = 40_960


def share(milli, cpu=0, count=1, mib=0):
    return Request(cpu, shares=Shares(count, milli, memory_mib=mib, memory_milli=0 if mib else milli))


MIX = Mix.of({share(250, 1000): 4, share(500, 2000): 3, share(1000, 4000): 2, share(1000, 8000, count=2): 1})


def node(name, gpus=4, cpu=32_000, **more):
    return NodeSpec(name, cpu, 262_144, tuple(Gpu(MIB, divisible=True) for _ in range(gpus)), **more)


def fleet_of(*nodes):
    fleet = Fleet(nodes=len(nodes), gpus=4)
    for one in nodes:
        fleet.put(one)
    return fleet


def ready(fleet, mix=MIX):
    policy = InventoryPolicy(mix)
    update_now(policy, fleet)
    return policy


def place(fleet, policy, request, row):
    held = allocation_of(fleet, row, request, policy.choose(fleet, request, row))
    fleet.take(held)
    return held


def test_a_node_has_no_slot_for_what_its_cpu_does_not_suffice_for():
    fleet = fleet_of(node("half", cpu=4000), node("one and a half", cpu=12_000))
    slots = Slots(fleet, Mix.of({share(500, 8000): 1}))
    slots.recount(nodes_of(fleet))
    assert slots.counts.slots[:, 0].tolist() == [0, 1.5]


def test_the_cost_is_infinite_exactly_where_the_request_does_not_fit():
    small, none = node("small", cpu=500), node("no gpu", gpus=0)
    fleet = fleet_of(small, none, node("model", model="x"), node("fits"))
    request = Request(1000, shares=Shares(1, 500, memory_milli=500), models=None)
    fits = np.isfinite(ready(fleet).cost(fleet, request))
    assert fits.tolist() == (reasons_for(fleet, request) == 0).tolist() == [False, False, True, True]


def test_learning_replaces_a_known_mix():
    fleet = fleet_of(node("a"))
    policy = InventoryPolicy()
    for _ in range(3):
        policy.observe(share(250))
    update_now(policy, fleet)
    assert policy.tables.mix.requests == (share(250),)


def test_costs_before_the_first_plan_follow_what_was_learned():
    fleet = fleet_of(node("a"), node("b"))
    learning = InventoryPolicy()
    for request in MIX.requests:
        learning.observe(request)
    untaught = InventoryPolicy()
    place(fleet, untaught, share(500), 0)
    terms = [policy.terms(fleet, share(250), 0)["slots"] for policy in (learning, untaught)]
    assert terms[0] > terms[1] == 0


def test_it_follows_a_fleet_that_grows():
    fleet = fleet_of(node("a"))
    policy = ready(fleet)
    policy.cost(fleet, share(500))
    fleet.put(node("b"))
    assert np.isfinite(policy.cost(fleet, share(500))).sum() == 2


others = share(330, 500), share(10), Request(3000), share(600, 100, mib=30_000)
requests = st.sampled_from([*MIX.requests, *others])


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(requests, st.integers(0, 2), st.booleans()), max_size=25))
def test_slots_kept_per_node_equal_a_recount(steps):
    fleet = fleet_of(node("a"), node("b", gpus=2, cpu=9000), node("c", gpus=1))
    policy, kept, held = ready(fleet), Slots(fleet, MIX), []
    for request, row, back in steps:
        if back and held:
            fleet.give_back(held.pop())
        elif np.isfinite(policy.cost(fleet, request)[row]):
            held.append(place(fleet, policy, request, row))
        kept.recount(nodes_of(fleet))
    kept.recount(nodes_of(fleet))
    afresh = Slots(fleet, MIX)
    afresh.recount(nodes_of(fleet))
    assert np.array_equal(kept.counts.slots, afresh.counts.slots)
    assert kept.counts.totals == pytest.approx(afresh.counts.slots.sum(axis=0, dtype=float), abs=1e-3)


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(requests, st.integers(0, 2)), max_size=25))
def test_placing_never_raises_slots_or_fill_nor_exceeds_a_gpu(steps):
    fleet = fleet_of(node("a"), node("b", gpus=2, cpu=9000), node("c", gpus=1))
    policy, slots = ready(fleet), Slots(fleet, MIX)
    slots.recount(nodes_of(fleet))
    for request, row in steps:
        if np.isfinite(policy.cost(fleet, request)[row]):
            before = slots.counts.slots.copy()
            terms = policy.terms(fleet, request, row)
            place(fleet, policy, request, row)
            slots.recount(nodes_of(fleet))
            assert (slots.counts.slots <= before + 1e-6).all()
            assert terms["slots"] >= 0
            assert terms["fill"] >= -1e-6
    assert (fleet.arrays.compute >= 0).all()
    assert (fleet.arrays.memory >= 0).all()
    assert not fleet.arrays.overcommitted.any()


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(requests, st.integers(0, 5), st.booleans()), max_size=25), st.integers(0, 25))
def test_cached_costs_equal_those_computed_for_every_node(steps, adopted):
    fleet = fleet_of(*[node(f"a{i}") for i in range(3)], *[node(f"b{i}", gpus=2, cpu=9000) for i in range(3)])
    kept, afresh, held = ready(fleet), ready(fleet), []
    for i, (request, row, back) in enumerate(steps):
        if i == adopted:
            kept.update(fleet, Due.PRICES)
            afresh.update(fleet, Due.PRICES)
        if back and held:
            fleet.give_back(held.pop())
        elif np.isfinite(kept.cost(fleet, request)[row]):
            held.append(place(fleet, kept, request, row))
    for request in MIX.requests:
        one, other = kept._costs(fleet, request), afresh._costs(fleet, request)
        assert np.array_equal(one.cost, other.cost)
        assert np.array_equal(one.gpus, other.gpus)
        fits = np.isfinite(one.cost)
        assert np.array_equal(one.terms[:, fits], other.terms[:, fits])


@settings(max_examples=examples(30))
@given(st.lists(requests, max_size=60), requests)
def test_a_fleet_that_is_only_filled_has_no_turnover_however_many_pods_have_arrived(arrived, request):
    fleet, first, later = fleet_of(node("a"), node("b")), *(InventoryPolicy(MIX, filling=True) for _ in "ab")
    for earlier in arrived:
        later.observe(earlier)
    for policy in (first, later):
        update_now(policy, fleet)
    place(fleet, first, share(250, 1000), 0)
    for policy in (first, later):
        update_now(policy, fleet, Due.PRICES)
    assert first.cost(fleet, request).tolist() == later.cost(fleet, request).tolist()


def test_known_costs_follow_when_most_of_the_pods_have_ended():
    """A fraction is preferred at any price while the fleet fills up, and then where slots cost the same."""
    fleet = Fleet(nodes=2, gpus=2)
    for name, parts in (("whole", 1), ("parts", 4)):
        pool = Pool("gpu", 2 * parts, (0, 1), 1000 // parts, MIB // parts, separate=2)
        fleet.put(NodeSpec(name, 64_000, 262_144, (Gpu(MIB),) * 2, (pool,)))
    request = Request(devices=(("gpu", 1),))
    policy, again = (InventoryPolicy(Mix.of({request: 1})) for _ in range(2))
    update_now(policy, fleet)
    before = policy.terms(fleet, request, fleet.rows["whole"])["device"]
    for _ in range(20):
        policy.observe(request)
        again.observe(request)
    update_now(policy, fleet, Due.PRICES)
    update_now(again, fleet)
    assert policy.terms(fleet, request, fleet.rows["whole"])["device"] < before / 4
    assert policy.cost(fleet, request).tolist() == again.cost(fleet, request).tolist()


def test_a_refresh_solves_again_when_enough_gpus_are_in_another_state():
    fleet = fleet_of(*(node(f"n{i}") for i in range(5)))
    policy = ready(fleet)
    assert policy.update(fleet, Due.PRICES) is None
    place(fleet, policy, share(250), 0)
    place(fleet, policy, share(250), 1)
    assert policy.update(fleet, Due.PRICES) is None  # two of twenty
    for row in range(2, 5):
        place(fleet, policy, share(250), row)
    solve = policy.update(fleet, Due.PRICES)
    assert solve is not None
    before = policy.cost(fleet, share(500)).tolist()  # at the new prices
    adopt = solve()
    assert policy.cost(fleet, share(500)).tolist() == before  # not before it is adopted
    adopt()
    assert policy.update(fleet, Due.PRICES) is None
    again = ready(fleet)
    for request in MIX.requests:
        assert policy.cost(fleet, request).tolist() == again.cost(fleet, request).tolist()


def test_tables_for_nodes_that_are_gone_are_adopted_all_the_same():
    fleet = fleet_of(*(node(f"n{i}") for i in range(4)))
    policy = ready(fleet)
    for row in range(4):
        place(fleet, policy, share(250), row)
    solve = policy.update(fleet, Due.PRICES)
    assert solve is not None
    fleet.put(node("new"))
    solve()()
    again = ready(fleet)
    assert policy.cost(fleet, share(1000)).argmin() == again.cost(fleet, share(1000)).argmin()


def test_a_small_request_leaves_whole_the_gpu_that_two_others_need_together():
    """Every single type still fits beside 0.05; 0.45 and 0.55 together do not."""
    mix = Mix.of({share(50): 50, share(450): 20, share(550): 15, share(950): 15})
    fleet = fleet_of(node("empty", gpus=1), node("cut", gpus=1), node("also empty", gpus=1))
    policy = ready(fleet, mix)
    place(fleet, policy, share(450), 1)
    place(fleet, policy, share(450), 1)
    assert policy.cost(fleet, share(50)).argmin() == 1


@settings(max_examples=examples(40))
@given(
    st.lists(st.sampled_from([0, 100, 250, 900]), min_size=4, max_size=4),
    st.sampled_from([(250, 1), (300, 1), (1000, 1), (1000, 2), (1000, 3)]),
)
def test_a_slot_that_is_nearly_there_counts_a_little(taken, kind):
    """Whole slots as by hand, and three tenths of the third power of the rest."""
    milli, count = kind
    fleet = fleet_of(node("n"))
    for gpu, part in enumerate(taken):
        if part:
            fleet.take(allocation_of(fleet, 0, share(part), (gpu,)))
    slots = Slots(fleet, Mix.of({share(milli, count=count): 1}))
    slots.recount(nodes_of(fleet))

    def expected(room):
        whole = np.floor(room + 1e-4)
        return whole + 0.3 * max(room - whole, 0) ** 3

    units = [expected((1000 - part) / milli) for part in taken]
    found = sum(units) if count == 1 else expected(sum(min(one, 1) for one in units) / count)
    assert slots.counts.slots[0, 0] == pytest.approx(found, abs=4.1 / 1024)


@pytest.mark.parametrize(("free", "size"), [(8, 8), (7, 8), (7, 2), (3, 4), (5, 4), (0, 1)])
def test_a_slot_of_counted_devices_that_is_nearly_there_counts_as_little(free, size):
    spec = NodeSpec("n", 32_000, 1 << 38, (Gpu(MIB),) * 8, (Pool("gpu", 8, tuple(range(8)), 1000, MIB),))
    fleet = fleet_of(spec)
    if free < 8:
        fleet.take(allocation_of(fleet, 0, Request(devices=(("gpu", 8 - free),))))
    slots = Slots(fleet, Mix.of({Request(devices=(("gpu", size),)): 1}))
    slots.recount(nodes_of(fleet))
    expected = free // size + 0.3 * (free / size % 1) ** 3
    assert slots.counts.slots[0, 0] == pytest.approx(expected, abs=1.1 / 1024)


def test_whole_domains_stay_free():
    """Equal nodes, the last of them in a domain of which another node is taken: that one goes first, by the
    part of its domain that is idle."""
    fleet = fleet_of(*(node(f"n{i}") for i in range(6)))
    policy = ready(fleet)
    before = policy.cost(fleet, share(1000, 8000, count=2)).copy()
    for i in range(6):
        fleet.network.put(f"n{i}", (f"rack {i // 3}", "", "spine", ""))
    place(fleet, policy, share(1000, 4000), 5)
    cost = policy.cost(fleet, share(1000, 8000, count=2))
    idle = [(1 + 5 / 6) / 2] * 3 + [(2 / 3 + 5 / 6) / 2] * 2
    assert (cost - before)[:5] == pytest.approx([STEP * part for part in idle], abs=1e-5)
    terms = policy.terms(fleet, share(1000, 8000, count=2), 3)
    assert terms["domains"] == pytest.approx(STEP * idle[3])


def test_a_node_has_no_part_of_a_slot_that_it_can_never_have():
    spec = NodeSpec("n", 32_000, 1 << 38, (Gpu(MIB),) * 4, (Pool("gpu", 4, tuple(range(4)), 1000, MIB),))
    slots = Slots(
        fleet_of(spec), Mix.of({Request(devices=(("gpu", 8),)): 1, Request(devices=(("gpu", 3),)): 1})
    )
    slots.recount(nodes_of(fleet_of(spec)))
    by_size = dict(zip((r.gpus for r in slots.requests), slots.counts.slots[0].tolist(), strict=False))
    assert by_size == {8: 0, 3: 1}
