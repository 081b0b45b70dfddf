"""A pod that names no model gets the least that serves it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packing.cost.device_costs import device_costs, size_weight
from packing.fleet.fleet import Fleet
from packing.model.gpu_catalog import models
from packing.model.node_spec import Gpu, NodeSpec, Pool
from packing.model.request import Request, Shares
from tests.packing.fleet.builders import GIB, GPU, divisible_node, fleet_of

NAMES = st.sampled_from([model.name for model in models()])
ONE = Request(devices=((GPU, 1),))
TURNOVER = st.floats(0, 1)


def node(name: str, model: str, parts: int = 1, gpus: int = 4) -> NodeSpec:
    """Whole GPUs of a model, or so many replicas of each."""
    separate = None if parts == 1 else gpus
    pool = Pool(GPU, gpus * parts, tuple(range(gpus)), 1000 // parts, 80_000 // parts, separate=separate)
    return NodeSpec(name, 64_000, 512 * GIB, (Gpu(80_000),) * gpus, (pool,), model)


def costs(fleet: Fleet, request: Request = ONE, turnover: float = 0) -> dict[str, float]:
    found = device_costs(fleet, request, size_weight(turnover))
    return {name: float(found[row]) for name, row in fleet.rows.items()}


@given(NAMES, NAMES, st.integers(2, 10), TURNOVER)
def test_a_part_of_any_gpu_comes_before_any_whole_gpu(
    parts_of: str, whole: str, parts: int, turnover: float
) -> None:
    found = costs(fleet_of(node("parts", parts_of, parts), node("whole", whole)), turnover=turnover)
    assert found["parts"] < found["whole"]


@given(NAMES, NAMES, st.integers(1, 10), TURNOVER)
def test_of_equal_parts_those_of_the_gpu_of_less_value_come_first(
    a: str, b: str, parts: int, turnover: float
) -> None:
    fleet = fleet_of(node("a", a, parts), node("b", b, parts))
    values, found = fleet.arrays.gpu_value, costs(fleet, turnover=turnover)
    assert np.sign(found["a"] - found["b"]) == np.sign(values[0] - values[1])


@given(st.integers(2, 10), st.tuples(TURNOVER, TURNOVER))
def test_a_part_is_preferred_less_the_more_pods_have_ended(
    parts: int, turnovers: tuple[float, float]
) -> None:
    fleet = fleet_of(node("parts", "T4", parts), node("whole", "T4"))
    low, high = (costs(fleet, turnover=turnover)["whole"] for turnover in sorted(turnovers))
    assert low >= high > 0


def test_while_nothing_has_ended_a_part_is_worth_several_gpus_of_slots_and_later_less_than_one() -> None:
    fleet = fleet_of(node("parts", "T4", 2), node("whole", "T4"))
    assert costs(fleet, turnover=0)["whole"] > 3
    assert costs(fleet, turnover=0.9)["whole"] < 0.5


def test_where_all_nodes_are_alike_devices_cost_nothing() -> None:
    assert set(costs(fleet_of(node("a", "T4"), node("b", "T4"))).values()) == {0}


def test_nodes_without_the_devices_and_forbidden_models_do_not_count() -> None:
    fleet = fleet_of(node("t4", "T4"), node("h100", "H100 SXM5 80GB"), NodeSpec("cpu", 64_000, GIB))
    assert costs(fleet)["cpu"] == 0
    only = Request(devices=((GPU, 1),), models=frozenset({"H100 SXM5 80GB"}))
    assert set(costs(fleet, only).values()) == {0}
    assert set(costs(fleet, Request(devices=(("amd.com/gpu", 1),))).values()) == {0}


def test_the_size_of_a_share_is_its_own_wish_and_costs_nothing() -> None:
    """Only the value of the GPU counts, by the part that the share takes."""
    fleet = fleet_of(divisible_node("a100", model="A100 SXM4 80GB"), divisible_node("t4", model="T4"))
    found = costs(fleet, Request(shares=Shares(1, 500, memory_milli=500, resource=GPU)))
    assert found["t4"] == 0
    assert 0 < found["a100"] < 0.1
