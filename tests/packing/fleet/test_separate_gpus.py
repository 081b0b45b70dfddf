"""Several devices of one container are on different GPUs, against a simulation of NVIDIA's device plugin."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packing.cost.demand import Mix
from packing.cost.kernel_args import nodes_of
from packing.cost.slots import Slots
from packing.fleet.feasibility import copies_that_fit, could_host, missing_gpus
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import allocation_of
from packing.model.node_spec import Gpu, NodeSpec, Pool
from packing.model.reasons import Reason
from packing.model.request import Request, SeparateGpus
from tests.packing.fleet.builders import GPU, MIB, MIG, counted_node, divisible_node, fleet_of, why

ROW = np.array([0])


def replicas(name: str = "n", gpus: int = 1, of_each: int = 4) -> NodeSpec:
    """A node whose GPUs are shared by time."""
    pool = Pool(GPU, gpus * of_each, tuple(range(gpus)), 1000 // of_each, MIB // of_each, separate=gpus)
    return NodeSpec(name, 64_000, 512 << 30, (Gpu(MIB),) * gpus, (pool,))


def asks(count: int, separate: SeparateGpus | None = "require", together: int = 0) -> Request:
    return Request(devices=((GPU, count),), together=together or count, separate=separate)


class Plugin:
    """Which GPU each replica comes from: the GPU with the fewest in use. What the plugin does among equals is
    not known, so ``prefer`` says."""

    def __init__(self, gpus: int, of_each: int) -> None:
        self.used, self._of_each = [0] * gpus, of_each

    def give(self, count: int, prefer: list[int]) -> list[int]:
        given = []
        for _ in range(count):
            free = [g for g in range(len(self.used)) if self.used[g] < self._of_each]
            chosen = min(free, key=lambda g: (self.used[g], prefer[g]))
            self.used[chosen] += 1
            given.append(chosen)
        return given


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, int, list[tuple[int, list[int]]]]:
    """GPUs, replicas of each, and what happens: a container takes so many (0: the oldest leaves)."""
    gpus, of_each = draw(st.integers(1, 4)), draw(st.integers(2, 4))
    step = st.tuples(st.integers(0, 4), st.permutations(range(gpus)))
    return gpus, of_each, draw(st.lists(step, max_size=20))


@given(histories())
def test_what_fits_is_on_different_gpus(history: tuple[int, int, list[tuple[int, list[int]]]]) -> None:
    gpus, of_each, steps = history
    fleet, plugin = fleet_of(replicas(gpus=gpus, of_each=of_each)), Plugin(gpus, of_each)
    running: list[tuple[Allocation, list[int]]] = []
    for count, prefer in steps:
        if not count:
            for allocation, given_gpus in running[:1]:
                fleet.give_back(allocation)
                for gpu in given_gpus:
                    plugin.used[gpu] -= 1
            running = running[1:]
            continue
        certain = why(fleet, asks(count)) is Reason.FITS
        if why(fleet, asks(count, "ignore")) is not Reason.FITS:
            assert not certain
            continue
        missing = missing_gpus(fleet, asks(count), ROW)[0]
        given_gpus = plugin.give(count, prefer)
        if certain:
            assert len(set(given_gpus)) == count
        assert certain == (missing == 0)
        running.append((allocation_of(fleet, 0, asks(count)), given_gpus))
        fleet.take(running[-1][0])
        assert not fleet.arrays.overcommitted[0]


@pytest.mark.parametrize("gpus", [1, 2, 3])
def test_the_reason_says_whether_eviction_helps(gpus: int) -> None:
    fleet = fleet_of(replicas(gpus=gpus))
    expected = Reason.FITS if gpus > 1 else Reason.PARTS_OF_ONE_GPU
    assert why(fleet, asks(2)) is expected
    fleet.take(allocation_of(fleet, 0, asks(1)))
    assert why(fleet, asks(2)) is {1: Reason.PARTS_OF_ONE_GPU, 2: Reason.NO_FREE_GPUS, 3: Reason.FITS}[gpus]
    assert why(fleet, asks(4 * gpus)) is Reason.PARTS_OF_ONE_GPU
    assert why(fleet, asks(4 * gpus + 1)) is Reason.TOO_FEW_GPUS
    assert could_host(fleet, asks(2)) == (gpus > 1)


def test_containers_with_one_device_each_and_whole_gpus_are_not_affected() -> None:
    fleet = fleet_of(replicas(), counted_node("whole"), divisible_node("divisible"))
    assert why(fleet, asks(2, together=1)) is Reason.FITS
    assert why(fleet, asks(1)) is Reason.FITS
    for node in ("whole", "divisible"):
        assert why(fleet, asks(4), node) is Reason.FITS
    fleet.put(counted_node("without", 0))
    assert missing_gpus(fleet, asks(4), np.arange(4)).tolist() == [3, 0, 0, 0]


def test_the_fleet_decides_for_requests_that_do_not_say() -> None:
    fleet = fleet_of(replicas())
    assert why(fleet, asks(2, None)) is Reason.FITS
    fleet.separate = "require"
    assert why(fleet, asks(2, None)) is Reason.PARTS_OF_ONE_GPU
    assert why(fleet, asks(2, "prefer")) is Reason.FITS


def test_instances_are_never_certain_to_be_on_different_gpus() -> None:
    pools = (
        Pool(GPU, 14, (0, 1), 142, MIB // 8, separate=0),
        Pool(MIG, 14, (2, 3), 142, MIB // 8),
    )
    fleet = fleet_of(NodeSpec("n", 64_000, 512 << 30, (Gpu(MIB),) * 4, pools))
    assert why(fleet, asks(2)) is Reason.PARTS_OF_ONE_GPU
    by_name = Request(devices=((MIG, 2),), together=2, separate="require")
    assert why(fleet, by_name) is Reason.FITS


@given(st.integers(1, 5), st.integers(2, 4), st.integers(0, 6), st.integers(1, 3))
def test_copies_equal_taking_one_after_the_other(gpus: int, of_each: int, used: int, count: int) -> None:
    fleet = fleet_of(replicas(gpus=gpus, of_each=of_each))
    fleet.take(allocation_of(fleet, 0, asks(used or 1)))
    copies = copies_that_fit(fleet, asks(count))
    assert copies is not None
    assert copies[0] == one_by_one(fleet, asks(count))


def one_by_one(fleet: Fleet, request: Request) -> int:
    with ExitStack() as held:
        copies = 0
        while why(fleet, request) is Reason.FITS:
            held.enter_context(fleet.holding([allocation_of(fleet, 0, request)]))
            copies += 1
        return copies


def test_replicas_are_room_in_the_mix_for_all_that_do_not_require_several_gpus() -> None:
    sliced = [replicas(f"sliced{i}") for i in range(20)]
    fleet = fleet_of(counted_node("a"), counted_node("b"), *sliced)
    types = (asks(2, "require"), asks(2, None), asks(1, None))
    slots = Slots(fleet, Mix(types, (0.4, 0.3, 0.3)))
    slots.recount(nodes_of(fleet))
    assert slots.counts.totals[:3].tolist() == [8, 48, 96]
    assert slots.gpus[0] == 2
    # Where several GPUs are shared, the room is as large as there are GPUs without any replica in use.
    several = fleet_of(replicas(gpus=4), replicas("m", gpus=4))
    several.take(allocation_of(several, 0, asks(1)))
    slots = Slots(several, Mix(types, (0.4, 0.3, 0.3)))
    slots.recount(nodes_of(several))
    assert np.floor(slots.counts.totals[:3]).tolist() == [3, 15, 31]
