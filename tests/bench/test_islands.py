"""The benchmark of NVLink islands: its books are right, and a job's GPUs are those that it says."""

from __future__ import annotations

import pytest

from bench.packing.islands import COLUMNS, KINDS, MIXES, Site, cost_of_topology, node_specs, replay, table
from packing.cost.demand import Mix
from packing.model.request import Request

GPUS = 16


@pytest.mark.parametrize("plugin", [False, True])
@pytest.mark.parametrize("column", COLUMNS)
def test_no_gpu_is_given_twice_and_all_come_back(column: str, plugin: bool) -> None:
    sizes = (8, 1, 4, 2, 2, 1, 8, 4, 4, 8, 2, 1, 1, 1)
    requests = {size: Request(devices=(("nvidia.com/gpu", size),)) for size in {*sizes}}
    site = Site(column, Mix(tuple(requests.values()), (0.25,) * 4), GPUS, plugin=plugin, seed=1)
    placed, free = [], 3 * GPUS
    for size in sizes:
        held = site.place(requests[size])
        if held:
            placed.append(held)
            free -= size
            assert len(held[1]) == size
        assert sum(map(len, site._free)) == free
    assert placed
    for held in placed:
        site.leave(*held)
    assert sum(map(len, site._free)) == 3 * GPUS
    assert (site._fleet.arrays.compute == site._fleet.arrays.compute_capacity).all()


def test_the_fleet_has_as_many_gpus_of_each_kind() -> None:
    specs = node_specs(GPUS, plugin=True, known=True)
    for size, islands in KINDS:
        assert sum(len(s.gpus) for s in specs if (len(s.gpus), s.islands) == (size, islands)) == GPUS


@pytest.mark.nightly
def test_rows_become_a_table() -> None:
    found = []
    for plugin in (False, True):
        for departures, load in ((False, 1.0), (True, 0.9), (True, 1.1)):
            for column in COLUMNS[:2]:
                figures = replay(
                    column, "pairs", plugin=plugin, departures=departures, load=load, seed=3, gpus=GPUS
                )
                assert 0 <= figures["peers"] <= 100
                assert 0 < figures["allocated"] <= 100
                keys = {"plugin": plugin, "mix": "pairs", "departures": departures, "load": load}
                found.append(keys | {"column": column, "seed": 3} | figures)
    assert len(table(found, COLUMNS[:2]).splitlines()) == 9
    assert cost_of_topology(found).count("allocation by") == 2
    assert "pairs" in MIXES
