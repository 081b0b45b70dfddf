"""The policy learns from arrivals, once from each, and its tables follow in the background."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extender.cluster.factory import GuardedPolicy
from extender.cluster.policy_refresh import PolicyRefresher
from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.k8s.objects import Deleted, Listed, Upserted
from packing.policies.registry import POLICIES
from tests.extender.builders import make_node, make_pod


@pytest.fixture
def state() -> State:
    state = State(GuardedPolicy(POLICIES["inventory"](), POLICIES["best-fit"]()))
    nodes = [make_node(f"n{i}") for i in range(4)]
    state.apply([*map(Upserted, nodes), Listed("Node", frozenset(node.name for node in nodes))])
    return state


def test_each_pod_teaches_once(state):
    pod = make_pod("p", 2)
    state.apply([Upserted(pod), Upserted(replace(pod, node_name="n0")), Upserted(make_pod("cpu-only", 0))])
    assert state.learner.learned == 1
    state.apply([Deleted("Pod", pod.key), Upserted(replace(pod, uid="another"))])
    assert state.learner.learned == 2


async def test_a_plan_that_fails_changes_nothing(state, caplog, monkeypatch):
    def fail(fleet, due):
        raise ArithmeticError

    await PolicyRefresher(state).refresh_if_due()
    request = request_of(make_pod("p", 8))
    before = state.policy.cost(state.fleet, request).tolist()
    monkeypatch.setattr(state.policy.chosen, "update", fail)
    for number in range(3):
        state.apply([Upserted(make_pod(f"p{number}", 8))])
        await PolicyRefresher(state).refresh_if_due()
    assert state.policy.cost(state.fleet, request).tolist() == before
    assert state.policy.failures.counts == {"plan": 3}
    assert caplog.text.count("policy: plan failed") == 1


def test_pods_that_are_listed_before_the_nodes_teach_once_the_nodes_are_there():
    state = State(POLICIES["inventory"]())
    runs = make_pod("runs", 2, node_name="n")
    state.apply([Upserted(runs), Upserted(make_pod("waits", 2)), Upserted(make_pod("huge", 3_000_000_000))])
    state.apply([Listed("Pod", frozenset({"default/runs", "default/waits", "default/huge"}))])
    assert state.learner.learned == 0
    state.apply([Upserted(make_node("n")), Listed("Node", frozenset("n"))])
    assert state.learner.learned == 2
    state.apply([Upserted(runs), Listed("Node", frozenset("n"))])
    assert state.learner.learned == 2


def test_what_is_kept_of_pods_that_teach_nothing_goes_with_them(state):
    pods = [make_pod(f"huge{n}", 10_000 + n) for n in range(1500)]
    state.apply(list(map(Upserted, pods)))
    assert len(state.learner._untaught) == 1500
    assert len(state.learner._hostable) <= 1000
    state.apply([Deleted("Pod", pod.key) for pod in pods[:700]])
    state.apply([Listed("Pod", frozenset())])
    assert not state.learner._untaught
