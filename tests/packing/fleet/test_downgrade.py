"""Which devices are weaker than those that a pod has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from packing.fleet.downgrade import device_on, weaker_rows
from packing.fleet.fleet import Fleet
from packing.model.node_spec import Gpu, NodeSpec, Pool
from packing.model.request import Request, Shares
from tests.packing.fleet.builders import GIB, GPU, divisible_node, fleet_of

ONE = Request(devices=((GPU, 1),))


def node(name: str, model: str = "A100 SXM4 80GB", mib: int = 81_920, **pool) -> NodeSpec:
    whole = Pool(GPU, 8, tuple(range(8)), 1000, mib)
    return NodeSpec(name, 64_000, 512 * GIB, (Gpu(mib),) * 8, (replace(whole, **pool),), model)


def weaker_than_on(row: int, fleet: Fleet, request: Request = ONE) -> list[bool]:
    """For each node whether its devices are weaker than those on this row."""
    has = device_on(fleet, row, request)
    assert has is not None
    return weaker_rows(fleet, request, has)[: len(fleet.rows)].tolist()


HOME = node("home")
OTHERS = {
    "the same": (node("n"), False),
    "memory differs with the driver": (node("n", mib=81_000), False),
    "a better model": (node("n", "H100 SXM5 80GB"), False),
    "a lesser model": (node("n", "T4"), True),
    "less memory": (node("n", mib=40_960), True),
    "memory that is not known": (node("n", mib=0), True),
    "a replica": (node("n", "H100 SXM5 80GB", compute_milli=500, memory_mib=81_920), True),
    "a MIG instance": (node("n", "H100 SXM5 80GB", profile="7g.80gb"), True),
    "spot": (replace(node("n"), spot=True), True),
    "no such device": (NodeSpec("n", 64_000, GIB), False),
}


@pytest.mark.parametrize("name", OTHERS)
def test_beside_a_whole_gpu(name: str) -> None:
    other, is_weaker = OTHERS[name]
    assert weaker_than_on(0, fleet_of(HOME, other)) == [False, is_weaker]


def test_a_part_may_become_a_whole_gpu_or_a_larger_part() -> None:
    quarter = {"compute_milli": 250, "memory_mib": 20_480}
    half = {"compute_milli": 500, "memory_mib": 40_960}
    fleet = fleet_of(node("home", **quarter), node("half", **half), node("whole"), node("eighth", total=1))
    assert not any(weaker_than_on(0, fleet))
    assert weaker_than_on(1, fleet)[:3] == [True, False, False]


def test_a_share_keeps_its_size_so_only_the_gpu_counts() -> None:
    share = Request(shares=Shares(1, 500, memory_milli=500, resource=GPU))
    specs = [divisible_node(name, model=model) for name, model in (("a", "T4"), ("b", "A100 SXM4 80GB"))]
    fleet = fleet_of(*specs)
    assert not any(weaker_than_on(0, fleet, share))
    assert weaker_than_on(1, fleet, share) == [True, False]
