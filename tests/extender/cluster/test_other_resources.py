"""What nodes have left of what Stowage does not place by; tests/cases/*-used-up have it as users see it."""

from dataclasses import replace

from extender.cluster.other_resources import asked_by
from extender.k8s.objects import Container, PodSpec
from tests.extender.builders import make_node, make_pod


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


def node(name="n1", **offered):
    allocatable = {one.replace("__", "/").replace("_", "-"): text for one, text in offered.items()}
    known = make_node(name)
    return replace(known, allocatable={**known.allocatable, **allocatable})
