"""What explain and the view of a node say about NVLink."""

from __future__ import annotations

import pytest

from extender.cli.explain_text import render
from extender.explain.node import view_node
from extender.explain.pod import explain
from extender.k8s.objects import Pod
from packing.model.reasons import Reason
from tests.extender.builders import make_node, make_pod, make_state

PREFIX = "nvlink.feature.node.kubernetes.io/"
REQUIRED = {"stowage.dev/nvlink": "required"}


def labels(islands: str, fabric: str, gpus: int) -> dict[str, str]:
    return {f"{PREFIX}islands": islands, f"{PREFIX}fabric": fabric, f"{PREFIX}gpus": str(gpus)}


PAIRS = labels("0.1_2.3", "bridge", 4)


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (make_node("n", 4, labels=PAIRS), f"NVLink islands of 2 + 2 GPUs ({PREFIX}islands)"),
        (make_node("n", 8), "NVLink islands of 8 GPUs (catalog)"),
        (make_node("n", 4, labels={"nvidia.com/gpu.product": "NVIDIA-L40S"}), "no NVLink (catalog)"),
        (make_node("n", 4, labels={"nvidia.com/gpu.product": "unheard-of"}), "NVLink islands unknown"),
    ],
)
def test_the_best_nodes_show_their_islands_and_the_source(node, text):
    state = make_state(node)
    explanation = explain(state, make_pod("p", 2))
    assert [option.nvlink for option in explanation.best] == [text]
    assert text in render(explanation)
    assert [option.nvlink for option in explain(state, make_pod("q", 1)).best] == [""]


def held(count: int) -> list[Pod]:
    return [make_pod(f"held-{i}", 1, node_name="n") for i in range(count)]


def test_what_a_device_plugin_lacks():
    state = make_state(make_node("n", 4, labels=PAIRS), *held(2))
    explanation = explain(state, make_pod("p", 2, annotations=REQUIRED))
    (refusal,) = explanation.refusals
    assert (refusal.reason, refusal.eviction_helps) == (Reason.NO_FREE_PEERS.text, True)
    (need,) = refusal.lacks
    assert need.text == "needs 2 NVLink peers, only 1 of its 2 free GPUs are certain to be"
    assert need.text in render(explanation)


def test_what_a_node_lacks_where_stowage_chooses():
    shared = {"stowage.dev/gpu-sharing": "true", "nvidia.com/gpu.count": "4"}
    node = make_node("n", 0, labels=PAIRS | shared)
    parts = {"stowage.dev/gpus": "1", "stowage.dev/gpu-indices": "0"}
    other = parts | {"stowage.dev/gpu-indices": "2"}
    pods = [
        make_pod("a", 0, node_name="n", annotations=parts),
        make_pod("b", 0, node_name="n", annotations=other),
    ]
    state = make_state(node, *pods)
    asked = make_pod("p", 0, annotations={"stowage.dev/gpus": "2"} | REQUIRED)
    (refusal,) = explain(state, asked).refusals
    assert refusal.reason == Reason.NO_FREE_PEERS.text
    assert [need.text for need in refusal.lacks] == ["needs 2 NVLink peers, 1 of its 2 free GPUs are"]


def test_the_view_of_a_node():
    clique = {"nvidia.com/gpu.clique": "a.1", "fabric.topograph.run/tier-0": "leaf"}
    state = make_state(make_node("n", 4, labels=PAIRS | clique))
    view = view_node(state, "n", 0.0)
    assert view is not None
    assert view.read_from is not None
    assert (view.islands, view.read_from.islands) == (((0, 1), (2, 3)), f"{PREFIX}islands")
    assert view.network == ("nvidia.com/gpu.clique=a.1", "fabric.topograph.run/tier-0=leaf")
