"""Victims found by asking a callback: cheapest where the budget suffices, never needless, and honest."""

from __future__ import annotations

import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from packing.victims.oracle import cheapest_by_oracle
from packing.victims.victim import GangCost
from tests.examples import examples

from .random_nodes import cheapest_by_exhaustion, fits_without, random_case


def ask(case, calls, budget=400):
    def fits(chosen):
        calls.append(chosen)
        return fits_without(case, chosen)

    costs, gang_of = [victim.cost for victim in case.victims], [victim.gang for victim in case.victims]
    return cheapest_by_oracle(costs, case.gangs, case.required, fits, budget, gang_of)


@settings(max_examples=examples(200))
@given(st.integers(0, 1 << 40))
@example(2051822)  # members one by one seem cheaper than the gang, but count as the gang
def test_an_exact_answer_is_as_cheap_as_exhaustion(seed):
    case, calls = random_case(seed), []
    answer, expected = ask(case, calls), cheapest_by_exhaustion(case)
    assert len(calls) == len(set(calls)) <= 400
    assert (answer is None) == (expected is None)
    if answer and expected:
        assert answer.exact
        assert answer.cost == expected.cost


@settings(max_examples=examples(100))
@given(st.integers(0, 1 << 40), st.integers(0, 60))
def test_the_budget_is_kept_and_an_answer_fits(seed, budget):
    case, calls = random_case(seed, pods=20, gpus=8, spread=1000), []
    answer = ask(case, calls, budget)
    assert len(calls) <= budget
    if answer:
        assert case.required <= set(answer.victims)
        assert fits_without(case, answer.victims)


def test_no_victim_is_needless_where_the_exact_search_takes_too_long():
    """Sixty victims of which any fifteen are enough: too many sets for an exact search."""
    rng = random.Random(7)
    costs = [(float(rng.randint(100, 110)), rng.random()) for _ in range(60)]
    answer = cheapest_by_oracle(costs, (), (), lambda chosen: len(chosen) >= 15)
    assert answer is not None
    assert (len(answer.victims), answer.exact) == (15, False)
    assert set(answer.victims) == set(sorted(range(60), key=costs.__getitem__)[:15])


def test_a_gang_leaves_as_a_whole_only_where_that_is_cheaper():
    costs, gang_of = [(1.0,), (1.0,), (5.0,)], [0, 0, -1]
    for whole, victims in ((4.0, (0, 1)), (6.0, (2,))):
        gangs = [GangCost(0, (whole,))]
        answer = cheapest_by_oracle(
            costs, gangs, (), lambda chosen: 0 in chosen or 2 in chosen, gang_of=gang_of
        )
        assert answer is not None
        assert answer.victims == victims
        assert answer.gangs == ((0,) if 0 in victims else ())
