"""The decisive reason why a pod fits nowhere, and the ways out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extender.explain.answers import Verdict
from extender.explain.pod import explain
from extender.k8s.affinity import Taint
from extender.k8s.objects import Node, Owner, Pod
from tests.extender.builders import NOW, make_node, make_pod, make_state

TAINTED = replace(make_node("a"), taints=(Taint("team", "ml", "NoSchedule"),))
JOB = Owner("Job", "job")


def verdict(pod: Pod, *objects: Node | Pod) -> Verdict:
    return explain(make_state(*objects), pod, now=NOW).verdict


def test_a_taint_is_named_with_the_toleration_to_paste() -> None:
    found = verdict(make_pod("new"), TAINTED)
    assert found.why == "node has a taint that the pod does not tolerate: team=ml:NoSchedule (1 of 1 node)"
    toleration = '{key: team, operator: Equal, value: "ml", effect: NoSchedule}'
    assert found.ways == (f"write tolerations: [{toleration}]: 1 node would take it",)


def test_the_nearest_value_of_a_label_can_be_pasted() -> None:
    pod = make_pod("new")
    pod = replace(pod, spec=replace(pod.spec, node_selector=(("pool", "trainin"),)))
    found = verdict(pod, make_node("a", labels={"pool": "training"}))
    assert found.why.startswith("No node has the label pool='trainin' (did you mean training?)")
    assert found.ways[0] == 'write nodeSelector: {pool: "training"}'


def test_a_misspelt_resource_decides_before_full_nodes() -> None:
    found = verdict(
        make_pod("new", resource="nvidia.com/gpus"), make_node("a"), make_pod("x", 8, node_name="a")
    )
    assert found.why.startswith("No node offers nvidia.com/gpus. Did you mean nvidia.com/gpu?")
    assert found.ways == ('write limits: {nvidia.com/gpu: "1"}',)


def test_a_request_that_fits_on_no_empty_node_decides_first() -> None:
    pod = make_pod("new", 16, annotations={"stowage.dev/gpu-modelss": "H100"})
    found = verdict(pod, make_node("a"), make_pod("x", 8, node_name="a"))
    assert found.why.startswith("No node is large enough")
    assert found.lacks == "a: needs 16 nvidia.com/gpu, 0 of 8 are free"
    assert found.ways == ("ask for at most 8 nvidia.com/gpu per pod, as a has",)


def test_a_cordoned_node_is_named() -> None:
    closed = replace(make_node("b"), unschedulable=True)
    found = verdict(make_pod("new"), make_node("a"), make_pod("x", 8, node_name="a"), closed)
    assert found.why == "not enough free GPUs (1 of 2 nodes)"
    assert found.ways[0] == "kubectl uncordon b: 1 node would take it"


def test_a_pod_that_can_move_is_named_with_its_target() -> None:
    x, y = make_pod("x", 1, node_name="a", owner=JOB), make_pod("y", 4, node_name="b")
    found = verdict(make_pod("new", 8), make_node("a"), make_node("b"), x, y)
    assert found.ways[0].startswith("1 move would make room on a: default/x to b; lost work: ")


@pytest.mark.parametrize("evictable", [True, False])
def test_eviction_is_advised_only_where_it_makes_room(evictable: bool) -> None:
    pod = replace(make_pod("new", 8), priority=100 if evictable else 0)
    found = verdict(pod, make_node("a"), make_pod("x", 8, node_name="a"))
    assert any("evict" in way for way in found.ways) == evictable
    assert "stowage plan change --add 1xa" in found.ways[-1]


def test_gpu_memory_without_a_unit_is_meant_in_mib() -> None:
    pod = make_pod("new", 0, annotations={"stowage.dev/gpu-memory": "10240"})
    found = verdict(pod, make_node("a"))
    assert found.ways[0] == 'write annotations: {stowage.dev/gpu-memory: "10240Mi"}'
