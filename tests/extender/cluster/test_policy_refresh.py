"""The policy learns from arrivals, once from each, and its tables follow in the background."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from extender.cluster.factory import GuardedPolicy, state_of
from extender.cluster.policy_refresh import PolicyRefresher, plan_now
from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.k8s.objects import Deleted, Event, Listed, Pod, Upserted
from extender.server.engine import Engine
from packing.model.request import Request
from packing.policies import upkeep
from packing.policies.interface import Due
from packing.policies.registry import POLICIES
from tests.extender.builders import make_node, make_pod, make_settings
from tests.extender.engines import DEVICES, make_engine


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


async def test_the_plan_follows_what_was_learned(state, monkeypatch):
    planned = []
    monkeypatch.setattr(state.policy, "update", lambda fleet, due: planned.append(due))
    monkeypatch.setattr(upkeep, "NEW_PODS", 3)
    refresher = PolicyRefresher(state)
    for new, enough in ((1, True), (1, True), (1, False), (1, True), (2, False), (1, True)):
        # As many as are known will do, and three in any case.
        state.apply([Upserted(make_pod(f"p{state.learner.learned + i}", 1)) for i in range(new)])
        planned.clear()
        await refresher.refresh_if_due()
        assert (Due.TABLES in planned) == enough, (state.learner.learned, new)


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


def mix_of(state: State) -> set[Request]:
    return set(state.policy.chosen._demand.mix().requests)


def test_what_no_node_could_host_teaches_nothing(state):
    state.apply([Upserted(make_pod(f"p{n}", n)) for n in (9, 1_000_000, 3_000_000_000)])
    state.apply([Upserted(make_pod("other", 1, resource="nvidia.com/mig-1g.5gb"))])
    assert (state.learner.learned, mix_of(state)) == (0, set())
    state.apply([Upserted(replace(make_pod("forced", 3_000_000_000), node_name="n0"))])
    assert state.learner.learned == 0


def test_full_and_closed_nodes_could_host_all_the_same(state):
    state.apply([Upserted(make_pod(f"full{n}", 8, node_name=f"n{n}")) for n in range(4)])
    assert state.learner.learned == 4
    state.apply([Upserted(make_pod("waits", 8))])
    assert state.learner.learned == 5


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


def test_a_pod_for_which_a_node_is_made_teaches_when_it_is_bound(state):
    large = make_pod("large", 16)
    state.apply([Upserted(large)])
    assert state.learner.learned == 0
    state.apply([Upserted(make_node("new", 16)), Upserted(replace(large, node_name="new"))])
    assert state.learner.learned == 1
    state.apply([Upserted(replace(large, node_name="new", phase="Running"))])
    assert state.learner.learned == 1


def test_what_is_kept_of_pods_that_teach_nothing_goes_with_them(state):
    pods = [make_pod(f"huge{n}", 10_000 + n) for n in range(1500)]
    state.apply(list(map(Upserted, pods)))
    assert len(state.learner._untaught) == 1500
    assert len(state.learner._hostable) <= 1000
    state.apply([Deleted("Pod", pod.key) for pod in pods[:700]])
    state.apply([Listed("Pod", frozenset())])
    assert not state.learner._untaught


@pytest.mark.parametrize(("names", "teaches"), [(16, True), (17, False)])
def test_a_pod_that_lists_many_models_teaches_nothing(state, names, teaches):
    models = ",".join(["H100", *(f"M{n}" for n in range(names - 1))])
    state.apply([Upserted(make_pod("p", 1, annotations={"stowage.dev/gpu-models": models}))])
    assert state.learner.learned == teaches


async def test_a_huge_pod_costs_the_others_nothing_after_a_restart_or_with_a_new_model():
    """It used to make every answer fail until the process was started without it, in int32 sums."""
    engine = make_engine()
    huge = [make_pod(f"huge{n}", 3_000_000_000) for n in range(3)]
    engine.apply([*map(Upserted, huge), Upserted(make_node("a")), *listed_with(huge)])
    await engine.refresher.refresh_if_due()
    new = make_node("b", labels={"nvidia.com/gpu.product": "NVIDIA-L40S", "nvidia.com/gpu.memory": "46068"})
    engine.apply([Upserted(new)])
    assert await fitting(engine) == ["a", "b"]
    engine.apply([Deleted("Pod", pod.key) for pod in huge])
    assert await fitting(engine) == ["a", "b"]
    assert not engine.state.failures.counts


async def fitting(engine: Engine) -> list[str]:
    container = {"resources": {"requests": {"nvidia.com/gpu": "1"}}}
    pod = {"metadata": {"name": "p", "uid": "p"}, "spec": {"containers": [container]}}
    body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": ["a", "b"]}).encode()
    reply, _ = await engine.verbs["filter"](body)
    await engine.verbs["prioritize"](body)
    return json.loads(reply)["NodeNames"]


def listed_with(pods: list[Pod]) -> list[Event]:
    listed = [Listed("Node", frozenset("a")), Listed("Pod", frozenset(pod.key for pod in pods))]
    return [*listed, *DEVICES]


def test_a_fraction_is_preferred_at_any_price_until_pods_have_ended_and_always_in_a_snapshot():
    sliced = {"nvidia.com/gpu.product": "NVIDIA-L40S-SHARED", "nvidia.com/gpu.memory": "46068"}
    sliced |= {"nvidia.com/gpu.count": "2", "nvidia.com/gpu.replicas": "4"}
    nodes = [make_node("h100", 2), make_node("l40s", 8, labels=sliced)]
    running = [make_pod(f"runs-{n}", 1, node_name=node.name) for n, node in enumerate(nodes)]
    ended = [make_pod(f"ended-{n}", 1, node_name="l40s") for n in range(20)]
    listed: list[Event] = [*map(Upserted, nodes), Listed("Node", frozenset({"h100", "l40s"}))]

    def cost_of_a_whole_gpu(state: State, events: list[Event]) -> float:
        state.apply(events)
        plan_now(state)
        return state.policy.terms(state.fleet, request_of(make_pod("p")), state.fleet.rows["h100"])["device"]

    service, snapshot = (state_of(make_settings(), live=live) for live in (True, False))
    first = [cost_of_a_whole_gpu(state, [*listed, *map(Upserted, running)]) for state in (service, snapshot)]
    turned_over = [event for pod in ended for event in (Upserted(pod), Deleted("Pod", pod.key))]
    later = [cost_of_a_whole_gpu(state, turned_over) for state in (service, snapshot)]
    assert first[0] == first[1] == later[1] > 4
    assert later[0] < 1
