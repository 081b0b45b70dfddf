"""How many equal requests fit together, against taking one after the other."""

from __future__ import annotations

from contextlib import ExitStack

from hypothesis import given
from hypothesis import strategies as st

from packing.fleet.feasibility import copies_that_fit, fits_with_idle_plugin, reasons_for
from packing.fleet.fleet import Fleet
from packing.fleet.placement import allocation_of
from packing.model.node_spec import Gpu, NodeSpec, Pool
from packing.model.reasons import Reason
from packing.model.request import Request, whole_gpus
from tests.packing.fleet.builders import GIB, GPU, MIB, MIG, counted_node, divisible_node, fleet_of


def mixed_node(name: str, gpus: int, instances: int, cpu: int) -> NodeSpec:
    pools = (Pool(GPU, gpus, tuple(range(gpus)), 1000, MIB), Pool(MIG, instances, (), 143, MIB // 8))
    return NodeSpec(name, cpu, 64 * GIB, (Gpu(MIB),) * gpus, pools)


def one_by_one(fleet: Fleet, request: Request, row: int) -> int:
    with ExitStack() as held:
        for count in range(100):
            if reasons_for(fleet, request)[row] != Reason.FITS:
                return count
            held.enter_context(fleet.holding([allocation_of(fleet, row, request)]))
    return 100


REQUESTS = st.builds(
    Request,
    st.integers(0, 9000),
    st.integers(0, 20).map(lambda gib: gib * GIB),
    st.sampled_from([((GPU, 1),), ((GPU, 3),), ((MIG, 2),), ((GPU, 1), (MIG, 1)), (("other", 1),)]),
)


@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 9), st.integers(0, 30_000)), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), REQUESTS), max_size=4),
    REQUESTS,
)
def test_copies_equal_taking_one_after_the_other(
    nodes: list[tuple[int, int, int]], pods: list[tuple[int, Request]], request: Request
) -> None:
    fleet = fleet_of(*(mixed_node(f"n{i}", *sizes) for i, sizes in enumerate(nodes)))
    for row, held in pods:
        if row < len(nodes):
            fleet.take(allocation_of(fleet, row, held))  # also beyond what there is
    copies = copies_that_fit(fleet, request)
    assert copies is not None
    assert copies[: len(nodes)].tolist() == [one_by_one(fleet, request, row) for row in range(len(nodes))]
    assert not copies[len(nodes) :].any()


def test_counts_do_not_tell_where_gpus_are_placed_one_by_one() -> None:
    fleet = fleet_of(counted_node("a"), divisible_node("b"))
    assert copies_that_fit(fleet, Request(devices=((GPU, 1),))) is None
    assert copies_that_fit(fleet, Request(shares=whole_gpus(1))) is None
    assert copies_that_fit(fleet_of(counted_node("a")), Request(devices=((GPU, 4),), island=True)) is None


def test_a_busy_device_plugin_is_idle_again_soon() -> None:
    fleet = fleet_of(counted_node("a"), counted_node("b", blocked=Reason.REPARTITIONING))
    fleet.block(0, Reason.PLUGIN_BUSY)
    request = Request(devices=((GPU, 3),))
    assert fits_with_idle_plugin(fleet, request)[:2].tolist() == [True, False]
    copies = copies_that_fit(fleet, request)
    assert copies is not None
    assert copies[:2].tolist() == [2, 0]
