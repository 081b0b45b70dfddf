"""The offline bound: never below what can be packed, and close to it where that is known."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.packing.bound import NodeBound
from bench.packing.filling import build_fleet, fill, gpus_of
from bench.packing.pick_node import NodePicker
from bench.packing.placer import Placer
from bench.packing.policies import POLICIES
from packing.fleet.feasibility import reasons_for
from packing.fleet.placement import allocation_of
from packing.model.node_spec import Gpu, NodeSpec
from packing.model.request import Request, Shares, whole_gpus
from tests.examples import examples


def share(milli, cpu=1000, count=1, models=None):
    return Request(cpu, shares=Shares(count, milli, memory_milli=milli), models=models)


def node(name, gpus=2, cpu=16_000, model=None):
    return NodeSpec(name, cpu, 9000, (Gpu(1000, divisible=True),) * gpus, model=model)


def bound(nodes, requests):
    return NodeBound(nodes, requests).allocation(Counter(requests))


@pytest.mark.parametrize(
    ("nodes", "requests", "gpus"),
    [
        ([node("a", 4)], [share(600)] * 10, 2.4),  # one on each GPU
        ([node("a", 4)], [share(600)] * 10 + [share(400)] * 3, 3.6),
        ([node("a", 1), node("b", 3)], [Request(shares=whole_gpus(2))] * 9, 2.0),
        ([node("a", 4, cpu=4000)], [Request(2000, shares=whole_gpus(1))] * 9, 2.0),
        ([node("a", 2, model="x"), node("b", 2, model="y")], [share(1000, models=frozenset({"y"}))] * 9, 2.0),
        ([node("a", 2)], [share(300, count=2)] * 2, 1.2),  # parts of both GPUs
        ([node("a", 2)], [share(500)], 0.5),  # no more than arrives
        ([node("a", 2)], [Request(1000)] * 5, 0.0),
        ([node("a", 8), node("cpu only", 0)], [Request(shares=whole_gpus(9))], 0.0),
    ],
)
def test_small_cases_by_hand(nodes, requests, gpus):
    assert bound(nodes, requests) == pytest.approx(gpus, abs=1e-3)


requests = st.one_of(
    st.builds(share, st.sampled_from([125, 250, 330, 500, 660, 1000]), st.integers(0, 9000)),
    st.builds(lambda k, cpu: Request(cpu, shares=whole_gpus(k)), st.integers(1, 3), st.integers(0, 9000)),
    st.builds(lambda m: share(500, models=frozenset({m})), st.sampled_from("xy")),
    st.builds(Request, st.integers(0, 9000)),
)


def best_packing(nodes, asked):
    """The most GPU that any placement of these few requests allocates, by trying all."""
    best = 0.0

    def place(i, fleet, used):
        nonlocal best
        best = max(best, used)
        if i == len(asked):
            return
        place(i + 1, fleet, used)
        count = asked[i].shares.count if asked[i].shares else 0
        for row in np.flatnonzero(reasons_for(fleet, asked[i])[: len(nodes)] == 0):
            for gpus in product(range(len(nodes[row].gpus)), repeat=count):
                milli = asked[i].shares.compute_milli if count else 0
                if len(set(gpus)) == count and all(fleet.arrays.compute[g, row] >= milli for g in gpus):
                    held = allocation_of(fleet, int(row), asked[i], gpus)
                    fleet.take(held)
                    place(i + 1, fleet, used + gpus_of(asked[i]))
                    fleet.give_back(held)

    place(0, build_fleet(nodes), 0.0)
    return best


@settings(max_examples=examples(20))
@given(st.lists(requests, min_size=1, max_size=3))
def test_it_is_never_below_the_best_packing(asked):
    nodes = [node("a", 2, 8000, "x"), node("b", 1, 4000, "y")]
    best = best_packing(nodes, asked)
    assert best - 1e-6 <= bound(nodes, asked) <= sum(map(gpus_of, asked)) + 1e-6


@settings(max_examples=8)
@given(st.lists(requests, min_size=1, max_size=60), st.sampled_from(["best-fit", "fgd", "most-allocated"]))
def test_no_policy_exceeds_it(asked, policy):
    nodes = [node("a", 4, 32_000, "x"), node("b", 2, 8000, "y"), node("c", 8, 20_000, "x")]
    placer = Placer(build_fleet(nodes), POLICIES[policy](), NodePicker(np.arange(3)), learns=False)
    filling = fill(placer, asked)
    assert filling.gpus[filling.rows >= 0].sum() <= bound(nodes, asked) + 1e-6


def test_a_second_question_is_answered_like_a_first():
    nodes, kinds = [node(f"n{i}", 4, 12_000) for i in range(5)], [share(330), share(250, 4000), share(500)]
    kept = NodeBound(nodes, kinds)
    for numbers in ((90, 5, 3), (1, 2, 30), (10, 10, 10)):
        demand = dict(zip(kinds, numbers, strict=True))
        assert kept.allocation(demand) == pytest.approx(NodeBound(nodes, kinds).allocation(demand), abs=2e-3)
