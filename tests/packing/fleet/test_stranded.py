"""Fragmentation of random fleets, against figures counted GPU by GPU and against what really fits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packing.fleet.feasibility import fits_with_idle_plugin
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import allocation_of
from packing.fleet.stranded import Beside, Fragmentation, fragmentation, on_offer, whole_gpus, whole_nodes
from packing.model.node_spec import Gpu, NodeSpec, Pool
from packing.model.reasons import Reason
from packing.model.request import Request
from packing.model.request import whole_gpus as whole_shares
from tests.packing.fleet.builders import GIB, GPU, MIB, MIG, counted_node, divisible_node, fleet_of

ISLANDS = {2: ((0, 1),), 4: ((0, 1), (2, 3)), 8: ((0, 1, 2, 3), (4, 5, 6, 7))}
REASONS = [Reason.FITS, Reason.FITS, Reason.FITS, Reason.PLUGIN_BUSY, Reason.REPARTITIONING]


def sliced(name: str, gpus: int, **more) -> NodeSpec:
    """MIG instances only."""
    pool = Pool(MIG, 7 * gpus, tuple(range(gpus)), 142, MIB // 8, profile="1g.10gb")
    return NodeSpec(name, 64_000, 512 * GIB, (Gpu(MIB),) * gpus, (pool,), **more)


def replicated(name: str, gpus: int, **more) -> NodeSpec:
    """Two replicas of each GPU."""
    pool = Pool(GPU, 2 * gpus, tuple(range(gpus)), 500, MIB // 2)
    return NodeSpec(name, 64_000, 512 * GIB, (Gpu(MIB),) * gpus, (pool,), **more)


def sick(name: str, gpus: int, **more) -> NodeSpec:
    """The last of its GPUs takes no pods."""
    spec = divisible_node(name, gpus, **more)
    cards = (*spec.gpus[:-1], replace(spec.gpus[-1], divisible=False))
    pools = (Pool(GPU, gpus - 1, tuple(range(gpus - 1)), 1000, MIB),) if gpus > 1 else ()
    return replace(spec, gpus=cards, pools=pools)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[Fleet, tuple[int, ...]]:
    """Nodes of all kinds with pods on them, and the rows that are cordoned."""
    fleet, nodes = Fleet(nodes=1, gpus=1), draw(st.integers(1, 5))
    for row in range(nodes):
        make = draw(st.sampled_from([counted_node, divisible_node, sliced, replicated, sick]))
        gpus = draw(st.sampled_from([1, 2, 4, 8]))
        islands = draw(st.sampled_from([(), ISLANDS.get(gpus, ())]))
        model, reason = draw(st.sampled_from(["H100", "A100", None])), draw(st.sampled_from(REASONS))
        fleet.put(make(f"n{row}", gpus=gpus, islands=islands, model=model, blocked=reason))
    for _ in range(draw(st.integers(0, 8))):
        row = draw(st.integers(0, nodes - 1))
        fleet.take(draw(allocations(fleet, row)))
    if draw(st.booleans()):
        fleet.remove("n0")
    return fleet, draw(st.sets(st.integers(0, nodes - 1), max_size=1).map(tuple))


@st.composite
def allocations(draw: st.DrawFn, fleet: Fleet, row: int) -> Allocation:
    spec = fleet.specs[row]
    assert spec is not None
    cpu, memory = draw(st.integers(0, 40_000)), draw(st.integers(0, 300)) * GIB
    if spec.sharing_resource:
        gpu = draw(st.integers(0, len(spec.gpus) - 1))
        milli, mib = draw(st.sampled_from([(1000, MIB), (990, 1000), (100, MIB - 100), (300, 20_000)]))
        return Allocation(row, cpu, memory, shares=((gpu, milli, mib),))
    resource = fleet.names.resources[spec.pools[0].resource]
    return Allocation(row, cpu, memory, devices=((resource, draw(st.integers(1, 3))),))


def free_gpus(fleet: Fleet, row: int, spec: NodeSpec) -> list[tuple[int, float, float]]:
    """(GPU, free compute, free memory) of the GPUs of a node that pods can get."""
    offered = {gpu for pool in spec.pools for gpu in pool.gpus} | {
        index for index, gpu in enumerate(spec.gpus) if gpu.divisible
    }
    usage = ((gpu, *fleet.usage[row].free_on_gpu(gpu)) for gpu in sorted(offered))
    return [(gpu, max(milli, 0), max(mib, 0)) for gpu, milli, mib in usage]


def largest(fleet: Fleet, row: int, spec: NodeSpec, *, island: bool) -> int:
    """The most whole GPUs that a pod gets on a node, by asking the feasibility kernels."""
    resource = spec.sharing_resource or GPU
    for count in range(len(spec.gpus), 0, -1):
        shares = whole_shares(count, resource) if spec.sharing_resource else None
        request = Request(devices=() if shares else ((GPU, count),), shares=shares, island=island)
        if fits_with_idle_plugin(fleet, request)[row]:
            return count
    return 0


def by_hand(fleet: Fleet, closed: tuple[int, ...], beside: Beside) -> dict[str, Fragmentation]:
    """GPU by GPU; by model, and "all" for the whole fleet."""
    sums: dict[str, Fragmentation] = {}
    for name, row in fleet.rows.items():
        spec = fleet.specs[row]
        assert spec is not None, name
        if row in closed or fleet.arrays.overcommitted[row]:
            continue
        if spec.blocked not in (Reason.FITS, Reason.PLUGIN_BUSY):
            continue
        one = of_node(fleet, row, spec, beside)
        for key in ("all", spec.model or ""):
            sums[key] = added(sums[key], one) if key in sums else one
    return {key: one for key, one in sums.items() if one.nodes}


def of_node(fleet: Fleet, row: int, spec: NodeSpec, beside: Beside) -> Fragmentation:
    gpus = free_gpus(fleet, row, spec)
    free = sum(milli for _, milli, _ in gpus) / 1000
    in_parts = any(pool.compute_milli < 1000 for pool in spec.pools)
    untouched = [gpu for gpu, milli, mib in gpus if (milli, mib) == (1000, MIB) and not in_parts]
    shared = [(milli, mib) for _, milli, mib in gpus if spec.sharing_resource]
    cpu, memory = (max(amount, 0) for amount in fleet.usage[row].free_cpu_and_memory())
    return Fragmentation(
        nodes=bool(gpus),
        gpus=len(gpus),
        free=free,
        whole=len(untouched),
        whole_nodes=len(untouched) == len(spec.gpus),
        largest_request=0 if in_parts else largest(fleet, row, spec, island=False),
        largest_island=0 if in_parts else largest(fleet, row, spec, island=True),
        largest_node=0 if in_parts else len(gpus),
        stranded_compute=sum(milli for milli, mib in shared if mib < 0.05 * MIB) / 1000,
        stranded_memory_mib=int(sum(mib for milli, mib in shared if milli < 50)),
        stranded_by_cpu=max(0.0, free - cpu / each(beside.cpu_milli, spec.cpu_milli, spec)),
        stranded_by_host_memory=max(
            0.0, free - memory / 2**20 / each(beside.memory_mib, spec.memory_bytes / 2**20, spec)
        ),
    )


def each(average: float, total: float, spec: NodeSpec) -> float:
    """What one GPU of the node needs beside it."""
    return max(min(average, 0.9 * total / max(len(spec.gpus), 1)), 1e-6)


def added(a: Fragmentation, b: Fragmentation) -> Fragmentation:
    values = {}
    for name in Fragmentation.__slots__:
        add = max if name.startswith("largest") else lambda x, y: x + y
        values[name] = add(getattr(a, name), getattr(b, name))
    return Fragmentation(**values)


def assert_equal(found: Fragmentation, expected: Fragmentation) -> None:
    for name in Fragmentation.__slots__:
        assert math.isclose(getattr(found, name), getattr(expected, name), abs_tol=1e-6), name


@settings(deadline=None)
@given(fleets(), st.sampled_from([Beside(8000, 64 << 10), Beside(40_000, 1 << 20)]))
def test_every_figure_equals_one_counted_by_hand(
    fleet_and_cordoned: tuple[Fleet, tuple[int, ...]], beside: Beside
) -> None:
    fleet, cordoned = fleet_and_cordoned
    total, by_model = fragmentation(fleet, on_offer(fleet, cordoned), beside)
    expected = by_hand(fleet, cordoned, beside)
    assert {*by_model} == {*expected} - {"all"}
    for name, one in by_model.items():
        assert_equal(one, expected[name])
    if "all" in expected:
        assert_equal(total, expected["all"])
    else:
        assert total.nodes == total.gpus == 0


def test_a_node_that_takes_nothing_has_nothing_on_offer() -> None:
    fleet = fleet_of(
        counted_node("open"),
        counted_node("cordoned"),
        counted_node("blocked", blocked=Reason.REPARTITIONING),
        counted_node("full"),
        sliced("sliced", 8),
        counted_node("spot", spot=True),
    )
    fleet.take(allocation_of(fleet, 3, Request(devices=((GPU, 9),))))
    total, _ = fragmentation(fleet, on_offer(fleet, [1]), Beside())
    assert (total.nodes, total.gpus, total.whole, total.whole_nodes) == (3, 24, 16, 2)
    assert whole_nodes(fleet.arrays, whole_gpus(fleet.arrays))[:6].tolist() == [1, 1, 1, 0, 0, 1]


def test_a_gpu_without_a_free_share_is_stranded() -> None:
    card = Gpu(MIB, divisible=True, slots=1)
    fleet = fleet_of(NodeSpec("n", 64_000, 512 * GIB, (card, card), sharing_resource="share"))
    fleet.take(Allocation(0, 0, 0, shares=((0, 300, MIB // 4),)))
    total, _ = fragmentation(fleet, on_offer(fleet), Beside())
    assert total.stranded_compute == pytest.approx(0.7)
    assert total.stranded_memory_mib == MIB - MIB // 4


def test_where_it_is_not_known_what_pods_ask_for_only_nothing_is_too_little() -> None:
    fleet = fleet_of(counted_node("a"), counted_node("b"))
    fleet.take(Allocation(0, 64_000, 0))
    total, _ = fragmentation(fleet, on_offer(fleet), Beside())
    assert (total.stranded_by_cpu, total.stranded_by_host_memory) == (8, 0)


def test_nothing_of_an_idle_node_is_stranded_by_what_pods_of_other_models_ask_for() -> None:
    fleet = fleet_of(counted_node("idle"), counted_node("busy"))
    fleet.take(Allocation(0, 6_000, 50 * GIB))  # of DaemonSets
    fleet.take(Allocation(1, 32_000, 0))
    total, _ = fragmentation(fleet, on_offer(fleet), Beside(100_000, 1 << 20))
    assert total.stranded_by_cpu == pytest.approx(8 - 32 / (0.9 * 64 / 8))
    assert total.stranded_by_host_memory == 0


def test_an_empty_fleet_has_nothing() -> None:
    total, by_model = fragmentation(Fleet(), on_offer(Fleet()), Beside())
    assert total.nodes == 0
    assert not by_model
