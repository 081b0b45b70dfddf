"""What nodes advertise cannot make the fleet grow without bound."""

import numpy as np
import pytest

from packing.fleet.fleet import Fleet
from packing.fleet.names import MOST_KINDS, MOST_RESOURCES, TooMany
from packing.fleet.placement import allocation_of
from packing.model.node_spec import MOST_GPUS, Gpu, NodeSpec, Pool
from packing.model.reasons import Reason
from packing.model.request import ModelName, Models, Request
from packing.policies.inventory import InventoryPolicy

from .builders import GIB, GPU, MIB, arrays_of, counted_node, fleet_of, why


def test_resources_are_bounded_and_those_that_no_node_has_are_forgotten():
    fleet = fleet_of(counted_node("honest"))
    cost = InventoryPolicy()
    for i in range(3 * MOST_RESOURCES):
        pools = (Pool(f"nvidia.com/mig-{i}g.1gb", 1, (0,), 1000, MIB), Pool("x", 1, (0,), 1000, MIB))
        fleet.put(NodeSpec("rogue", 1000, GIB, (Gpu(MIB),), pools))
        held = allocation_of(fleet, 1, Request(devices=((f"nvidia.com/mig-{i}g.1gb", 1),)))
        fleet.take(held)
        assert why(fleet, Request(devices=((GPU, 8),)), "honest") is Reason.FITS
        assert why(fleet, Request(devices=((f"nvidia.com/mig-{i}g.1gb", 1),)), "rogue") is Reason.NO_FREE_GPUS
        if i % 50 == 0:
            assert np.isfinite(cost.cost(fleet, Request(devices=((GPU, 8),)))).tolist()[:2] == [True, False]
    assert len(fleet.names.resources) <= len(fleet.arrays.free_devices) <= MOST_RESOURCES


def test_a_node_with_too_many_resources_stays_as_it_was():
    fleet = fleet_of(counted_node())
    before, names = arrays_of(fleet), dict(fleet.names.resources)
    pools = tuple(Pool(f"r{i}", 1, (0,), 1, 1) for i in range(MOST_RESOURCES))
    with pytest.raises(TooMany, match="different resources"):
        fleet.put(NodeSpec("n", 1, 1, (Gpu(MIB),), (*pools, Pool(GPU, 1, (0,), 1000, MIB))))
    with pytest.raises(TooMany, match="GPUs on one node"):
        fleet.put(NodeSpec("n", 1, 1, (Gpu(MIB),) * (MOST_GPUS + 1)))
    assert fleet.names.resources == names
    for name, array in arrays_of(fleet).items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


def test_kinds_of_gpus_are_bounded_and_those_that_no_node_has_are_forgotten():
    fleet = Fleet()
    only = Request(devices=((GPU, 1),), products=Models((frozenset({ModelName.of("honest")}),)))
    fleet.put(counted_node("honest", product="honest"))
    for i in range(MOST_KINDS + 10):
        fleet.put(counted_node("rogue", product=f"product {i}"))
        assert (why(fleet, only, "honest"), why(fleet, only, "rogue")) == (Reason.FITS, Reason.WRONG_MODEL)
    assert len(fleet.names.kinds) <= MOST_KINDS
    for i in range(MOST_KINDS):
        try:
            fleet.put(counted_node(f"rogue {i}", product=f"product {i}"))
        except TooMany:
            break
    else:
        pytest.fail("there is no bound")
    assert len(fleet.names.kinds) <= MOST_KINDS
    assert why(fleet, only, "honest") is Reason.FITS


def test_sets_that_would_take_too_many_kinds_change_nothing():
    fleet = fleet_of(*(counted_node(f"n{i}") for i in range(MOST_KINDS // 2 + 1)))
    few = {f"n{i}": i % 4 for i in range(MOST_KINDS // 2 + 1)}
    fleet.tell_apart({"a": 0, "b": 1}, few)
    before, layout = arrays_of(fleet), fleet.layout
    with pytest.raises(TooMany, match="kinds"):
        fleet.tell_apart({"a": 0}, {f"n{i}": i for i in range(MOST_KINDS // 2 + 1)})
    assert fleet.layout == layout
    for name, array in arrays_of(fleet).items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)
    only_a = Request(devices=((GPU, 1),), node_set="a")
    assert [why(fleet, only_a, f"n{i}") is Reason.FITS for i in range(4)] == [False, True, False, True]
    assert why(fleet, Request(devices=((GPU, 1),), node_set="unknown"), "n0") is Reason.FITS


def test_nodes_are_taken_though_their_sets_have_no_number_left():
    fleet = Fleet()
    masks = {f"n{i}": i + 1 for i in range(MOST_KINDS + 8)}
    fleet.tell_apart({"a": 0}, {})
    fleet.sets_of_node = masks
    for name in masks:
        fleet.put(counted_node(name))
    assert len(fleet.names.kinds) <= MOST_KINDS
    assert why(fleet, Request(devices=((GPU, 1),)), f"n{MOST_KINDS + 7}") is Reason.FITS
