"""Fragmentation gradient descent, straight from its definition."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.packing.published.fgd import Fgd
from packing.cost.demand import Mix
from packing.model.request import Request
from packing.policies.interface import update_now
from tests.examples import examples
from tests.packing.policies.test_policies import fleet_of, share, take


def unusable_by_hand(free, cpu, mix):
    """F of one node, straight from its definition; ``free`` in milli per GPU."""
    total = 0.0
    for request, frequency in zip(mix.requests, mix.frequency, strict=True):
        part = request.shares
        room = sum(f >= part.compute_milli for f in free) if part else 0
        if part is None or cpu < request.cpu_milli or room < part.count:
            total += frequency * sum(free)
        else:
            total += frequency * sum(f for f in free if f < part.compute_milli)
    return total / 1000


@settings(max_examples=examples(40))
@given(st.lists(st.integers(0, 1000), min_size=3, max_size=3), st.integers(1000, 9000), st.integers(50, 1000))
def test_fgd_agrees_with_its_definition(taken, cpu, milli):
    mix = Mix.of({share(300, 2000): 3, share(500, 4000): 2, share(1000, 6000, 2): 1, Request(3000): 2})
    fleet, policy = fleet_of(3, cpu=cpu), Fgd(mix)
    for gpu, used in enumerate(taken):
        if used:
            take(fleet, 0, used, gpu)
    update_now(policy, fleet)
    free = [1000 - used for used in taken]
    rises = []
    for gpu, f in enumerate(free):
        if f >= milli:
            after = [*free[:gpu], f - milli, *free[gpu + 1 :]]
            rises.append(unusable_by_hand(after, cpu - 1000, mix) - unusable_by_hand(free, cpu, mix))
    cost = policy.cost(fleet, share(milli))[0]
    if not rises:
        assert cost == np.inf
    else:
        best = max(100 / (1 + np.exp(rise)) for rise in rises)
        assert 100 - best - 1e-3 <= cost <= 101 - best + 1e-3


def test_fgd_takes_the_first_of_equal_gpus():
    """Its working memory had too few rows, and what was behind them told equal GPUs apart."""
    for milli in range(100, 1001, 50):
        fleet, policy = fleet_of(4), Fgd(Mix.of({share(milli): 1}))
        assert policy.choose(fleet, share(milli, count=3), 0) == (0, 1, 2)
        assert policy.choose(fleet, share(milli), 0) == (0,)
