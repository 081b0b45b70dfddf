"""All problems in one place, each with what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from extender.cluster.factory import state_of
from extender.cluster.reservations import Reserved
from extender.cluster.state import State
from extender.explain.problems import Problem, Problems, Surroundings, problems_of
from extender.explain.words import ADVICE
from extender.k8s.admission_objects import PodDisruptionBudget, PriorityClass
from extender.k8s.affinity import Taint
from extender.k8s.objects import Container, Deleted, Event, Listed, MigLayouts, PodSpec, Upserted
from extender.k8s.resource_claims import DeviceClass, ResourceClaim
from extender.k8s.resource_slices import Device, DeviceTaintRule, ResourceSlice
from extender.settings import Queue, Settings
from packing.model.reasons import Reason
from tests.extender.builders import GPU, make_node, make_pod

QUEUES = {"own": Queue(priority_classes=frozenset({"missing", "there"}))}


def state_with(*objects: Any, settings: Settings | None = None) -> State:
    state = state_of(settings or Settings())
    state.apply([Upserted(one) for one in objects])
    return state


def found(state: State, settings: Settings | None = None, most: int = 100, **around: Any) -> Problems:
    return problems_of(state, settings or Settings(), Surroundings(**around), most)


def only(problems: Problems) -> Problem:
    assert len(problems.problems) == 1, problems
    assert problems.counts == {problems.problems[0].kind: 1}
    return problems.problems[0]


OBJECTS: dict[str, tuple[list[Any], tuple[str, str, str, str]]] = {
    "unreadable node": (
        [make_node("n", **{GPU: "x"})],
        ("node", "n", "node accepts no pods", "until then the node accepts no pods"),
    ),
    "over-committed node": (
        [make_node("n", 1), make_pod("a", node_name="n"), make_pod("b", node_name="n")],
        ("node", "n", Reason.OVERCOMMITTED.text, ADVICE[Reason.OVERCOMMITTED]),
    ),
    "layouts": (
        [make_node("n"), MigLayouts("config", problem="is no YAML")],
        ("node", "MIG layouts of all nodes", "config: is no YAML", "MIG manager's ConfigMap"),
    ),
    "contradiction": (
        [make_node("n"), make_pod("p", 1, node_name="n", devices=((GPU, "a"), (GPU, "b")))],
        ("pod", "default/p", "kubelet reports 2 nvidia.com/gpu", "keep-assignments.yaml"),
    ),
    "unreadable pod": (
        [make_node("n"), replace(make_pod("p", node_name="n"), problem="too many containers")],
        ("pod", "default/p", "too many containers", "correct its request"),
    ),
    "slice": (
        [ResourceSlice("s", problem="no driver")],
        ("object", "ResourceSlice s", "no driver", "object"),
    ),
    "class": ([PriorityClass("c", problem="odd")], ("object", "PriorityClass c", "odd", "object")),
    "budget": (
        [PodDisruptionBudget("x", "b", problem="too large")],
        ("object", "PodDisruptionBudget x/b", "too large", "object"),
    ),
}


@pytest.mark.parametrize("case", OBJECTS)
def test_problems_of_objects(case: str) -> None:
    objects, (kind, about, text, advice) = OBJECTS[case]
    problem = only(found(state_with(*objects)))
    assert (problem.kind, problem.about) == (kind, about)
    assert text in problem.text
    assert advice in problem.advice


def odd_pod(**more: Any) -> Any:
    """A pod whose request cannot be read."""
    return make_pod("p", spec=PodSpec((Container(requests=((GPU, "-3"),)),)), **more)


def rogue(name: str) -> Any:
    """A node with resources that no other has. The fleet takes two such nodes."""
    return make_node(name, 0, **{f"nvidia.com__mig-1g.{name}{size}gb": "1" for size in range(10, 60)})


def none_but(kind: str, *keys: str) -> Listed:
    return Listed(kind, frozenset(keys))  # type: ignore[arg-type]


TWO_DEVICES = ((GPU, "a"), (GPU, "b"))
GONE: dict[str, tuple[list[Any], list[Event]]] = {
    "an unreadable node is deleted": ([make_node("n", **{GPU: "x"})], [Deleted("Node", "n")]),
    "an unreadable node is not listed": ([make_node("n", **{GPU: "x"})], [none_but("Node")]),
    "an unreadable node is corrected": ([make_node("n", **{GPU: "x"})], [Upserted(make_node("n"))]),
    "a node is one too many, and another node is deleted": (
        [rogue("1"), rogue("2"), rogue("3")],
        [Deleted("Node", "1")],
    ),
    "a node is one too many, and another node is corrected": (
        [rogue("1"), rogue("2"), rogue("3")],
        [Upserted(make_node("1"))],
    ),
    "an over-committed node is deleted": (
        [make_node("n", 1), make_pod("a", 2, node_name="n")],
        [Deleted("Node", "n")],
    ),
    "a pod of an over-committed node is deleted": (
        [make_node("n", 1), make_pod("a", 2, node_name="n")],
        [Deleted("Pod", "default/a")],
    ),
    "a pod contradicts a node that is deleted": (
        [make_node("n"), make_pod("p", 1, node_name="n", devices=TWO_DEVICES)],
        [Deleted("Node", "n")],
    ),
    "a pod contradicts a node that has other GPUs now": (
        [make_node("n"), make_pod("p", 1, node_name="n", devices=TWO_DEVICES)],
        [Upserted(make_node("n", 0, **{"amd.com__gpu": "8"}))],
    ),
    "a contradictory pod is deleted": (
        [make_node("n"), make_pod("p", 1, node_name="n", devices=TWO_DEVICES)],
        [Deleted("Pod", "default/p")],
    ),
    "a bound unreadable pod is deleted": (
        [make_node("n"), odd_pod(node_name="n")],
        [Deleted("Pod", "default/p")],
    ),
    "a bound unreadable pod is not listed": ([make_node("n"), odd_pod(node_name="n")], [none_but("Pod")]),
    "a bound unreadable pod ends": (
        [make_node("n"), odd_pod(node_name="n")],
        [Upserted(odd_pod(node_name="n", phase="Failed"))],
    ),
    "a bound unreadable pod is created again": (
        [make_node("n"), odd_pod(node_name="n")],
        [Upserted(make_pod("p", uid="another"))],
    ),
    "the nomination of an unreadable pod is cleared": (
        [make_node("n"), odd_pod(nominated_node="n")],
        [Upserted(odd_pod())],
    ),
    "layouts that cannot be read are corrected": (
        [make_node("n"), MigLayouts("gpu/mig", problem="odd")],
        [Upserted(MigLayouts("gpu/mig"))],
    ),
    "layouts that cannot be read are deleted": (
        [make_node("n"), MigLayouts("gpu/mig", problem="odd")],
        [Deleted("ConfigMap", "gpu/mig")],
    ),
    "the node of layouts that cannot be read is deleted": (
        [make_node("n"), MigLayouts("gpu/mig", "n", problem="odd")],
        [Deleted("Node", "n")],
    ),
    "layouts that cannot be read are for another node now": (
        [make_node("n"), MigLayouts("gpu/mig", "n", problem="odd")],
        [Upserted(MigLayouts("gpu/mig", "another", problem="odd"))],
    ),
    "one of two configmaps is deleted": (
        [make_node("n"), MigLayouts("gpu/a"), MigLayouts("gpu/b")],
        [Deleted("ConfigMap", "gpu/b")],
    ),
    "a slice is deleted": ([ResourceSlice("s", problem="odd")], [Deleted("ResourceSlice", "s")]),
    "a slice is not listed": ([ResourceSlice("s", problem="odd")], [none_but("ResourceSlice")]),
    "a slice of an invalid pool is deleted": (
        [ResourceSlice("s", "gpu", "n", slice_count=1, devices=(Device("a"), Device("a")))],
        [Deleted("ResourceSlice", "s")],
    ),
    "a claim is deleted": (
        [ResourceClaim("d", "c", problem="odd")],
        [Deleted("ResourceClaim", "d/c")],
    ),
    "a DeviceClass is not listed": ([DeviceClass("c", problem="odd")], [none_but("DeviceClass")]),
    "a taint rule is deleted": (
        [DeviceTaintRule("DeviceTaintRule", "r", Taint("key", "", "NoSchedule"), problem="odd")],
        [Deleted("DeviceTaintRule", "r")],
    ),
    "a PriorityClass is deleted": ([PriorityClass("c", problem="odd")], [Deleted("PriorityClass", "c")]),
    "a PriorityClass is not listed": ([PriorityClass("c", problem="odd")], [none_but("PriorityClass")]),
    "a budget is deleted": (
        [PodDisruptionBudget("x", "b", problem="odd")],
        [Deleted("PodDisruptionBudget", "x/b")],
    ),
}


@pytest.mark.parametrize("case", GONE)
def test_a_problem_goes_with_its_cause(case: str) -> None:
    objects, events = GONE[case]
    state = state_with(*objects)
    assert found(state).problems
    state.apply(events)
    assert not found(state).problems
    assert not state.problems


def test_the_problem_of_a_promised_pod_goes_with_the_promise() -> None:
    pod = odd_pod()
    state = state_with(make_node("n"), pod)
    state.reservations.reserve(pod.uid, Reserved.NOMINATING, "n")
    assert only(found(state)).about == "default/p"
    state.reservations.release(pod.uid, Reserved.NOMINATING)
    assert not found(state).problems


AROUND: dict[str, tuple[dict[str, Any], tuple[str, str, str, str]]] = {
    "right": (
        {
            "watches": {"podgroups.scheduling.run.ai": "#1"},
            "forbidden": {"podgroups.scheduling.run.ai"},
        },
        (
            "right",
            "podgroups.scheduling.run.ai",
            "#1",
            "grant Stowage this permission",
        ),
    ),
    "watch": (
        {"watches": {"pods": "OSError: refused"}, "silent": {"pods": 1000.0}},
        ("watch", "pods", "OSError: refused", "check the API server"),
    ),
    "silent": (
        {"silent": {"nodes": 400.0}},
        ("watch", "nodes", "nothing was received for 400 s", "API server"),
    ),
    "lease": (
        {"lease": "leases is forbidden", "forbidden": {"the Lease"}},
        ("right", "the Lease", "forbidden", "grant"),
    ),
    "another 403": ({"watches": {"pods": "403 by a proxy"}}, ("watch", "pods", "403 by a proxy", "check")),
    "tokens": (
        {"tokens": "TokenReview: 403"},
        ("token", "/debug and /metrics", "TokenReview: 403", "rbac-debug-auth.yaml"),
    ),
}


@pytest.mark.parametrize("case", AROUND)
def test_problems_of_the_surroundings(case: str) -> None:
    around, (kind, about, text, advice) = AROUND[case]
    problem = only(found(state_with(make_node("a")), **around))
    assert (problem.kind, problem.about) == (kind, about)
    assert text in problem.text
    assert advice in problem.advice


def test_parts_of_the_policy_that_failed() -> None:
    state = state_with(make_node("a"))
    with state.failures.caught("plan"):
        raise ValueError
    problem = only(found(state))
    assert (problem.kind, problem.about, problem.text) == ("policy", "plan", "failed 1 times since the start")


def shared_node() -> Any:
    return make_node("n", 2, labels={"stowage.dev/gpu-sharing": "true", "nvidia.com/gpu.count": "2"})


SETTINGS: dict[str, tuple[Settings, Callable[[], list[Any]], str, str]] = {
    "version": (
        Settings(kubernetes_version="1.38"),
        lambda: [],
        "kubernetes_version",
        "says 1.38, and the API server is 1.36",
    ),
    "demand": (
        Settings(demand=[{"resources": {GPU: "1"}}, {"resources": {GPU: "16"}}]),  # type: ignore[list-item]
        lambda: [make_node("n", 8)],
        "demand.1",
        "no node could host such a pod, even empty",
    ),
    "queues": (
        Settings(queues=QUEUES),
        lambda: [PriorityClass("there")],
        "queues.own",
        "there is no PriorityClass missing",
    ),
    "bind": (
        Settings(bind=False),
        lambda: [shared_node()],
        "bind",
        "is off, and only bind can assign the shared GPUs of 1 nodes",
    ),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_that_the_cluster_contradicts(case: str) -> None:
    settings, objects, about, text = SETTINGS[case]
    state = state_with(*objects(), settings=settings)
    problem = only(found(state, settings, server_version="1.36"))
    assert (problem.kind, problem.about, problem.text) == ("settings", about, text)
    assert "docs/settings.md" in problem.advice


@pytest.mark.parametrize("case", SETTINGS)
def test_default_settings_contradict_nothing(case: str) -> None:
    settings = Settings(bind=True)
    _, objects, *_ = SETTINGS[case]
    assert not found(state_with(*objects(), settings=settings), settings, server_version="1.36").problems


def test_the_first_are_shown_and_all_are_counted() -> None:
    broken = [make_node(f"n{number}", **{GPU: "x"}) for number in range(30)]
    state = state_with(*broken, replace(make_pod("p", node_name="gone"), problem="odd"))
    state.apply([Listed("Pod", frozenset({"default/p"}))])
    problems = found(state, most=10, tokens="broken")
    assert problems.counts == {"token": 1, "node": 30, "pod": 1}
    assert [one.kind for one in problems.problems] == ["token"] + ["node"] * 9
    assert problems.more == 22
    assert found(state, most=0).more == 31
