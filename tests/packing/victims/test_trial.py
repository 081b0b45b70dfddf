"""Victims found by asking a callback: nearly the cheapest where the budget suffices, and never needless."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from packing.victims.search import cheapest_by_trial
from packing.victims.victims import GangCost
from tests.examples import examples

from .random_nodes import (
    Victim,
    as_arrays,
    cheapest_by_exhaustion,
    fits_without,
    random_case,
    set_of,
    units_in,
)


def ask(case, calls, budget=400):
    def fits(chosen):
        calls.append(chosen)
        return fits_without(case, chosen)

    return cheapest_by_trial(case.as_arrays, fits, budget)


@settings(max_examples=examples(200))
@given(st.integers(0, 1 << 40))
@example(2051822)  # members one by one seem cheaper than the gang, but count as the gang
def test_an_answer_fits_keeps_the_rules_and_contains_nobody_without_need(seed):
    case, calls = random_case(seed), []
    answer = ask(case, calls)
    assert len(calls) == len(set(calls)) <= 400
    if answer is None:
        limited = any(gang.whole is None for gang in case.gangs)
        assert limited or cheapest_by_exhaustion(case) is None
        return
    assert case.required <= set(answer.victims)
    assert set_of(case, answer.victims) == answer
    assert fits_without(case, answer.victims)
    for unit in units_in(case, answer):
        if not unit & case.required:
            assert not fits_without(case, set(answer.victims) - unit)


def test_few_answers_cost_more_than_the_cheapest():
    found = dearer = 0
    seeds = examples(500, least=150)
    for seed in range(seeds):
        case = random_case(seed)
        answer, expected = ask(case, []), cheapest_by_exhaustion(case)
        if answer and expected and expected.victims:
            assert answer.cost >= expected.cost
            found, dearer = found + 1, dearer + (answer.cost > expected.cost)
    assert found > 0.2 * seeds
    assert dearer < 0.06 * found


@settings(max_examples=examples(100))
@given(st.integers(0, 1 << 40), st.integers(0, 60))
def test_the_budget_is_kept_and_an_answer_fits(seed, budget):
    case, calls = random_case(seed, pods=20, gpus=8, spread=1000), []
    answer = ask(case, calls, budget)
    assert len(calls) <= budget
    if answer:
        assert case.required <= set(answer.victims)
        assert fits_without(case, answer.victims)


def test_of_sixty_victims_the_cheapest_fifteen_leave_after_few_calls():
    rng = random.Random(7)
    victims = [Victim((), (float(rng.randint(100, 110)), rng.random())) for _ in range(60)]
    answer = cheapest_by_trial(as_arrays(victims), lambda chosen: len(chosen) >= 15, budget=30)
    assert answer is not None
    assert set(answer.victims) == set(sorted(range(60), key=lambda v: victims[v].cost)[:15])


def test_victims_that_stay_are_in_no_set():
    two = as_arrays([Victim((), (1.0,)), Victim((), (2.0,))])
    victims = replace(two, stays=np.array([True, False]))
    answer = cheapest_by_trial(victims, lambda chosen: len(chosen) >= 1, budget=9)
    assert answer is not None
    assert answer.victims == (1,)
    assert cheapest_by_trial(replace(victims, required=[0]), lambda chosen: True, budget=9) is None


def test_a_gang_leaves_as_a_whole_only_where_that_is_cheaper():
    victims = [Victim((), (1.0,), gang=0), Victim((), (1.0,), gang=0), Victim((), (5.0,))]
    for whole, leave in ((4.0, (0, 1)), (6.0, (2,))):
        some = as_arrays(victims, [GangCost(0, (whole,))])
        answer = cheapest_by_trial(some, lambda chosen: 0 in chosen or 2 in chosen, budget=99)
        assert answer is not None
        assert answer.victims == leave
        assert answer.gangs == ((0,) if 0 in leave else ())
