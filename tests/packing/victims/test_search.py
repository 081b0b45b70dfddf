"""The victim search: nearly as cheap as exhaustion, and nothing of the fleet is changed by it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import allocation_of
from packing.model.reasons import Reason
from packing.model.request import Request, Shares
from packing.victims.victims import GangCost, VictimSet
from tests.examples import examples, some

from ..fleet.builders import GPU, arrays_of, counted_node, divisible_node, fleet_of
from .random_nodes import (
    Case,
    Victim,
    cheapest_by_exhaustion,
    fits_without,
    random_case,
    random_replicas,
    search_among,
    set_of,
    units_in,
)


def search(case: Case, **options) -> VictimSet | None:
    asked = case.fleet, case.request, case.victims, case.gangs, case.required, case.proposed
    return search_among(*asked, **options)


def compare_with_exhaustion(random_node, seeds) -> Counter[str]:
    """How many answers need victims, how many of these cost more than need be, and for how many nodes a set
    was missed. An answer that does not fit would cost less than the cheapest."""
    counts = Counter[str]()
    for seed in seeds:
        case = random_node(seed)
        answer, expected = search(case), cheapest_by_exhaustion(case)
        if expected is None:
            assert answer is None, seed
        elif answer is None:
            assert any(gang.whole is None for gang in case.gangs), seed
            counts["missed"] += 1
        elif expected.victims:
            assert answer.cost >= expected.cost, seed
            counts.update(found=1, dearer=answer.cost > expected.cost)
    return counts


@pytest.mark.parametrize("first", some(map(str, range(0, 2000, 200)), 1))
def test_few_answers_cost_more_than_the_cheapest(first):
    """Nodes of all kinds. A set is hardly ever missed, and only beside gangs of which some must stay."""
    counts = compare_with_exhaustion(random_case, range(int(first), int(first) + 200))
    assert counts["found"] > 40
    assert counts["dearer"] <= 2  # of about 100
    assert counts["missed"] <= 1


def test_devices_on_different_gpus():
    seeds = examples(300, least=100)
    counts = compare_with_exhaustion(random_replicas, range(seeds))
    assert counts["found"] > 0.2 * seeds
    assert counts["dearer"] < 0.04 * counts["found"]
    assert counts["missed"] == 0


def counted(*pods: tuple[int, float, int]) -> tuple[Fleet, list[Victim]]:
    """A node that is full of pods with so many counted GPUs, such a cost and gang."""
    fleet = Fleet(nodes=1, gpus=2)
    fleet.put(counted_node(gpus=sum(gpus for gpus, *_ in pods)))
    held = [allocation_of(fleet, 0, Request(devices=((GPU, gpus),))) for gpus, *_ in pods]
    for one in held:
        fleet.take(one)
    return fleet, [Victim((one,), (cost,), gang) for one, (_, cost, gang) in zip(held, pods, strict=True)]


def test_one_large_pod_that_costs_less_than_several_small_ones():
    fleet, pods = counted((2, 17.0, -1), (1, 9.0, -1), (1, 9.0, -1), (1, 9.5, -1), (1, 9.5, -1))
    assert search_among(fleet, Request(devices=((GPU, 2),)), pods) == VictimSet((0,), (), (17.0,))


def test_a_proposed_set_that_the_search_would_not_find():
    small = [(1, 9.0, -1)] * 4 + [(1, 9.5, -1)] * 4
    fleet, pods = counted((2, 17.0, -1), (2, 17.0, -1), *small)
    request = Request(devices=((GPU, 4),))
    answers = [search_among(fleet, request, pods, proposed=proposed) for proposed in ((), (0, 1, 9))]
    assert [answer and answer.cost for answer in answers] == [(36.0,), (34.0,)]


def test_where_a_whole_gang_leaves_others_stay():
    fleet, pods = counted((1, 1.2, 0), (1, 1.2, 0), (1, 1.0, -1), (1, 0.5, -1))
    request, gangs = Request(devices=((GPU, 3),)), [GangCost(0, (2.4,))]
    assert search_among(fleet, request, pods, gangs, roughly=True) == VictimSet((0, 1, 3), (0,), (2.9,))


def large_case(seed: int) -> Case:
    """Up to 40 pods on up to 16 GPUs, and a proposed set of which nothing is known."""
    case, rng = random_case(seed, pods=40, gpus=16, spread=1000), random.Random(seed)
    proposed = [v for v in range(len(case.victims)) if v in case.required or rng.random() < 0.7]
    return replace(case, proposed=tuple(proposed))


@settings(max_examples=examples(100))
@given(st.integers(10_000, 1 << 40))
def test_the_fleet_is_as_before(seed):
    case = random_case(seed)
    before = arrays_of(case.fleet)
    search(case)
    after = arrays_of(case.fleet)
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array, err_msg=name)


@settings(max_examples=examples(100))
@given(st.integers(0, 1 << 40), st.booleans())
def test_an_answer_fits_keeps_the_rules_and_contains_nobody_without_need(seed, roughly):
    """Amounts say the same as the fleet, which does not confirm the answer."""
    case = large_case(seed)
    answer = search(case, roughly=roughly)
    if answer is None:
        return
    assert fits_without(case, answer.victims)
    assert case.required <= set(answer.victims)
    allowed = set_of(case, answer.victims)
    assert allowed is not None
    assert (allowed.gangs, allowed.cost) == (answer.gangs, pytest.approx(answer.cost))
    for unit in units_in(case, answer):
        if not unit & case.required:
            assert not fits_without(case, set(answer.victims) - unit)


@settings(max_examples=examples(100))
@example(390_069_166_071)  # a member that must leave, of a gang that leaves at less cost as a whole
@given(st.integers(0, 1 << 40))
def test_no_single_unit_and_no_proposed_set_costs_less(seed):
    case = large_case(seed)
    answer = search(case)
    gang_of = [victim.gang for victim in case.victims]
    gangs = [{v for v, gang in enumerate(gang_of) if gang == number} for number in range(len(case.gangs))]
    for chosen in [*({v} for v in range(len(case.victims))), *gangs, set(case.proposed)]:
        allowed = set_of(case, chosen | case.required)
        if allowed and fits_without(case, allowed.victims):
            assert answer is not None
            assert answer.cost <= allowed.cost


@settings(max_examples=examples(60))
@given(st.integers(0, 1 << 40))
def test_evicting_more_never_makes_a_request_stop_fitting(seed):
    case = random_case(seed, pods=20, gpus=8)
    order = random.Random(seed).sample(range(len(case.victims)), len(case.victims))
    answers = [fits_without(case, order[:count]) for count in range(len(order) + 1)]
    assert answers == sorted(answers)


def test_nominated_pods_hold_what_they_wait_for_but_do_not_close_the_node():
    fleet, request = Fleet(nodes=1, gpus=2), Request(shares=Shares(1, 500, memory_milli=500, resource=GPU))
    fleet.put(divisible_node(gpus=2))
    held = [allocation_of(fleet, 0, request, [gpu]) for gpu in (0, 0, 1, 1)]
    for one in held:
        fleet.take(one)
    victims = [Victim((one,), (cost,)) for one, cost in zip(held, (3.0, 4.0, 1.0, 9.0), strict=True)]
    with fleet.holding([allocation_of(fleet, 0, request, [1])]):
        answer = search_among(fleet, request, victims)
    assert answer == VictimSet((0,), (), (3.0,))  # of GPU 1, both would have to leave


def test_an_overcommitted_node_is_freed_of_what_is_too_much():
    fleet, request = Fleet(nodes=1, gpus=2), Request(devices=((GPU, 1),))
    fleet.put(counted_node(gpus=2))
    held = [allocation_of(fleet, 0, request) for _ in range(4)]
    for one in held:
        fleet.take(one)
    victims = [Victim((one,), (cost,)) for one, cost in zip(held, (3.0, 4.0, 1.0, 9.0), strict=True)]
    assert search_among(fleet, request, victims) == VictimSet((0, 1, 2), (), (8.0,))
    assert search_among(fleet, Request(), victims) == VictimSet((0, 2), (), (4.0,))


def test_a_later_component_counts_only_where_the_first_ones_are_equal():
    fleet, request = Fleet(nodes=1, gpus=2), Request(devices=((GPU, 1),))
    fleet.put(counted_node(gpus=2))
    held = [allocation_of(fleet, 0, request) for _ in range(3)]
    for one in held[:2]:
        fleet.take(one)
    for costs, cheaper in ((((1.0, 5.0), (1.0, 4.0)), 1), (((1.0, 5.0), (2.0, 0.0)), 0)):
        victims = [Victim((one,), cost) for one, cost in zip(held, costs, strict=False)]
        answer = search_among(fleet, request, victims)
        assert answer == VictimSet((cheaper,), (), costs[cheaper])


def test_no_victim_helps_on_a_blocked_node_or_for_a_gpu_that_is_not_there():
    fleet, request = Fleet(nodes=1, gpus=2), Request(devices=((GPU, 1),))
    fleet.put(counted_node(gpus=2, model="H100"))
    held = allocation_of(fleet, 0, Request(devices=((GPU, 2),)))
    fleet.take(held)
    victims = [Victim((held,), (1.0,))]
    assert search_among(fleet, request, victims) is not None
    for impossible in (replace(request, models=frozenset({"B200"})), replace(request, cuda=12_004)):
        assert search_among(fleet, impossible, victims) is None
    fleet.block(0, Reason.REPARTITIONING)
    assert search_among(fleet, request, victims) is None


def test_amounts_beyond_what_a_double_counts_exactly():
    fleet, request = Fleet(nodes=1, gpus=2), Request(1000)
    fleet.put(counted_node(gpus=2))
    held = [Allocation(0, 1 << 60, 0), Allocation(0, 100, 0), Allocation(0, 1 << 62, 0)]
    for one in held:
        fleet.take(one)
    victims = [Victim((one,), (float(cost),)) for cost, one in enumerate(held, 1)]
    assert search_among(fleet, request, victims) == VictimSet((0, 2), (), (4.0,))


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
    pods = [Victim((one,), (float(cost),)) for cost, one in zip((2, 1), held, strict=True)]
    found = search_among(fleet, Request(devices=((GPU, 2),), island=True), pods)
    assert found is not None
    assert len(found.victims) == victims
    if together == (True, False):
        assert found.victims == (1,)
