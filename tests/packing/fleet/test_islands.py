"""NVLink islands where Stowage chooses the GPUs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import freest_gpus
from packing.model.node_spec import Gpu, NodeSpec, Pool
from packing.model.reasons import Reason
from packing.model.request import ANY, NameFilter, Request, Shares, whole_gpus
from packing.policies.inventory import InventoryPolicy
from packing.policies.registry import POLICIES

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
