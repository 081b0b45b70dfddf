"""What nodes have left of what Stowage does not place by; tests/cases/*-used-up have it as users see it."""

from dataclasses import replace

import pytest

from extender.cluster.other_resources import asked_by, lacking_on, left_on
from extender.explain.needs import need_of
from extender.k8s.objects import Container, PodSpec
from tests.extender.builders import make_node, make_pod, make_state

RDMA = "rdma/hca"


def container(name="main", *, sidecar=False, **requests):
    pairs = {one.replace("__", "/").replace("_", "-"): text for one, text in requests.items()}
    return Container(name, tuple(sorted(pairs.items())), sidecar=sidecar)


def pod(*containers, name="p", node="", init=(), **more):
    spec = PodSpec(tuple(containers), tuple(init), **more)
    return replace(make_pod(name), spec=spec, node_name=node)


def test_what_a_pod_asks_for():
    one = pod(
        container(rdma__hca="1", ephemeral_storage="1k", cpu="1", memory="1Gi"),
        container(rdma__hca="1", hugepages_2Mi="2Mi"),
        init=(container(rdma__hca="1", sidecar=True), container(rdma__hca="1")),
        requests=(("hugepages-2Mi", "4Mi"),),
        overhead=(("ephemeral-storage", "24"),),
    )
    found = {"rdma/hca": 3, "ephemeral-storage": 1024, "hugepages-2Mi": 4 << 20, "pods": 1}
    assert asked_by(one) == found


@pytest.mark.parametrize(
    "name", ["nvidia.com/gpu", "nvidia.com/gpumem", "cpu", "deviceclass.resource.kubernetes.io/gpu"]
)
def test_what_others_count_is_not_asked_here(name):
    assert asked_by(pod(Container("main", ((name, "1"),)))) == {"pods": 1}


def node(name="n1", **offered):
    allocatable = {one.replace("__", "/").replace("_", "-"): text for one, text in offered.items()}
    known = make_node(name)
    return replace(known, allocatable={**known.allocatable, **allocatable})


def test_what_is_left():
    state = make_state(node(rdma__hca="3", pods="5"), pod(container(rdma__hca="2"), name="a", node="n1"))
    known = state.nodes["n1"]
    assert left_on(state, known, [RDMA, "pods"]) == {RDMA: 1, "pods": 4}
    assert left_on(state, known, [RDMA], without=[state.pods["default/a"].uid]) == {RDMA: 3}
    asked = asked_by(pod(container(rdma__hca="2", hugepages_2Mi="1Gi")))
    assert [need_of(lack).text for lack in lacking_on(state, known, asked)] == [
        "needs 1 GiB of hugepages-2Mi, the node reports none",
        "needs 2 rdma/hca, 1 of 3 are free",
    ]


def test_what_cannot_be_read_is_the_larger_use():
    state = make_state(node(rdma__hca="3"), pod(container(rdma__hca="much"), name="a", node="n1"))
    asked = asked_by(pod(container(rdma__hca="1")))
    assert [lack.left < 0 for lack in lacking_on(state, state.nodes["n1"], asked)] == [True]
    odd = make_state(node(rdma__hca="many"))
    assert [lack.total for lack in lacking_on(odd, odd.nodes["n1"], asked)] == [0]
    assert not [*lacking_on(odd, node(pods="many"), {"pods": 1})]
