"""A container with several GPUs gets as many physical ones where a node can give them, and explain says
what it would get."""

from __future__ import annotations

import pytest

from extender.cli.explain_text import render
from extender.cluster.factory import state_of
from extender.dialects.pod_request import SEPARATE
from extender.explain.pod import explain
from extender.inventory.node_inventory import inventory_of
from extender.k8s.objects import Container, Node, Pod, PodSpec, Upserted
from packing.model.reasons import Reason
from tests.extender.builders import GPU, make_node, make_pod, make_settings, make_state, why

T4 = {"nvidia.com/gpu.product": "Tesla-T4-SHARED", "nvidia.com/gpu.replicas": "4"}
T4 |= {"nvidia.com/gpu.memory": "15360", "nvidia.com/gpu.sharing-strategy": "time-slicing"}


def time_sliced(name: str, gpus: int = 1) -> Node:
    return make_node(name, 4 * gpus, labels=T4 | {"nvidia.com/gpu.count": str(gpus)})


def gives(state, pod: Pod) -> dict[str, str]:
    return {option.node: option.gives for option in explain(state, pod).best}


def test_whole_gpus_come_before_replicas_of_one() -> None:
    state = make_state(time_sliced("shared"), make_node("whole", 8), make_pod("p", 1, node_name="whole"))
    explained = explain(state, make_pod("two", 2))
    assert [option.node for option in explained.best] == ["whole", "shared"]
    assert [option.gives for option in explained.best] == ["", "2 of 4 replicas of one T4"]
    assert explained.best[1].why == "allocates several replicas or instances of the same GPU to a container"
    assert "2 of 4 replicas of one T4" in render(explained)
    # One GPU is one replica: nothing is preferred beyond what the policy weighs.
    assert [option.node for option in explain(state, make_pod("one", 1)).best] == ["shared", "whole"]


def test_nodes_are_ranked_by_how_certain_it_is() -> None:
    state = make_state(
        time_sliced("one"), time_sliced("two", 2), time_sliced("used", 2), make_pod("p", 1, node_name="used")
    )
    best = explain(state, make_pod("new", 2)).best
    assert [(option.node, option.gives) for option in best] == [
        ("two", "2 of 8 replicas of 2 T4, of different GPUs"),
        ("used", "2 of 8 replicas of 2 T4, perhaps of the same GPU"),
        ("one", "2 of 4 replicas of one T4"),
    ]


def test_the_setting_refuses_and_the_pod_overrides_it() -> None:
    state = state_of(make_settings(separate_gpus="require"))
    state.apply([Upserted(time_sliced("one")), Upserted(time_sliced("two", 2))])
    assert why(state, make_pod("a", 2), "one") is Reason.PARTS_OF_ONE_GPU
    assert why(state, make_pod("a", 2), "two") is Reason.FITS
    for word in ("none", "preferred", "required"):
        pod = make_pod("a", 2, annotations={SEPARATE: word})
        refused = word == "required"
        assert why(state, pod, "one") is (Reason.PARTS_OF_ONE_GPU if refused else Reason.FITS)
    state.apply([Upserted(make_pod("p", 1, node_name="two"))])
    assert why(state, make_pod("a", 2), "two") is Reason.NO_FREE_GPUS
    explained = explain(state, make_pod("a", 2))
    texts = {refusal.nearest: refusal.lacks[0].text for refusal in explained.refusals}
    assert texts == {
        "one": "needs 2 different GPUs, would get 2 of 4 replicas of one T4",
        "two": "needs 2 different GPUs, would get 2 of 8 replicas of 2 T4, perhaps of the same GPU",
    }


def test_a_pod_is_ranked_without_its_own_gpus() -> None:
    """After a bind whose answer was lost, kube-scheduler asks again for a pod that is allocated already."""
    pod = make_pod("two", 2, node_name="own")
    state = make_state(time_sliced("own", 2), time_sliced("other", 2), pod)
    assert {option.terms["parts of one GPU"] for option in explain(state, pod).best} == {0}


def test_ignored_where_the_setting_says_so() -> None:
    state = state_of(make_settings(separate_gpus="ignore"))
    state.apply([Upserted(time_sliced("one"))])
    (option,) = explain(state, make_pod("a", 2)).best
    assert option.terms["parts of one GPU"] == 0
    assert option.gives == "2 of 4 replicas of one T4"


def test_containers_with_one_gpu_each_may_share_it() -> None:
    state = state_of(make_settings(separate_gpus="require"))
    state.apply([Upserted(time_sliced("one"))])
    one = Container("a", ((GPU, "1"),), ((GPU, "1"),))
    assert why(state, make_pod("p", spec=PodSpec((one, one))), "one") is Reason.FITS


@pytest.mark.parametrize(
    ("labels", "allocatable", "separate"),
    [
        (T4 | {"nvidia.com/gpu.count": "2"}, {GPU: "8"}, {GPU: 2}),
        ({"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.count": "2"}, {GPU: "2"}, {GPU: None}),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}, {GPU: "14"}, {GPU: 0}),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-7g.40gb"}, {GPU: "2"}, {GPU: None}),
        (T4 | {"nvidia.com/gpu.product": "Tesla-T4"}, {f"{GPU}.shared": "4"}, {f"{GPU}.shared": None}),
        ({}, {"nvidia.com/mig-1g.5gb": "7"}, {"nvidia.com/mig-1g.5gb": None}),
    ],
)
def test_what_the_plugin_gives_from_different_gpus(labels, allocatable, separate) -> None:
    spec = inventory_of(Node("n", labels=labels, allocatable=allocatable)).spec
    assert {pool.resource: pool.separate for pool in spec.pools} == separate
