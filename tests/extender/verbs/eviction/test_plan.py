"""Eviction plans on real states: who is evicted, who never is, and what it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.k8s.objects import Deleted, Pod, Upserted
from extender.protocol.node_names import NodeNames
from extender.queues.disruptions import DisruptionLog
from extender.verbs.evaluate import evaluate
from extender.verbs.eviction.plan import EvictionPlan, plan_evictions
from packing.policies.registry import POLICIES
from packing.victims.rights import RESTART, ROOM_SECONDS
from tests.extender.builders import (
    GUARDED,
    NOW,
    NodeSelectorRequirement,
    PodDisruptionBudget,
    guard,
    make_node,
    make_pod,
    make_state,
)

HOUR = 3600.0
BACKFILL = {"stowage.dev/queue": "backfill"}


def victims(plan: EvictionPlan) -> list[str]:
    return [pod.name for pod in plan.victims]


def plans(state, pod: Pod, *nodes: str, **options) -> dict[str, list[str]]:
    found = plan_evictions(state, pod, nodes or list(state.nodes), NOW, **options)
    return {plan.node: victims(plan) for plan in found}


def high(gpus: int = 1, **more) -> Pod:
    return make_pod("p", gpus, **{"priority": 100, **more})


def in_gang(name: str, minimum: int) -> dict[str, str]:
    """The labels of a member."""
    return {"stowage.dev/gang": name, "stowage.dev/gang-min": str(minimum)}


def preempted(state, pod: Pod) -> None:
    """The job of the pod has just lost another pod."""
    state.disruptions = DisruptionLog(now=lambda: NOW)
    state.disruptions.record_loss(replace(pod, uid="before"), "", "PreemptionByScheduler", 1, lambda at: 0.0)


def test_pods_that_terminate_already_are_not_evicted_again():
    here = make_pod("a", node_name="n", deleting=True), make_pod("b", node_name="n", priority=1)
    plan = EvictionPlan("n", here, (1.0,), other_nodes=(make_pod("c", node_name="m", priority=5), here[1]))
    assert [pod.name for pod in plan.to_evict] == ["c", "b"]


def test_only_as_many_as_needed_and_the_pod_that_loses_least():
    state = make_state(
        make_node("n", 4),
        *(make_pod(f"old-{i}", 1, node_name="n", started=NOW - 5 * HOUR) for i in range(3)),
        make_pod("young", 1, node_name="n", started=NOW - 60),
    )
    assert plans(state, high(1)) == {"n": ["young"]}
    [plan] = plan_evictions(state, high(1), ["n"], NOW)
    assert plan.cost == (0.0, pytest.approx(60 + RESTART + ROOM_SECONDS * plan.room))


def test_a_part_of_a_gpu_is_not_worth_hours_of_work_of_others():
    """A quarter of an L40S goes before an H100 where both are free, but not by the loss of 20 hours there."""
    sliced = {"nvidia.com/gpu.product": "NVIDIA-L40S-SHARED", "nvidia.com/gpu.memory": "46068"}
    sliced |= {"nvidia.com/gpu.count": "1", "nvidia.com/gpu.replicas": "4"}
    state = State(POLICIES["inventory"]())
    nodes = make_node("h100", 1), make_node("l40s", 4, labels=sliced)
    old = [make_pod(f"old-{i}", 1, node_name="l40s", started=NOW - 20 * HOUR) for i in range(4)]
    young = make_pod("young", 1, node_name="h100", started=NOW - 60)
    state.apply([Upserted(one) for one in (*nodes, *old, young)])
    assert next(iter(plans(state, high(1)).items())) == ("h100", ["young"])
    state.apply([Deleted("Pod", one.key) for one in (*old, young)])
    evaluation = evaluate(state, high(1), request_of(high(1)), NodeNames.of(["h100", "l40s"]))
    assert evaluation.keys.argmin() == 1


def test_pods_of_equal_or_higher_priority_stay():
    state = make_state(make_node("n", 2), make_pod("equal", 1, node_name="n", priority=100))
    state.apply([Upserted(make_pod("higher", 1, node_name="n", priority=101))])
    assert plans(state, high(1)) == {}


@pytest.fixture
def gang_and_one():
    """n is full of three members of a gang that just started, and a pod that has run for nine hours."""

    def make(minimum: int):
        labels = in_gang("g", minimum)
        members = [make_pod(f"g{i}", 1, node_name="n", labels=labels, started=NOW) for i in range(3)]
        alone = make_pod("alone", 1, node_name="n", started=NOW - 9 * HOUR)
        return make_state(make_node("n", 4), *members, alone)

    return make


def test_a_gang_keeps_its_minimum_or_leaves_as_a_whole(gang_and_one):
    state = gang_and_one(2)
    [one] = plans(state, high(1))["n"]
    assert one != "alone"
    assert plans(state, high(2)) == {"n": ["g0", "g1", "g2"]}  # cheaper than one of them and nine hours
    state = gang_and_one(3)
    assert plans(state, high(1)) == {"n": ["g0", "g1", "g2"]}
    long = make_pod("g0", 1, node_name="n", labels=in_gang("g", 3), started=NOW - 20 * HOUR)
    state.apply([Upserted(long)])
    assert plans(state, high(1)) == {"n": ["alone"]}


def test_a_member_that_terminates_does_not_count_for_the_minimum(gang_and_one):
    state = gang_and_one(2)
    state.apply([Upserted(replace(state.pods["default/g0"], deleting=True))])
    assert plans(state, high(1)) == {"n": ["g0"]}
    assert plans(state, high(2)) == {"n": ["g1", "g2"]}


def test_a_gang_on_two_nodes_leaves_only_where_whole_gangs_may():
    labels = in_gang("g", 2)
    here, there = (make_pod(f"on-{n}", 1, node_name=n, labels=labels, created=NOW) for n in "ab")
    state = make_state(make_node("a", 1), make_node("b", 1), here, there)
    assert plans(state, high(1)) == {}
    [first, *_] = plan_evictions(state, high(1), ["a"], NOW, whole_gangs=True)
    assert (victims(first), [pod.name for pod in first.other_nodes]) == (["on-a"], ["on-b"])
    assert first.cost[-1] - ROOM_SECONDS * first.room == pytest.approx(2 * RESTART, abs=0.01)
    preempted(state, there)  # a member that may not be evicted
    assert plans(state, high(1), "a", whole_gangs=True) == {}


def test_without_its_leader_a_gang_leaves_as_a_whole():
    ray = {"ray.io/cluster": "r"}
    head = make_pod("head", 1, node_name="n", labels=ray | {"ray.io/node-type": "head"}, started=NOW)
    work = make_pod("worker", 1, node_name="n", labels=ray | {"ray.io/node-type": "worker"}, started=NOW)
    state = make_state(make_node("n", 2), head, work)
    assert plans(state, high(1)) == {"n": ["worker"]}
    assert plans(state, high(2)) == {"n": ["head", "worker"]}
    state.apply([Upserted(make_node("m")), Deleted("Pod", work.key)])
    state.apply([Upserted(replace(work, node_name="m"))])
    assert plans(state, high(2), "n") == {}
    assert plans(state, high(2), "n", whole_gangs=True) == {"n": ["head"]}


def test_members_of_the_pods_own_gang_stay():
    labels = in_gang("g", 1) | {"stowage.dev/queue": "backfill"}
    mate = make_pod("mate", 1, node_name="n", labels=labels, started=NOW - 9 * HOUR)
    state = make_state(make_node("n", 1), mate)
    backfill = make_pod("p", 1, labels={"stowage.dev/queue": "backfill"})
    assert plans(state, backfill, to_equals=True) == {"n": ["mate"]}  # beyond its maximum duration
    assert plans(state, backfill) == {}
    assert plans(state, replace(backfill, labels=labels), to_equals=True) == {}


def test_disruption_budgets_come_first():
    state = make_state(
        make_node("n", 2),
        make_pod("guarded", 1, node_name="n", started=NOW, labels=GUARDED),
        make_pod("dear", 1, node_name="n", started=NOW - 100 * HOUR, priority=99),
    )
    assert plans(state, high(1)) == {"n": ["guarded"]}
    guard(state, 0)
    assert plans(state, high(1)) == {"n": ["dear"]}
    [plan] = plan_evictions(state, high(2), ["n"], NOW)
    assert (plan.pdb_violations, plan.cost[0]) == (1, 1.0)


def test_a_budget_that_permits_one_of_two_is_counted_for_the_set():
    state = make_state(
        make_node("n", 3),
        *(make_pod(f"guarded-{i}", 1, node_name="n", started=NOW, labels=GUARDED) for i in range(2)),
        make_pod("other", 1, node_name="n", started=NOW - HOUR),
    )
    guard(state, 1)
    [plan] = plan_evictions(state, high(2), ["n"], NOW)
    assert ("other" in victims(plan), plan.pdb_violations) == (True, 0)


def test_shielded_jobs_stay():
    low = make_pod("low", 1, node_name="n", created=NOW)
    state = make_state(make_node("n", 1), low)
    assert plans(state, high(1)) == {"n": ["low"]}
    preempted(state, low)
    assert plans(state, high(1)) == {}
    [plan] = plan_evictions(state, high(1), ["n"], NOW + 601)
    assert plan.cost[1] - ROOM_SECONDS * plan.room == pytest.approx(2 * RESTART, abs=0.01)  # it suffered once


def test_each_take_over_doubles_the_time_until_the_next():
    old = make_pod("old", 1, node_name="n", labels=BACKFILL, started=NOW - 7 * HOUR, created=NOW - 7 * HOUR)
    state, waits = make_state(make_node("n", 1), old), make_pod("p", 1, labels=BACKFILL)
    assert plans(state, waits, to_equals=True) == {"n": ["old"]}
    state.disruptions = DisruptionLog(now=lambda: NOW - 8 * HOUR)
    for uid in ("first", "second"):  # two pods of its job were lost at once
        state.disruptions.record_loss(replace(old, uid=uid), "", "EvictionByEvictionAPI", 1, lambda at: 0.0)
    assert plans(state, waits, to_equals=True) == {}
    [plan] = plan_evictions(state, waits, ["n"], NOW + HOUR + 1, to_equals=True)
    assert victims(plan) == ["old"]


def budget(state: State, label: str, allowed: int) -> None:
    selector = (NodeSelectorRequirement(label, "In", ("yes",)),)
    state.apply([Upserted(PodDisruptionBudget("default", label, selector, allowed))])


@pytest.fixture
def overlapping() -> State:
    """Two budgets permit one of two pods each. The cheap pods of both need a third one, whose own permits
    none; the dear ones make room alone."""
    old = NOW - 100 * HOUR
    state = make_state(
        make_node("n", 8),
        make_pod("b-cheap", 1, node_name="n", started=NOW, labels={"b": "yes"}),
        make_pod("b-dear", 2, node_name="n", started=old, labels={"b": "yes"}),
        make_pod("c-cheap", 1, node_name="n", started=NOW, labels={"c": "yes"}),
        make_pod("c-dear", 2, node_name="n", started=old, labels={"c": "yes"}),
        make_pod("d", 2, node_name="n", started=NOW - HOUR, labels={"d": "yes"}),
    )
    for label, allowed in (("b", 1), ("c", 1), ("d", 0)):
        budget(state, label, allowed)
    return state


def test_no_budget_is_violated_where_a_set_of_pods_violates_none(overlapping):
    [plan] = plan_evictions(overlapping, high(4), ["n"], NOW)
    assert (sorted(victims(plan)), plan.pdb_violations) == (["b-dear", "c-dear"], 0)
