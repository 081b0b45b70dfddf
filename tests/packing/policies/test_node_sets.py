"""Pods that insist on some nodes do not wait because pods that could go anywhere are there."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bench.packing.node_sets import MIXES, fill
from bench.packing.pick_node import NodePicker
from bench.packing.placer import Placer
from packing.cost.demand import Demand, Mix
from packing.fleet.fleet import Fleet
from packing.model.node_spec import Gpu, NodeSpec, Pool
from packing.model.request import Request
from packing.policies.inventory import InventoryPolicy
from tests.examples import examples
from tests.packing.fleet.builders import GPU, MIB, counted_node, fleet_of

ONE = Request(4000, devices=((GPU, 1),))


def node(name: str, gpus: int) -> NodeSpec:
    pool = Pool(GPU, gpus, tuple(range(gpus)), 1000, MIB)
    return NodeSpec(name, 16_000 * gpus, 1 << 40, (Gpu(MIB),) * gpus, (pool,))


@settings(max_examples=examples(60))
@given(
    st.integers(1, 8),
    st.lists(st.integers(0, 3), min_size=2, max_size=10),
    st.lists(st.integers(0, 8), min_size=4, max_size=4),
    st.randoms(use_true_random=False),
)
@example(8, [0, 3, 3, 1, 3], [1, 1, 0, 6], Random(0))  # one pod of twenty insists on zone 1
def test_those_who_can_go_elsewhere_do(gpus, zones, parts, random) -> None:
    """Three zones and nodes outside of them (3), and at most as many pods for each as it has room. In
    any order all of them run, because those that insist on nothing stay outside of the zones."""
    fleet, masks = Fleet(), {f"n{i}": 1 << zone & 7 for i, zone in enumerate(zones)}
    fleet.tell_apart({"z0": 0, "z1": 1, "z2": 2}, masks)
    for name in masks:
        fleet.put(node(name, gpus))
    pods = [zone for zone in range(4) for _ in range(gpus * zones.count(zone) * parts[zone] // 8)]
    random.shuffle(pods)
    requests = [replace(ONE, node_set=f"z{zone}") for zone in range(3)] + [ONE]
    mix = Mix.of({requests[zone]: pods.count(zone) for zone in {*pods}})
    order = np.argsort(fleet.arrays.order[: len(zones)], kind="stable")
    placer = Placer(fleet, InventoryPolicy(mix), NodePicker(order), learns=False)
    for zone in pods:
        placer.arrive(requests[zone])
        assert placer.place(requests[zone]) is not None


@pytest.mark.nightly
def test_the_mix_is_learned_soon_enough() -> None:
    for name, least in (("1", 10), ("1, 2, 4 and 8", 1)):
        for seed in range(3):
            assert fill("inventory", MIXES[name], 1.0, seed, sets=True).avoidable == 0
        without = sum(fill("inventory", MIXES[name], 1.0, seed, sets=False).avoidable for seed in range(3))
        assert without > least


def test_sets_that_are_not_told_apart_do_not_split_a_type() -> None:
    demand = Demand()
    for node_set in (None, "a", "b", "same as a"):
        demand.observe(replace(ONE, node_set=node_set))
    fleet = fleet_of(counted_node("n"))
    assert demand.mix(known_set=fleet.names.known_set).requests == (ONE,)
    fleet.tell_apart({"a": 0, "same as a": 0}, {"n": 1})
    known = demand.mix(known_set=fleet.names.known_set)
    assert {request.node_set for request in known.requests} == {None, "a"}
    assert abs(known.frequency[0] - 0.5) < 1e-3
