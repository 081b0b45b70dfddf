"""When tables are planned and prices updated."""

import pytest

from packing.fleet.fleet import Fleet
from packing.fleet.placement import allocation_of
from packing.model.node_spec import Gpu, NodeSpec
from packing.model.request import Request
from packing.policies.interface import Due
from packing.policies.upkeep import Upkeep


def fleet_of(nodes, gpus=8):
    fleet = Fleet(nodes=nodes, gpus=8)
    for i in range(nodes):
        fleet.put(NodeSpec(f"n{i}", 9000, 9000, (Gpu(1000, divisible=True),) * gpus))
    return fleet


def change(fleet, times):
    for _ in range(times):
        fleet.take(allocation_of(fleet, 0, Request()))


def test_a_plan_is_due_when_the_learned_pods_have_doubled_and_later_after_500():
    fleet, upkeep, planned = fleet_of(1000), Upkeep(), []
    for learned in range(1, 2100):
        if upkeep.due(fleet, learned) is Due.TABLES:
            planned.append(learned)
    assert planned == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1012, 1512, 2012]


def test_the_first_plan_needs_a_gpu_or_a_pod():
    without, upkeep = fleet_of(2, gpus=0), Upkeep()
    assert upkeep.due(without, 0) is Due.PRICES
    assert upkeep.due(without, 0) is None
    assert upkeep.due(without, 1) is Due.TABLES
    fleet = fleet_of(1)
    upkeep = Upkeep()
    assert upkeep.due(fleet, 0) is Due.TABLES
    assert upkeep.due(fleet, 0) is None


@pytest.mark.parametrize(("nodes", "changes"), [(1, 1), (38, 25), (125, 81), (776, 500)])
def test_prices_are_due_after_so_many_changes_per_gpu(nodes, changes):
    fleet, upkeep = fleet_of(nodes), Upkeep()
    assert upkeep.due(fleet, 0) is Due.TABLES
    change(fleet, changes - 1)
    assert upkeep.due(fleet, 0) is None
    change(fleet, 1)
    assert upkeep.due(fleet, 0) is Due.PRICES
    assert upkeep.due(fleet, 0) is None


def test_when_overdue_one_change_or_one_new_pod_is_enough():
    fleet, upkeep = fleet_of(100), Upkeep()
    assert upkeep.due(fleet, 10) is Due.TABLES
    assert upkeep.due(fleet, 10, overdue=True) is None
    change(fleet, 1)
    assert upkeep.due(fleet, 10) is None
    assert upkeep.due(fleet, 10, overdue=True) is Due.PRICES
    assert upkeep.due(fleet, 11, overdue=True) is Due.TABLES


def test_the_gpus_are_those_of_now():
    fleet, upkeep = fleet_of(125), Upkeep()
    assert upkeep.due(fleet, 0) is Due.TABLES
    change(fleet, 50)
    assert upkeep.due(fleet, 0) is None
    for i in range(70):
        fleet.remove(f"n{i + 1}")
    assert upkeep.due(fleet, 0) is Due.PRICES
    change(fleet, 36)
    assert upkeep.due(fleet, 0) is Due.PRICES
