"""Free and stranded MIG slices, against trying all sets of instances, and after any sequence of changes."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from packing.fleet.fleet import Fleet
from packing.fleet.mig_slices import MOST_PROFILES, MigStock, ProfileSlices, disjoint
from packing.fleet.node_usage import Allocation
from packing.fleet.stranded import on_offer
from packing.model.mig_instances import Instance, window
from packing.model.node_spec import Gpu, NodeSpec, Pool
from packing.model.reasons import Reason
from tests.packing.fleet.builders import GIB, MIB, counted_node, fleet_of

SMALL, MIDDLE, LARGE = "1g.10gb", "2g.20gb", "3g.40gb"
WINDOWS = {
    SMALL: tuple(window(start, 1) for start in range(7)),
    MIDDLE: tuple(window(start, 2) for start in (0, 2, 4)),
    LARGE: (window(4, 4), window(0, 4)),
}
SIZE = {SMALL: 1, MIDDLE: 2, LARGE: 4}
ON_DEMAND = tuple(
    Instance(name, 142 * SIZE[name], 10_000 * SIZE[name], windows) for name, windows in WINDOWS.items()
)


def advertised(name: str, gpus: int, counts: dict[str, int], **more) -> NodeSpec:
    """H100s that are divided into instances behind a device plugin."""
    pools = tuple(
        Pool(f"nvidia.com/mig-{profile}", count, tuple(range(gpus)), 142, 10_000, profile=profile)
        for profile, count in counts.items()
    )
    return NodeSpec(name, 64_000, 512 * GIB, (Gpu(MIB),) * gpus, pools, model="H100 SXM5 80GB", **more)


def on_demand(name: str, gpus: int, **more) -> NodeSpec:
    card = Gpu(40_000, divisible=True, compute_milli=571, instances=ON_DEMAND)
    return NodeSpec(name, 64_000, 512 * GIB, (card,) * gpus, sharing_resource="share", **more)


@cache
def most_disjoint(windows: tuple[int, ...], taken: int) -> int:
    """By trying every set of windows."""
    free = [one for one in windows if not one & taken]
    for count in range(len(free), 0, -1):
        for chosen in combinations(free, count):
            if sum(one.bit_count() for one in chosen) == np.bitwise_or.reduce(chosen).item().bit_count():
                return count
    return 0


@given(st.sampled_from([*WINDOWS.values()]), st.integers(0, 255))
def test_as_many_windows_as_the_best_set_has(windows: tuple[int, ...], taken: int) -> None:
    assert disjoint(windows, taken) == most_disjoint(windows, taken)


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4)), min_size=1).map(
        lambda runs: tuple(window(start, size) for start, size in runs)
    ),
    st.integers(0, 255),
)
def test_also_for_windows_of_any_length(windows: tuple[int, ...], taken: int) -> None:
    windows = tuple(dict.fromkeys(windows))[:8]
    assert disjoint(windows, taken) == most_disjoint(windows, taken)


def by_hand(fleet: Fleet, offered: np.ndarray) -> tuple[int, dict[str, ProfileSlices]]:
    """Free slices and profiles of all nodes together, which must be of one model."""
    free_slices, found = 0, {name: (0, 0) for name in WINDOWS}
    for row, spec in enumerate(fleet.specs):
        if spec is None or not offered[row]:
            continue
        counted = {pool.profile: pool for pool in spec.pools if pool.profile}
        for gpus, free, now in (
            [_counted(fleet, row, spec, counted)] if counted else _divided(fleet, row, spec)
        ):
            free_slices += free
            for name, windows in WINDOWS.items():
                instances, stranded = found[name]
                most = gpus * SIZE[name] * most_disjoint(windows, 0)
                stuck = max(0, min(free, most) - SIZE[name] * now.get(name, 0))
                found[name] = instances + now.get(name, 0), stranded + stuck
    return free_slices, {name: ProfileSlices(*figures) for name, figures in found.items()}


def _counted(fleet: Fleet, row: int, spec: NodeSpec, counted: dict[str, Pool]):
    numbers = fleet.names.resources
    free = {name: int(fleet.arrays.free_devices[numbers[p.resource], row]) for name, p in counted.items()}
    taken = sum((pool.total - free[name]) * SIZE[name] for name, pool in counted.items())
    return len(spec.gpus), max(0, 8 * len(spec.gpus) - taken), free  # a node may announce more than fits


def _divided(fleet: Fleet, row: int, spec: NodeSpec):
    for gpu in range(len(spec.gpus)):
        taken = fleet.usage[row].slices(gpu)
        now = {name: most_disjoint(windows, taken) for name, windows in WINDOWS.items()}
        yield 1, (255 & ~taken).bit_count(), now


LAYOUTS = st.fixed_dictionaries({SMALL: st.integers(1, 4), MIDDLE: st.integers(1, 2), LARGE: st.just(1)})


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3), LAYOUTS), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([*WINDOWS])), max_size=8),
    st.integers(-1, 3),
    st.integers(1, 3),
)
@example([(1, {SMALL: 3, MIDDLE: 1, LARGE: 1})], [(0, SMALL)] * 3 + [(0, MIDDLE), (0, LARGE)], -1, 1)
def test_behind_a_device_plugin_only_the_instances_that_exist_can_be_used(nodes, pods, closed, most):
    fleet = Fleet(nodes=1, gpus=1)
    stock = MigStock(fleet)
    for row, (gpus, counts) in enumerate(nodes):
        fleet.put(advertised(f"n{row}", gpus, counts))
        stock.update(on_offer(fleet), most)
    for row, profile in pods:
        if row < len(nodes):
            number = fleet.names.resources[f"nvidia.com/mig-{profile}"]
            fleet.take(Allocation(row, 0, 0, devices=((number, 1),)))
            stock.update(on_offer(fleet), most)
    offered = on_offer(fleet, [closed] if 0 <= closed < len(nodes) else [])
    while not stock.update(offered, most):
        pass
    free, profiles = by_hand(fleet, offered)
    assert sum(stock.free_slices().values()) == free
    found = {name: one for (_, name), one in stock.profiles().items()}
    assert {name: found.get(name, ProfileSlices(0, 0)) for name in WINDOWS} == profiles


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 1), st.sampled_from([*WINDOWS.values()])), max_size=9
    ),
    st.integers(1, 4),
)
def test_where_instances_are_made_on_demand_free_windows_can_be_used(pods, most):
    fleet = fleet_of(*(on_demand(f"n{row}", 2, model="H100 SXM5 80GB") for row in range(4)))
    stock = MigStock(fleet)
    for row, gpu, windows in pods:
        if free := [one for one in windows if not one & fleet.usage[row].slices(gpu)]:
            fleet.take(Allocation(row, 0, 0, shares=((gpu, 142, 10_000),), slices=((gpu, free[0]),)))
        stock.update(on_offer(fleet), most)
    while not stock.update(on_offer(fleet), most):
        pass
    free, profiles = by_hand(fleet, on_offer(fleet))
    assert stock.free_slices() == {"H100 SXM5 80GB": free}
    assert {name: one for (_, name), one in stock.profiles().items()} == profiles


def settled(fleet: Fleet) -> MigStock:
    stock = MigStock(fleet)
    assert stock.update(on_offer(fleet), 1000)
    return stock


def test_an_empty_gpu_strands_nothing_for_a_profile_that_it_can_be_divided_into() -> None:
    stock = settled(fleet_of(on_demand("n", 3)))
    assert stock.free_slices() == {"": 24}
    assert {name: one.stranded for (_, name), one in stock.profiles().items()} == dict.fromkeys(WINDOWS, 0)
    assert stock.profiles()["", LARGE].instances == 6


def test_a_layout_without_a_profile_strands_all_slices_for_it() -> None:
    fleet = fleet_of(advertised("a", 1, {SMALL: 7}), advertised("b", 1, {LARGE: 2}))
    stock = settled(fleet)
    assert stock.profiles() == {
        ("H100 SXM5 80GB", SMALL): ProfileSlices(7, 7),  # the two 3g.40gb could be seven 1g.10gb
        ("H100 SXM5 80GB", LARGE): ProfileSlices(2, 8),
    }


def test_nodes_without_mig_and_models_without_geometry_do_not_count() -> None:
    odd = advertised("odd", 1, {SMALL: 7})
    stock = settled(fleet_of(counted_node("n"), NodeSpec("odd", 1, 1, odd.gpus, odd.pools, model=None)))
    assert stock.profiles() == {}
    assert stock.free_slices() == {}


def test_a_node_that_goes_takes_its_slices_along() -> None:
    fleet = fleet_of(advertised("a", 1, {SMALL: 7}), advertised("b", 1, {SMALL: 7}))
    stock = settled(fleet)
    fleet.remove("a")
    fleet.block(fleet.rows["b"], Reason.REPARTITIONING)
    assert stock.update(on_offer(fleet), 1000)
    assert stock.free_slices() == {"H100 SXM5 80GB": 0}
    assert stock.profiles() == {("H100 SXM5 80GB", SMALL): ProfileSlices(0, 0)}


def test_profiles_are_bounded() -> None:
    made_up = tuple(
        Instance(f"1g.{number}gb", 10, number, (window(0, 1),)) for number in range(1, MOST_PROFILES + 10)
    )
    card = Gpu(100, divisible=True, compute_milli=10, instances=(*made_up, Instance("x" * 99, 1, 1, (1,))))
    stock = settled(fleet_of(NodeSpec("n", 1, 1, (card,), sharing_resource="share")))
    assert len(stock.profiles()) == MOST_PROFILES
