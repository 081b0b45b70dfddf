"""Every GPU of every cluster of the tests is in exactly one step of the audit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml

from extender.cluster.census import CensusTaker
from extender.cluster.factory import state_of
from extender.data import CLUSTER
from extender.explain.gpu_use import gpu_use
from extender.settings import Settings
from extender.source.snapshot import SnapshotSource, read
from tests.examples import some

TESTS, EXAMPLES = Path(__file__).parents[1], Path(__file__).parents[2] / "docs" / "examples"
CLUSTERS = [CLUSTER, *sorted(EXAMPLES.glob("*.json")), *sorted(TESTS.glob("*/*/cluster.json"))]


@pytest.mark.parametrize("path", some(CLUSTERS, 25), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_steps_sum_to_the_installed_gpus(path: Path) -> None:
    beside, written = path.with_name("pod.json"), path.with_name("right.yaml")
    settings = yaml.safe_load(written.read_text()).get("settings", {}) if written.exists() else {}
    state = state_of(Settings.model_validate(settings))
    for events in SnapshotSource(read([path, beside] if beside.exists() else [path]), "test").list_once():
        state.apply(events)
    census = CensusTaker(state)
    installed = asyncio.run(census.take()).totals.gpus
    use = asyncio.run(gpu_use(state, census))
    of_node = {name: 0.0 for name in state.nodes}
    for part in use.parts:
        assert part.gpus > 0
        of_node[part.node] += part.gpus
    assert use.installed == installed
    assert {name: round(gpus, 6) for name, gpus in of_node.items()} == {
        name: count.gpus if (count := census.node(name)) else 0 for name in state.nodes
    }
