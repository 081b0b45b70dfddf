"""All problems in one place, each with what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from extender.cluster.factory import state_of
from extender.cluster.state import State
from extender.explain.advice import ADVICE
from extender.explain.problems import Problem, Problems, Surroundings, problems_of
from extender.k8s.device_objects import MigLayouts
from extender.k8s.eviction_objects import PodDisruptionBudget, PriorityClass
from extender.k8s.objects import Listed, Upserted
from extender.k8s.resource_api.objects import ResourceSlice
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


def test_a_healthy_cluster_has_none() -> None:
    state = state_with(make_node("a"), make_pod("p", node_name="a"))
    around = {"watches": {}, "silent": {"nodes": 299.0, "pods": float("inf")}, "server_version": "1.36"}
    assert found(state, **around) == Problems({}, [], 0)


OBJECTS: dict[str, tuple[list[Any], tuple[str, str, str, str]]] = {
    "unreadable node": (
        [make_node("n", **{GPU: "x"})],
        ("node", "n", "node takes nothing", "the node takes no pods before"),
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
        ("pod", "default/p", "has 2 nvidia.com/gpu by kubelet's report", "keep-assignments.yaml"),
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


AROUND: dict[str, tuple[dict[str, Any], tuple[str, str, str, str]]] = {
    "right": (
        {"watches": {"podgroups.scheduling.run.ai": "403 podgroups is forbidden"}},
        ("right", "podgroups.scheduling.run.ai", "403 podgroups is forbidden", "grant Stowage this right"),
    ),
    "watch": (
        {"watches": {"pods": "OSError: refused"}, "silent": {"pods": 1000.0}},
        ("watch", "pods", "OSError: refused", "look at the API server"),
    ),
    "silent": (
        {"silent": {"nodes": 400.0}},
        ("watch", "nodes", "nothing was received for 400 s", "API server"),
    ),
    "lease": ({"lease": "403 leases is forbidden"}, ("right", "the Lease", "forbidden", "grant")),
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
