"""MIG instances made on demand: what fits, what it takes, and that giving back restores everything."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packing.fleet.feasibility import reasons_for
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import allocation_of
from packing.model.mig_instances import Instance, every_slice, largest_free, smallest, window
from packing.model.node_spec import FOR_MACHINES, Gpu, NodeSpec
from packing.model.reasons import Reason
from packing.model.request import Request, Shares
from tests.packing.fleet.builders import fleet_of

# As nvidia-smi lists them for an A100 of 40 GB.
A100 = (
    Instance("1g.5gb", 140, 4864, tuple(window(start, 1) for start in range(7))),
    Instance("1g.10gb", 140, 9856, tuple(window(start, 2) for start in (0, 2, 4, 6))),
    Instance("2g.10gb", 280, 9984, tuple(window(start, 2) for start in (0, 2, 4))),
    Instance("3g.20gb", 420, 19968, (window(4, 4), window(0, 4))),
    Instance("4g.20gb", 570, 20096, (window(0, 4),)),
    Instance("7g.40gb", 1000, 40192, (window(0, 8),)),
)
SIZES = st.tuples(st.sampled_from([0, 140, 200, 420, 1000]), st.integers(1, 41_000))


def node(gpus: int, name: str = "n", slots: int = 7) -> NodeSpec:
    gpu = Gpu(40192, divisible=True, slots=slots, instances=A100)
    return NodeSpec(name, 64_000, 512_000 << 20, (gpu,) * gpus, sharing_resource="gpu", mode="mig")


def ask(milli: int, mib: int, count: int = 1, mode: str = "") -> Request:
    return Request(shares=Shares(count, milli, mib, resource="gpu"), mode=mode)


def arrays(fleet: Fleet) -> list[np.ndarray]:
    return [
        fleet.arrays.compute.copy(),
        fleet.arrays.memory.copy(),
        fleet.arrays.share_slots.copy(),
        fleet.arrays.overcommitted.copy(),
    ]


@given(st.integers(0, 255), SIZES)
def test_a_share_fits_if_any_instance_that_is_large_enough_finds_a_window(taken, size):
    by_hand = [
        (one, mask)
        for one in A100
        for mask in one.windows
        if one.compute_milli >= size[0] and one.memory_mib >= size[1] and not mask & taken
    ]
    found, left = smallest(A100, taken, *size), largest_free(A100, taken)
    assert (found is not None) == bool(by_hand) == (left[0] >= size[0] and left[1] >= size[1])
    assert found is None or (
        found in by_hand and found[0].memory_mib == min(o.memory_mib for o, _ in by_hand)
    )


@given(st.integers(1, 3), st.lists(SIZES, max_size=24), st.randoms(use_true_random=False))
def test_no_slice_is_given_twice_and_all_comes_back(gpus, sizes, draw):
    fleet, row = fleet_of(node(gpus)), 0
    empty, held = arrays(fleet), []
    for milli, mib in sizes:
        request = ask(milli, mib)
        if reasons_for(fleet, request)[row] != Reason.FITS:
            assert not any(smallest(A100, fleet.usage[row].slices(gpu), milli, mib) for gpu in range(gpus))
            continue
        gpu = draw.choice([g for g in range(gpus) if smallest(A100, fleet.usage[row].slices(g), milli, mib)])
        held.append(allocation_of(fleet, row, request, (gpu,)))
        fleet.take(held[-1])
    taken = [(gpu, mask) for one in held for gpu, mask in one.slices]
    assert len(taken) == len(held)
    assert not any(a == b and one & other for (a, one), (b, other) in combinations(taken, 2))
    assert not fleet.arrays.overcommitted[row]
    for gpu in range(gpus):
        assert (fleet.arrays.compute[gpu, row], fleet.arrays.memory[gpu, row]) == largest_free(
            A100, fleet.usage[row].slices(gpu)
        )
    before = arrays(fleet)
    some = draw.sample(held, draw.randint(0, len(held)))
    with fleet.without(some):
        assert not any(fleet.usage[row].slices(gpu) & mask for one in some for gpu, mask in one.slices)
    assert all((a == b).all() for a, b in zip(arrays(fleet), before, strict=True))
    for one in draw.sample(held, len(held)):
        fleet.give_back(one)
    assert all((a == b).all() for a, b in zip(arrays(fleet), empty, strict=True))


def test_free_slices_that_are_apart_make_no_large_instance():
    fleet, row = fleet_of(node(1)), 0
    for mask in (window(1, 1), window(5, 1)):
        fleet.take(Allocation(row, 0, 0, shares=((0, 140, 4864),), slices=((0, mask),)))
    assert reasons_for(fleet, ask(0, 15_000))[row] == Reason.NO_FREE_GPUS  # as far as anyone can see
    assert reasons_for(fleet, ask(0, 9_984))[row] == Reason.FITS  # slices 2 and 3
    assert fleet.arrays.memory[0, row] == 9_984


def test_a_slice_that_two_claim_closes_the_node():
    fleet, row = fleet_of(node(2)), 0
    held = [Allocation(row, 0, 0, shares=((0, 140, 4864),), slices=((0, window(6, 1)),)) for _ in range(2)]
    for one in held:
        fleet.take(one)
    assert reasons_for(fleet, ask(0, 1000))[row] == Reason.OVERCOMMITTED
    fleet.give_back(held[0])
    assert reasons_for(fleet, ask(0, 1000))[row] == Reason.FITS


def test_a_share_without_room_takes_the_whole_gpu():
    fleet, row = fleet_of(node(1)), 0
    held = [allocation_of(fleet, row, ask(0, 30_000), (0,))]
    fleet.take(held[0])
    held.append(allocation_of(fleet, row, ask(0, 1000), (0,)))
    assert held[1].slices == ((0, every_slice(A100)),)
    fleet.take(held[1])
    assert fleet.arrays.overcommitted[row]


def test_a_node_that_comes_back_is_empty():
    fleet, row = fleet_of(node(1)), 0
    fleet.take(allocation_of(fleet, row, ask(0, 30_000), (0,)))
    assert fleet.put(node(1)) == row
    assert fleet.usage[row].slices(0) == 0
    fleet.take(allocation_of(fleet, row, ask(0, 30_000), (0,)))
    fleet.remove("n")
    assert fleet.put(node(1, "other")) == row
    assert reasons_for(fleet, ask(1000, 40_000))[row] == Reason.FITS


def test_slots_limit_the_instances():
    fleet, row = fleet_of(node(1, slots=1)), 0
    fleet.take(allocation_of(fleet, row, ask(0, 1000), (0,)))
    assert reasons_for(fleet, ask(0, 1000))[row] != Reason.FITS


def test_a_pod_may_insist_on_a_mode():
    fleet = Fleet()
    mig, core = fleet.put(node(1, "mig")), Gpu(40192, divisible=True)
    other = fleet.put(
        NodeSpec("core", 64_000, 512_000 << 20, (core,), sharing_resource="gpu", mode="hami-core")
    )
    plain = fleet.put(NodeSpec("plain", 64_000, 512_000 << 20, (core,), sharing_resource="gpu"))
    for mode, fits in (
        ("", {mig, other, plain}),
        ("mig", {mig, plain}),
        ("hami-core,mig", {mig, other, plain}),
    ):
        reasons = reasons_for(fleet, ask(0, 1000, mode=mode))
        assert {row for row in (mig, other, plain) if reasons[row] == Reason.FITS} == fits


def test_gpus_for_virtual_machines_are_only_for_requests_that_name_them():
    fleet, core = Fleet(), Gpu(40192, divisible=True)
    specs = [
        NodeSpec(name, 64_000, 512_000 << 20, (core,), sharing_resource="gpu", mode=mode)
        for name, mode in (("machines", FOR_MACHINES), ("containers", ""), ("mig", "mig"))
    ]
    machines, containers, mig = map(fleet.put, specs)
    for mode, fits in (
        ("", {containers, mig}),
        ("mig", {containers, mig}),
        (FOR_MACHINES, {machines, containers}),
    ):
        reasons = reasons_for(fleet, ask(0, 1000, mode=mode))
        assert {row for row in (machines, containers, mig) if reasons[row] == Reason.FITS} == fits
        assert all(reasons[row] in (Reason.FITS, Reason.WRONG_MODE) for row in (machines, containers, mig))
    models = reasons_for(fleet, replace(ask(0, 1000), models=frozenset({"H100"})))
    assert {int(models[row]) for row in (machines, containers, mig)} == {Reason.WRONG_MODEL}
