"""The victim search: as cheap as exhaustion, and nothing of the fleet is changed by it."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import allocation_of
from packing.model.reasons import Reason
from packing.model.request import Request, Shares
from packing.victims.holdings import Holdings
from packing.victims.search import VictimSearch
from packing.victims.victim import Victim, VictimSet
from tests.examples import examples

from ..fleet.builders import GPU, arrays_of, counted_node, divisible_node, fleet_of
from .random_nodes import cheapest_by_exhaustion, fits_without, random_case, random_replicas


def as_cheap_as_exhaustion(random_node, seeds):
    """How many of the nodes need victims."""
    found = 0
    for seed in seeds:
        case = random_node(seed)
        search = VictimSearch(case.fleet, case.request)
        answer = search.on(0, case.victims, case.gangs, case.required)
        expected = cheapest_by_exhaustion(case)
        assert (answer is None) == (expected is None), seed
        if answer and expected:
            assert (answer.cost, answer.exact) == (expected.cost, True), seed
            found += bool(answer.victims)
        assert search.disagreements == 0, seed
    return found


@pytest.mark.parametrize("first", range(0, 2000, 500))
def test_the_search_is_as_cheap_as_exhaustion(first):
    """Nodes of all kinds; no answer comes from the slow search."""
    assert as_cheap_as_exhaustion(random_case, range(first, first + 500)) > 100


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_devices_on_different_gpus(first):
    assert as_cheap_as_exhaustion(random_replicas, range(first, first + 100)) > 20


@settings(max_examples=examples(100))
@given(st.integers(10_000, 1 << 40))
def test_the_fleet_is_as_before(seed):
    case = random_case(seed)
    before = arrays_of(case.fleet)
    VictimSearch(case.fleet, case.request).on(0, case.victims, case.gangs, case.required)
    after = arrays_of(case.fleet)
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array, err_msg=name)


@settings(max_examples=examples(40))
@given(st.integers(0, 1 << 40))
def test_no_victim_is_needless_on_a_larger_node(seed):
    """Also where the search was cut: no single victim and no whole gang can stay."""
    case = random_case(seed, pods=40, gpus=16, spread=1000)
    steps = random.Random(seed).choice([1, 5, 50, 20_000])
    search = VictimSearch(case.fleet, case.request, most_steps=steps)
    answer = search.on(0, case.victims, case.gangs, case.required)
    assert search.disagreements == 0
    if answer is None:
        return
    assert fits_without(case, answer.victims)
    assert case.required <= set(answer.victims)
    gang_of = [victim.gang for victim in case.victims]
    units = [{v} for v in answer.victims if gang_of[v] not in answer.gangs]
    units += [{v for v in answer.victims if gang_of[v] == gang} for gang in answer.gangs]
    for unit in units:
        if not unit & case.required:
            assert not fits_without(case, set(answer.victims) - unit)


def test_a_search_that_is_cut_says_so_and_costs_no_less_than_the_cheapest():
    cut = 0
    for seed in range(300):
        case = random_case(seed, pods=30, gpus=8, spread=1000)
        best = VictimSearch(case.fleet, case.request).on(0, case.victims, case.gangs, case.required)
        short = VictimSearch(case.fleet, case.request, most_steps=3)
        answer = short.on(0, case.victims, case.gangs, case.required)
        if answer and best and best.exact:
            assert best.cost <= answer.cost
            assert not answer.exact or answer.cost == best.cost
            cut += not answer.exact
    assert cut > 5


@settings(max_examples=examples(60))
@given(st.integers(0, 1 << 40))
def test_evicting_more_never_makes_a_request_stop_fitting(seed):
    case = random_case(seed, pods=20, gpus=8)
    order = random.Random(seed).sample(range(len(case.victims)), len(case.victims))
    answers = [fits_without(case, order[:count]) for count in range(len(order) + 1)]
    assert answers == sorted(answers)


def test_an_answer_is_the_same_with_kept_holdings_and_unconfirmed():
    for seed in range(300):
        case = random_case(seed)
        kept = Holdings.of(case.fleet, 0, [victim.held for victim in case.victims])
        on = VictimSearch(case.fleet, case.request).on
        asked = (0, case.victims, case.gangs, case.required)
        assert on(*asked) == on(*asked, holdings=kept) == on(*asked, holdings=kept, confirm=False)


def test_nominated_pods_hold_what_they_wait_for_but_do_not_close_the_node():
    fleet, request = Fleet(nodes=1, gpus=2), Request(shares=Shares(1, 500, memory_milli=500, resource=GPU))
    fleet.put(divisible_node(gpus=2))
    held = [allocation_of(fleet, 0, request, [gpu]) for gpu in (0, 0, 1, 1)]
    for one in held:
        fleet.take(one)
    victims = [Victim((one,), (cost,)) for one, cost in zip(held, (3.0, 4.0, 1.0, 9.0), strict=True)]
    with fleet.holding([allocation_of(fleet, 0, request, [1])]):
        answer = VictimSearch(fleet, request).on(0, victims)
    assert answer == VictimSet((0,), (), (3.0,))  # of GPU 1, both would have to leave


def test_an_overcommitted_node_is_freed_of_what_is_too_much():
    fleet, request = Fleet(nodes=1, gpus=2), Request(devices=((GPU, 1),))
    fleet.put(counted_node(gpus=2))
    held = [allocation_of(fleet, 0, request) for _ in range(4)]
    for one in held:
        fleet.take(one)
    victims = [Victim((one,), (cost,)) for one, cost in zip(held, (3.0, 4.0, 1.0, 9.0), strict=True)]
    assert VictimSearch(fleet, request).on(0, victims) == VictimSet((0, 1, 2), (), (8.0,))
    assert VictimSearch(fleet, Request()).on(0, victims) == VictimSet((0, 2), (), (4.0,))


def test_a_later_component_counts_only_where_the_first_ones_are_equal():
    fleet, request = Fleet(nodes=1, gpus=2), Request(devices=((GPU, 1),))
    fleet.put(counted_node(gpus=2))
    held = [allocation_of(fleet, 0, request) for _ in range(2)]
    for one in held:
        fleet.take(one)
    costs = (0.1 + 0.2, 5.0), (0.3, 4.0)  # equal but for rounding
    victims = [Victim((one,), cost) for one, cost in zip(held, costs, strict=True)]
    assert VictimSearch(fleet, request).on(0, victims) == VictimSet((1,), (), costs[1])


def test_no_victim_helps_on_a_blocked_node_or_for_a_gpu_that_is_not_there():
    fleet, request = Fleet(nodes=1, gpus=2), Request(devices=((GPU, 1),))
    fleet.put(counted_node(gpus=2, model="H100"))
    held = allocation_of(fleet, 0, Request(devices=((GPU, 2),)))
    fleet.take(held)
    victims = [Victim((held,), (1.0,))]
    assert VictimSearch(fleet, request).on(0, victims) is not None
    assert VictimSearch(fleet, replace(request, models=frozenset({"B200"}))).on(0, victims) is None
    assert VictimSearch(fleet, replace(request, cuda=12_004)).on(0, victims) is None
    fleet.block(0, Reason.REPARTITIONING)
    assert VictimSearch(fleet, request).on(0, victims) is None


def test_amounts_that_could_overflow_are_left_to_the_slow_search():
    fleet, request = Fleet(nodes=1, gpus=2), Request(1000)
    fleet.put(counted_node(gpus=2))
    held = [Allocation(0, 1 << 60, 0), Allocation(0, 100, 0), Allocation(0, 1 << 62, 0)]
    for one in held:
        fleet.take(one)
    victims = [Victim((one,), (float(cost),)) for cost, one in enumerate(held, 1)]
    assert VictimSearch(fleet, request).on(0, victims) == VictimSet((0, 2), (), (4.0,))


def test_holdings_of_other_victims_are_not_used():
    fleet, request = Fleet(nodes=1, gpus=2), Request(devices=((GPU, 1),))
    fleet.put(counted_node(gpus=2))
    held = [allocation_of(fleet, 0, request) for _ in range(2)]
    for one in held:
        fleet.take(one)
    victims = [Victim((one,), (cost,)) for one, cost in zip(held, (2.0, 1.0), strict=True)]
    others = Holdings.of(fleet, 0, [(held[0],)])
    answer = VictimSearch(fleet, request).on(0, victims, holdings=others)
    assert answer == VictimSet((1,), (), (1.0,))


def test_a_gang_that_is_not_given_is_refused():
    fleet, request = Fleet(nodes=1, gpus=2), Request(devices=((GPU, 1),))
    fleet.put(counted_node(gpus=2))
    with pytest.raises(ValueError, match="gang that is not given"):
        VictimSearch(fleet, request).on(0, [Victim((), (1.0,), gang=0)])


@pytest.mark.parametrize(
    ("together", "victims"), [((True, True), 1), ((False, False), 2), ((True, False), 1)]
)
def test_peers_that_a_device_plugin_is_sure_to_find(together: tuple[bool, bool], victims: int):
    """Two pairs, and two pods of two GPUs. Which GPUs they have is known only of pods that require peers: if
    such a pod stays, the other pair is free."""
    spec = counted_node("n", gpus=4, islands=((0, 1), (2, 3)))
    fleet = fleet_of(spec)
    held = [allocation_of(fleet, 0, Request(devices=((GPU, 2),), island=one)) for one in together]
    for one in held:
        fleet.take(one)
    search = VictimSearch(fleet, Request(devices=((GPU, 2),), island=True))
    pods = [Victim((one,), (float(cost),)) for cost, one in zip((2, 1), held, strict=True)]
    found = search.on(0, pods)
    assert found is not None
    assert len(found.victims) == victims
    if together == (True, False):
        assert found.victims == (1,)
