"""That another MIG layout of a node would help a pod, and what becomes of one that changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extender.explain.node import view_node
from extender.explain.pod import explain
from extender.explain.problems import Surroundings, problems_of
from extender.inventory.node_state import MIG_CHANGE, MigChange, NodeLayout
from extender.k8s.objects import Node, Upserted
from extender.settings import Settings
from tests.extender.builders import GPU, make_pod, make_state

SMALL = "nvidia.com/mig-1g.10gb"
LABELS = {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/mig.config": "all-1g.10gb",
    "nvidia.com/mig.config.state": "success",
    "nvidia.com/mig.strategy": "mixed",
}
NODE = Node(
    "a", labels=LABELS, allocatable={"cpu": "64", "memory": "512Gi", "pods": "110", GPU: "0", SMALL: "56"}
)
NOW = 2e9


def ways(*pods: object, mode: str = "off", **more: object) -> tuple[str, ...]:
    settings = Settings(evictor="on", evictor_lease="a/b", mig_layouts=mode, **more)
    state = make_state(NODE, make_pod("p", 8), *pods)
    return explain(state, state.pods["default/p"], now=NOW, settings=settings).verdict.ways


def test_a_node_that_nobody_uses_could_turn_back() -> None:
    paste = "kubectl label node a nvidia.com/mig.config=all-disabled --overwrite"
    assert ways()[0].startswith(f"give the idle node a the MIG layout all-disabled: {paste}")


@pytest.mark.parametrize(("step", "count"), [("drain", 0), ("done", 0), ("failed", 1), ("?", 1)])
def test_a_change_that_failed_is_a_problem(step: str, count: int) -> None:
    change = MigChange(NodeLayout("all-1g.10gb", {SMALL: 56}), NodeLayout("b", {GPU: 8}), "drain", 0, 1)
    text = change.text().replace("drain", step)
    state = make_state(replace(NODE, annotations={MIG_CHANGE: text}))
    problems = problems_of(state, Settings(), Surroundings(), 10).problems
    assert len([problem for problem in problems if MIG_CHANGE in problem.advice]) == count
    view = view_node(state, "a", 0)
    assert view is not None
    assert view.layout_change.startswith("MIG layout all-1g.10gb to b" if step != "?" else "")
    state.apply([Upserted(NODE)])
