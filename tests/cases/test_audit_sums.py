"""Every GPU of every cluster of the tests is in exactly one step of the audit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml

from extender.cluster.census import CensusTaker
from extender.cluster.factory import state_of
from extender.data import CLUSTER
from extender.explain.gpu_use import GpuUse, Step, gpu_use
from extender.settings import Settings
from extender.source.snapshot import SnapshotSource, read
from tests.examples import some

TESTS, EXAMPLES = Path(__file__).parents[1], Path(__file__).parents[2] / "docs" / "examples"
CLUSTERS = [CLUSTER, *sorted(EXAMPLES.glob("*.json")), *sorted(TESTS.glob("*/*/cluster.json"))]


def used(path: Path) -> GpuUse:
    """The use of the GPUs of a cluster, which adds up to its census."""
    beside, written = path.with_name("pod.json"), path.with_name("right.yaml")
    settings = yaml.safe_load(written.read_text()).get("settings", {}) if written.exists() else {}
    state = state_of(Settings.model_validate(settings))
    for events in SnapshotSource(read([path, beside] if beside.exists() else [path]), "test").list_once():
        state.apply(events)
    census = CensusTaker(state)
    installed = asyncio.run(census.take()).totals.gpus
    use = asyncio.run(gpu_use(state, census))
    assert use.installed == installed
    of_node = dict.fromkeys(state.nodes, 0.0)
    for part in use.parts:
        assert part.gpus > 0
        of_node[part.node] += part.gpus
    assert {name: round(gpus, 6) for name, gpus in of_node.items()} == {
        name: count.gpus if (count := census.node(name)) else 0 for name in state.nodes
    }
    return use


@pytest.mark.parametrize("path", some(CLUSTERS, 25), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_steps_sum_to_the_installed_gpus(path: Path) -> None:
    used(path)


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("claim-allocated-elsewhere", {Step.STARTING: 1, Step.NOT_MEASURED: 1}),
        ("admin-access-claim", {Step.STARTING: 2}),
        ("waiting-for-devices-of-dra", {Step.STARTING: 1}),
    ],
)
def test_gpus_that_pending_claims_would_be_allocated_are_not_idle(
    name: str, steps: dict[Step, float]
) -> None:
    use = used(TESTS / "cases" / name / "cluster.json")
    assert {step: gpus for step, gpus in use.by_step().items() if gpus} == steps
