"""Pods without GPUs that hold the CPU or memory of a GPU node are named where that is what a pod lacks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extender.explain.pod import explain
from extender.k8s.objects import Owner, Pod
from tests.extender.builders import NOW, make_node, make_pod, make_state


def holder(name: str, cpu: str, kind: str = "ReplicaSet") -> Pod:
    pod = make_pod(name, gpus=0, cpu=cpu, node_name="n", started=NOW - 60)
    return replace(pod, owner=Owner(kind, name))


def ways(*others: Pod, cpu: str = "32") -> tuple[str, ...]:
    state = make_state(make_node("n", gpus=8, cpu="64"), *others)
    return explain(state, make_pod("train", gpus=1, cpu=cpu), now=NOW).verdict.ways


@pytest.mark.parametrize(
    "others",
    [
        [holder("logs", "40", "DaemonSet")],
        [make_pod("gpu", gpus=1, cpu="40", node_name="n", started=NOW - 60)],
        [holder("logs", "1"), make_pod("gpu", gpus=1, cpu="40", node_name="n", started=NOW - 60)],
    ],
    ids=["of a DaemonSet", "with GPUs", "too small"],
)
def test_who_stays_or_would_not_be_enough_is_not_named(others):
    assert not any("without GPUs" in way for way in ways(*others))
