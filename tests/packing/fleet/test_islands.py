"""NVLink islands where Stowage chooses the GPUs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import allocation_of, freest_gpus
from packing.model.node_spec import Gpu, NodeSpec, Pool
from packing.model.reasons import Reason
from packing.model.request import ANY, NameFilter, Request, Shares, whole_gpus
from packing.policies.inventory import InventoryPolicy
from packing.policies.registry import POLICIES
from tests.examples import examples

from .builders import GIB, GPU, MIB, divisible_node, fleet_of, why


def island_of(*, taken: tuple[int, ...], islands=((0, 1), (2, 3)), gpus: int = 4) -> Fleet:
    fleet, row = fleet_of(divisible_node(gpus=gpus, islands=islands)), 0
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
    assert np.isfinite(InventoryPolicy().cost(fleet, request_)[0]) == (reason is Reason.FITS)


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
@settings(max_examples=examples(60))
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


def counted(islands, gpus: int = 4, **more) -> NodeSpec:
    pool = Pool(GPU, gpus, tuple(range(gpus)), 1000, MIB)
    return NodeSpec("n", 64_000, 512 * GIB, (Gpu(MIB),) * gpus, (pool,), islands=islands, **more)


def job(gpus: int, *, together: bool = False) -> Request:
    return Request(devices=((GPU, gpus),), island=together)


PAIRS, QUADS, SEVEN = ((0, 1), (2, 3)), ((0, 1, 2, 3), (4, 5, 6, 7)), ((0, 1, 3, 4, 5, 6, 7),)


@pytest.mark.parametrize(
    ("spec", "running", "asked", "reason"),
    [
        (counted(PAIRS), [], 2, Reason.FITS),
        (counted(PAIRS), [job(1)], 2, Reason.FITS),
        (counted(PAIRS), [job(1), job(1)], 2, Reason.NO_FREE_PEERS),
        (counted(PAIRS), [job(2)], 2, Reason.NO_FREE_PEERS),
        (counted(PAIRS), [job(2, together=True)], 2, Reason.FITS),
        (counted(PAIRS), [job(1), job(2)], 2, Reason.NO_FREE_GPUS),
        (counted(PAIRS), [], 3, Reason.ISLAND_TOO_SMALL),
        (counted(QUADS, 8), [job(4, together=True)], 4, Reason.FITS),
        (counted(QUADS, 8), [job(4)], 4, Reason.NO_FREE_PEERS),
        (counted(SEVEN, 8), [], 7, Reason.FITS),
        (counted(SEVEN, 8, plugin_keeps_islands=False), [], 2, Reason.ISLAND_TOO_SMALL),
        (counted(SEVEN, 8, plugin_keeps_islands=False), [], 1, Reason.FITS),
        (counted((tuple(range(8)),), 8), [job(5)], 3, Reason.FITS),
        (counted(()), [], 2, Reason.ISLAND_TOO_SMALL),
    ],
)
def test_a_device_plugin_must_be_sure_to_find_peers(spec, running, asked, reason):
    """Where pods are is not known, only how many devices they have, and which are peers."""
    fleet = fleet_of(spec)
    for one in running:
        fleet.take(allocation_of(fleet, 0, one))
    request = job(asked, together=True)
    assert why(fleet, request) is reason
    assert np.isfinite(InventoryPolicy().cost(fleet, request)[0]) == (reason is Reason.FITS)
    for one in running:
        fleet.give_back(allocation_of(fleet, 0, one))
    emptied = why(fleet, request)
    assert emptied is (Reason.ISLAND_TOO_SMALL if reason is Reason.ISLAND_TOO_SMALL else Reason.FITS)


@settings(max_examples=examples(100))
@given(st.data())
def test_a_pod_that_requires_peers_gets_them_wherever_the_plugin_puts_the_others(data):
    """A device plugin that gives jobs of several GPUs peers where it can, and else anything that is free."""
    sizes = data.draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4))
    bounds = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    groups = [tuple(range(a, b)) for a, b in pairwise(bounds)]
    islands = tuple(group for group in groups if len(group) > 1)
    fleet = fleet_of(counted(islands, sum(sizes)))
    free, running = set(range(sum(sizes))), []
    for _ in range(data.draw(st.integers(1, 12))):
        if running and data.draw(st.booleans()):
            allocation, gpus = running.pop(data.draw(st.integers(0, len(running) - 1)))
            fleet.give_back(allocation)
            free |= gpus
            continue
        request = job(data.draw(st.integers(1, 4)), together=data.draw(st.booleans()))
        if why(fleet, request) is not Reason.FITS:
            continue
        count = request.gpus
        holding = [sorted(free & set(group)) for group in groups if len(free & set(group)) >= count]
        if request.island:
            assert holding, (groups, free, request)
        choice = data.draw(st.sampled_from(holding)) if holding and count > 1 else sorted(free)
        gpus = set(data.draw(st.permutations(choice))[:count])
        allocation = allocation_of(fleet, 0, request)
        fleet.take(allocation)
        free -= gpus
        running.append((allocation, gpus))
