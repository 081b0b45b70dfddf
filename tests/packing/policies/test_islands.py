"""Islands in the default policy, against brute force."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packing.cost.demand import Mix
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.model.node_spec import Gpu, NodeSpec, Pool
from packing.model.request import Request, Shares, whole_gpus
from packing.policies.interface import update_now
from packing.policies.inventory import InventoryPolicy
from packing.policies.registry import POLICIES
from tests.examples import examples

from ..fleet.builders import GIB, GPU, MIB

SIXTEEN = 16


def jobs(*sizes: int) -> Mix:
    """Jobs of whole GPUs, equally frequent."""
    return Mix(tuple(Request(devices=((GPU, size),)) for size in sizes), (1 / len(sizes),) * len(sizes))


def node(name: str, gpus: int, islands, *, plugin: bool = False, **more) -> NodeSpec:
    cards = (Gpu(MIB, divisible=not plugin),) * gpus
    pool = Pool(GPU, gpus, tuple(range(gpus)), 1000, MIB)
    sharing = "" if plugin else GPU
    return NodeSpec(
        name, 640_000, 4096 * GIB, cards, (pool,), islands=islands, sharing_resource=sharing, **more
    )


def fleet_of(*nodes: NodeSpec) -> Fleet:
    fleet = Fleet(nodes=len(nodes), gpus=max(len(node.gpus) for node in nodes))
    for one in nodes:
        fleet.put(one)
    return fleet


def take(fleet: Fleet, row: int, gpus) -> None:
    fleet.take(Allocation(row, 0, 0, shares=tuple((gpu, 1000, MIB) for gpu in gpus)))


def planned(fleet: Fleet, mix: Mix) -> InventoryPolicy:
    policy = InventoryPolicy(mix)
    update_now(policy, fleet)
    return policy


PAIRS, QUADS, EIGHT = ((0, 1), (2, 3)), ((0, 1, 2, 3), (4, 5, 6, 7)), (tuple(range(8)),)
DEGRADED = ((0, 1, 3, 4, 5, 6, 7),)


@st.composite
def grouped_nodes(draw, most: int = SIXTEEN) -> tuple[Fleet, set[int]]:
    """A node with up to 16 GPUs in random islands, and its GPUs that nobody has."""
    gpus = draw(st.integers(2, most))
    order = draw(st.permutations(range(gpus)))
    cuts = sorted(draw(st.sets(st.integers(1, gpus - 1))))
    groups = [tuple(order[a:b]) for a, b in zip([0, *cuts], [*cuts, gpus], strict=True)]
    fleet = fleet_of(node("n", gpus, tuple(group for group in groups if len(group) > 1)))
    taken = draw(st.sets(st.integers(0, gpus - 1), max_size=gpus - 1))
    take(fleet, 0, taken)
    return fleet, set(range(gpus)) - taken


@pytest.mark.parametrize("name", ["inventory", "best-fit"])
@settings(max_examples=examples(80))
@given(grouped_nodes(), st.integers(2, SIXTEEN))
def test_as_few_islands_as_possible_are_taken(name: str, state: tuple[Fleet, set[int]], count: int):
    """Oracle: all subsets of the free GPUs. Where one island holds them, one with the fewest free GPUs."""
    fleet, free = state
    if count > len(free):
        return
    request = Request(shares=whole_gpus(count, GPU))
    chosen = set(POLICIES[name]().choose(fleet, request, 0))
    spec = fleet.specs[0]
    assert spec is not None
    if not spec.islands:
        return

    def touched(gpus) -> int:
        return sum(bool(set(gpus) & set(group)) for group in spec.peers)

    assert chosen <= free
    assert len(chosen) == count
    if count <= 5 or len(free) - count <= 5:
        fewest = min(touched(gpus) for gpus in combinations(sorted(free), count))
    else:
        sizes = sorted((len(free & set(group)) for group in spec.peers), reverse=True)
        fewest = next(k for k in range(1, len(sizes) + 1) if sum(sizes[:k]) >= count)
    assert touched(chosen) == fewest
    if fewest == 1:
        room = [len(free & set(group)) for group in spec.peers if len(free & set(group)) >= count]
        (own,) = (group for group in spec.peers if chosen <= set(group))
        assert len(free & set(own)) == min(room)


@settings(max_examples=examples(60))
@given(grouped_nodes(8), st.lists(st.sampled_from([2, 3, 4, 8]), min_size=1, max_size=3, unique=True))
def test_a_small_request_takes_the_gpu_that_costs_the_islands_least(state: tuple[Fleet, set[int]], sizes):
    """Oracle: the loss of jobs that the islands hold, for each GPU; all GPUs are equal otherwise."""
    fleet, free = state
    spec = fleet.specs[0]
    assert spec is not None
    if not spec.islands or not free:
        return
    mix = jobs(1, *sizes)
    policy = planned(fleet, mix)
    (chosen,) = policy.choose(fleet, Request(shares=whole_gpus(1, GPU)), 0)
    priced = policy._priced
    assert priced is not None
    prices = dict(zip(sizes, priced.values.prices[1 : len(sizes) + 1].tolist(), strict=True))
    largest = max(map(len, spec.islands))

    def held(left: set[int]) -> float:
        return sum(
            prices[size] * min(sum(len(left & set(group)) // size for group in spec.peers), len(left) // size)
            for size in sizes
            if size <= largest
        )

    losses = {gpu: held(free) - held(free - {gpu}) for gpu in free}
    assert losses[chosen] == pytest.approx(min(losses.values()), abs=1e-4)


def best(fleet: Fleet, policy: InventoryPolicy, request: Request) -> str:
    row = int(np.argmin(policy.cost(fleet, request)))
    spec = fleet.specs[row]
    assert spec is not None
    return spec.name


@pytest.mark.parametrize("plugin", [False, True], ids=["Stowage chooses", "the plugin chooses"])
@pytest.mark.parametrize(("size", "name"), [(1, "pairs"), (2, "pairs"), (4, "quads"), (8, "switch")])
def test_jobs_go_where_an_island_holds_them_and_no_larger_one_is_split(plugin: bool, size: int, name: str):
    kinds = {"switch": (8, EIGHT), "quads": (8, QUADS), "pairs": (4, PAIRS)}
    nodes = [node(f"{kind}-{i}", *of, plugin=plugin) for i in range(8) for kind, of in kinds.items()]
    fleet = fleet_of(*nodes)
    mix = jobs(1, 2, 4) if size == 4 else jobs(1, 2, 4, 8)
    chosen = best(fleet, planned(fleet, mix), Request(devices=((GPU, size),)))
    assert chosen.startswith(name)


def test_a_degraded_switch_counts_as_what_it_is():
    """Single GPUs go there, and jobs for eight peers do not; seven are still peers."""
    fleet = fleet_of(node("sound", 8, EIGHT), node("degraded", 8, DEGRADED))
    policy = planned(fleet, jobs(1, 8))
    assert best(fleet, policy, Request(devices=((GPU, 8),))) == "sound"
    assert best(fleet, policy, Request(devices=((GPU, 1),))) == "degraded"
    assert policy.choose(fleet, Request(shares=whole_gpus(1, GPU)), 1) == (2,)
    assert 2 not in policy.choose(fleet, Request(shares=whole_gpus(7, GPU)), 1)


def test_a_pod_that_does_not_care_may_get_gpus_apart():
    """It takes what is left over of islands that are split already."""
    fleet = fleet_of(node("n", 8, QUADS))
    take(fleet, 0, (0, 1, 2))
    policy = planned(fleet, jobs(1, 2, 4))
    scattered = Request(devices=((GPU, 2),), scattered=True)
    assert policy.terms(fleet, scattered, 0)["islands"] < policy.terms(
        fleet, Request(devices=((GPU, 2),)), 0
    )["islands"] or 3 in policy.choose(fleet, scattered, 0)
    assert 3 in policy.choose(fleet, scattered, 0)
    assert 3 not in policy.choose(fleet, Request(devices=((GPU, 2),)), 0)


@pytest.mark.parametrize(
    "request_", [Request(devices=((GPU, 2),)), Request(shares=Shares(2, 500, 1, resource=GPU))]
)
def test_unknown_topology_changes_nothing(request_):
    """Neither the costs nor the GPUs: as if there were no such thing as NVLink."""
    fleet = fleet_of(node("a", 8, ()), node("b", 4, ()))
    take(fleet, 0, (0, 3))
    policy = planned(fleet, jobs(1, 2, 4, 8))
    for row in range(2):
        assert policy.terms(fleet, request_, row)["islands"] == 0
    assert policy.choose(fleet, request_, 0) == (1, 2)


def test_where_no_node_has_nvlink_the_order_of_nodes_is_the_same():
    """A fleet of such nodes is packed as one whose topology is not known."""
    costs = []
    for known in (False, True):
        fleet = fleet_of(*(node(f"n{i}", 4 + 4 * (i % 2), (), no_nvlink=known) for i in range(6)))
        for row, taken in enumerate([(0, 3), (), (), (1,), (0,), (0, 1, 2)]):
            take(fleet, row, taken)
        policy = planned(fleet, jobs(1, 2, 4))
        costs.append([policy.cost(fleet, Request(devices=((GPU, size),))).copy() for size in (1, 2, 4)])
    for unknown, none in zip(*costs, strict=True):
        assert np.argsort(none, kind="stable").tolist() == np.argsort(unknown, kind="stable").tolist()
