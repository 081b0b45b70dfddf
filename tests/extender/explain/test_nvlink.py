"""What explain and the view of a node say about NVLink."""

from __future__ import annotations

from extender.cli.explain_text import render
from extender.explain.pod import explain
from extender.k8s.objects import Pod
from packing.model.reasons import Reason
from tests.extender.builders import make_node, make_pod, make_state

PREFIX = "nvlink.feature.node.kubernetes.io/"
REQUIRED = {"stowage.dev/nvlink": "required"}


def labels(islands: str, fabric: str, gpus: int) -> dict[str, str]:
    return {f"{PREFIX}islands": islands, f"{PREFIX}fabric": fabric, f"{PREFIX}gpus": str(gpus)}


PAIRS = labels("0.1_2.3", "bridge", 4)


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
