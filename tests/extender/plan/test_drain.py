"""Removable nodes: their order, the moves, and why other nodes are kept."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from extender.plan.drain import Drain, drain_report, plan_drain
from extender.plan.prices import NO_COSTS
from extender.replay.steps import Step, carry_out
from tests.extender.plan.clusters import KEEPING, Manifest, budget, mixed_fleet, node, pod, source_of
from tests.extender.plan.test_property import quiet


def planned(*items: Any, **settings: Any) -> Drain:
    return plan_drain(source_of(*items, **settings).trial(), quiet)


@pytest.mark.parametrize(
    ("stays", "why"),
    [
        ({"owner": ""}, "no controller would recreate it"),
        ({"labels": {"app": "x"}}, "a PodDisruptionBudget allows no eviction now"),
        (
            {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}},
            "safe-to-evict forbids it",
        ),
        (
            {"volumes": [{"name": "d", "hostPath": {"path": "/data"}}]},
            "it has data on its node (hostPath or emptyDir)",
        ),
        ({"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}, "it has ResourceClaims"),
        ({"nodeSelector": {"pool": "b"}}, "ml/small: node selector does not match"),
        ({"cpu": "60"}, "not enough free CPU"),
    ],
)
def test_what_keeps_a_node_is_said(stays, why):
    items = node("a"), node("b"), budget(0, app="x"), pod("large", "a", 3, cpu="10")
    plan = planned(*items, pod("small", "b", 1, **stays))
    assert "b" not in plan.goes
    assert why in plan.stays["b"]
    assert list(planned(*items, pod("small", "b", 1)).goes) == ["b"]


@pytest.mark.parametrize(
    ("resource", "offered", "why"),
    [
        ("rdma/hca", "2", "node has too little rdma/hca left"),
        ("ephemeral-storage", "2G", "node has too little ephemeral-storage left"),
        ("pods", "2", "node has reached its maximum number of pods"),
    ],
)
def test_what_kube_scheduler_alone_counts_keeps_a_node_too(resource, offered, why):
    """The moved pod takes it, so there is room for one of two."""

    def with_some(manifest, amount):
        of = manifest["spec"]["containers"][0]["resources"] if manifest["kind"] == "Pod" else None
        if of is None:
            manifest["status"]["allocatable"][resource] = amount
        elif resource != "pods":
            of["requests"] = of["limits"] = of["requests"] | {resource: amount}
        return manifest

    small = "1G" if offered.endswith("G") else "1"
    nodes = [with_some(node(name), offered) for name in "abc"]
    pods = [with_some(pod(f"on-{name}", name, 1), small) for name in "abc"]
    plan = planned(*nodes, *pods)
    assert len(plan.goes) == 1
    assert [len(moved) for moved in plan.goes.values()] == [1]
    assert any(why in text for text in plan.stays.values())
    waits = planned(*nodes[:1], *pods[:1], *(with_some(pod(f"w{n}"), small) for n in range(2)))
    assert waits.started == {"ml/w0": "a"}
    assert waits.waiting == {"ml/w1": why}


def test_budgets_count_as_the_eviction_api_reads_them():
    def goes(*budgets: Manifest, **status: Any) -> bool:
        moving = pod("y", "b", labels={"app": "x"})
        moving["status"] |= status
        for number, one in enumerate(budgets):
            one["metadata"]["name"] = f"b{number}"
        return "b" in planned(node("a"), node("b"), pod("x", "a", 2), moving, *budgets).goes

    assert goes(budget(1, app="x"))
    assert not goes(budget(1, app="x"), budget(1, app="x"))
    assert not goes(budget(0, app="x"))
    assert goes(budget(0, app="x"), phase="Pending")
    always = budget(0, app="x")
    always["spec"]["unhealthyPodEvictionPolicy"] = "AlwaysAllow"
    assert goes(always, conditions=[{"type": "Ready", "status": "False"}])
    assert not goes(always, conditions=[{"type": "Ready", "status": "True"}])


@pytest.mark.parametrize("word", KEEPING)
def test_a_node_stays_where_its_owner_says_so(word):
    def nodes(text: str) -> list[Manifest]:
        marked = node("b"), node("idle")
        for one in marked:
            one["metadata"]["annotations"] = {word: text}
        return [node("a"), *marked, pod("x", "a", 2), pod("y", "b")]

    kept = planned(*nodes("true"))
    assert kept.stays["b"] == kept.stays["idle"] == f"{word} keeps the node"
    assert (list(kept.goes), kept.target) == (["a"], {"ml/x": "b"})  # others may move there
    assert sorted(planned(*nodes("false")).goes) == ["b", "idle"]


@pytest.mark.parametrize(("seed", "nodes"), [(6, 40), (9, 40)])
def test_what_is_shown_is_a_drain_that_holds(seed, nodes):
    """On these nodes with shared and whole GPUs pods of the first plan find no place."""
    source = source_of(*mixed_fleet(Random(seed), nodes), bind=True)
    first = plan_drain(source.trial(), quiet)
    assert carry_out(source.trial(), first.steps()).problems
    report = drain_report("test", source.trial(), NO_COSTS, quiet)
    assert report.differences == ()
    gain = next(one for one in report.gains if one.what == "removable nodes")
    assert gain.promised == gain.replayed == len(report.tables[0].rows) > 0.8 * len(first.goes)
    assert {row[-1] for row in report.tables[1].rows}.isdisjoint({"no place"})


def test_room_is_left_for_pods_that_wait():
    items = node("a"), node("b"), pod("x", "a", 3), pod("waits", gpus=2), pod("huge", gpus=9)
    items = *items, pod("held", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
    source = source_of(*items)
    plan = plan_drain(source.trial(), quiet)
    assert not plan.goes
    assert plan.started == {"ml/waits": "b"}
    assert plan.waiting == {"ml/huge": "node has fewer GPUs than requested"}  # gates: it waits for no room
    ignoring = plan_drain(source.trial(), quiet, keep_room=False)
    assert list(ignoring.goes) == ["b"]


def test_kubelet_takes_no_more_pods_than_it_says():
    full = node("a", 8)
    full["status"]["allocatable"]["pods"] = "2"
    plan = planned(full, node("b", 1), pod("x", "a"), pod("y", "a"), pod("z", "b"))
    assert not plan.goes


def test_a_step_that_does_not_work_is_a_problem():
    source = source_of(node("a"), node("b"), pod("x", "a", 4), pod("y", "b", 1))
    outcome = carry_out(
        source.trial(), [Step("cordon", node="b"), Step("evict", "ml/y"), Step("place", "ml/y")]
    )
    assert outcome.problems == ("ml/y does not fit", "ml/y was evicted and has no node")
    outcome = carry_out(source.trial(), [Step("remove", node="b")])
    assert (outcome.problems, outcome.removed) == (("ml/y is still on b",), ())


L40S = {"nvidia.com/gpu.product": "NVIDIA-L40S-SHARED", "nvidia.com/gpu.memory": "46068"}
SLICED = L40S | {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.count": "4"}


def with_time_slices() -> list[dict[str, Any]]:
    """A job on an H100, whose node could go if it ran on a quarter of an L40S."""
    return [node("h100", 8), node("l40s", 16, labels=SLICED), pod("a", "h100"), pod("b", "l40s")]


def test_no_plan_gives_a_pod_a_weaker_device():
    plan = plan_drain(source_of(*with_time_slices()).trial(), quiet)
    assert plan.goes == {"l40s": ["ml/b"]}  # to the H100, which is more than it has
    assert "only weaker devices are free for it (--allow-downgrade)" in plan.stays["h100"]


def test_a_pod_that_needs_a_whole_gpu_stays_on_one():
    whole = {"annotations": {"stowage.dev/whole-gpu": "true"}}
    items = [node("h100", 8), node("l40s", 16, labels=SLICED), pod("a", "h100", **whole), pod("b", "l40s")]
    plan = plan_drain(source_of(*items, allow_downgrade=True).trial(), quiet)
    assert plan.goes == {"l40s": ["ml/b"]}
    why = "ml/a: node offers fractions of GPUs, and the pod requires whole ones"
    assert plan_drain(source_of(*items, pod("c", "l40s", 9)).trial(), quiet).stays["h100"] == why
