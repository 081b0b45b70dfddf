"""The page's cells of GPUs that come by ResourceSlices."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from extender.explain.fleet_row import FREE, fleet_row
from extender.settings import Settings
from tests.cases.answers import cluster

CASES = Path(__file__).parents[2] / "cases"


@pytest.mark.parametrize(
    ("case", "node", "used", "free"),
    [
        ("amd-dra-partitions", "mi-p", [125, 0], [875, 1000]),
        ("shared-devices-in-top", "shr", [500], [500]),
        ("vgpu-manager-dra-whole", "vm-a", [0, 0], [1000, 1000]),
    ],
)
def test_a_gpu_has_one_cell_that_is_filled_as_far_as_its_devices_are_in_use(
    case: str, node: str, used: list[int], free: list[int]
) -> None:
    state = cluster(CASES / case / "cluster.json", Settings())
    row = fleet_row(state, node, None, 0.0)
    assert row is not None
    assert len(row.gpus) == len(used)
    filled, left = Counter[int](), Counter[int]()
    for gpu, pod, _, _, milli, *_ in row.parts:
        (left if pod == FREE else filled)[gpu] += milli
    assert [filled[gpu] for gpu in range(len(used))] == used
    assert [left[gpu] for gpu in range(len(free))] == free
