"""preempt: what kube-scheduler gets back, for its versions up to 1.37 and from 1.38 on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extender.k8s.objects import Container, Deleted, PodSpec, Upserted
from extender.protocol.codec import PreemptArgs, ProposedVictims
from extender.verbs.eviction.plan import plan_evictions
from extender.verbs.preempt import preempt, required_victims
from tests.extender.builders import GPU, GUARDED, NOW, guard, make_node, make_pod, make_state

HOUR = 3600.0


def high(gpus: int = 1, **more):
    return make_pod("p", gpus, **{"priority": 100, **more})


def answer(state, pod, candidates: dict[str, list[str]], most: int = 1) -> dict[str, list[str]]:
    """The names of the victims by node, in the order of the reply."""
    args = PreemptArgs(
        pod, {node: ProposedVictims([f"uid-{v}" for v in names]) for node, names in candidates.items()}
    )
    found = preempt(state, args, NOW, most=most).candidates
    assert all(one.victims or not candidates[node] for node, one in found.items())
    return {node: [uid.removeprefix("uid-") for uid in one.victims] for node, one in found.items()}


@pytest.fixture
def two():
    """On a a pod with an hour of work and one that has just started; on b two of them with an hour."""
    return make_state(
        *(make_node(name, 2) for name in "ab"),
        make_pod("a-old", 1, node_name="a", started=NOW - HOUR),
        make_pod("a-new", 1, node_name="a", started=NOW),
        *(make_pod(f"b-{i}", 1, node_name="b", started=NOW - HOUR) for i in range(2)),
    )


def test_the_best_node_with_the_cheapest_victims_whatever_was_proposed(two):
    assert answer(two, high(1), {"b": ["b-0"], "a": ["a-old", "a-new"]}) == {"a": ["a-new"]}
    assert answer(two, high(1), {"b": ["b-0"]}).keys() == {"b"}


def test_the_best_few_nodes(two):
    assert list(answer(two, high(1), {"b": ["b-0"], "a": ["a-old"]}, most=2)) == ["a", "b"]


def test_empty_lists_are_filled_or_left_out(two):
    assert answer(two, high(1), {"a": [], "b": []}) == {"a": ["a-new"]}
    assert answer(two, high(3), {"a": [], "b": []}) == {}


def test_where_another_extender_has_refused_the_pod_the_node_is_passed_on(two):
    """From 1.38 on a node that is left out is vetoed."""
    two.apply([Upserted(make_node("free", 2)), Upserted(make_pod("f", 1, node_name="free"))])
    assert answer(two, high(1), {"free": []}) == {"free": []}
    assert answer(two, high(1), {"free": [], "a": []}) == {"free": [], "a": ["a-new"]}
    assert answer(two, high(0), {"a": [], "b": ["b-0"]}) == {"a": [], "b": ["b-0"]}


def test_a_node_where_the_pod_fits_already_is_left_out(two):
    two.apply([Upserted(make_node("free", 2)), Upserted(make_pod("f", 1, node_name="free"))])
    assert answer(two, high(1), {"free": ["f"]}) == {}
    assert answer(two, high(1), {"free": ["f"], "a": []}) == {"a": ["a-new"]}


def test_only_strictly_lower_priority():
    old = make_pod("old", 1, node_name="n", labels={"stowage.dev/queue": "backfill"}, started=NOW - 9 * HOUR)
    state = make_state(make_node("n", 1), old)
    assert answer(state, make_pod("p", 1, labels={"stowage.dev/queue": "backfill"}), {"n": ["old"]}) == {}


@pytest.mark.parametrize(
    "pod",
    [
        high(1, has_other_constraints=True),
        high(1, spec=PodSpec((Container("c", ((GPU, "1"), ("ephemeral-storage", "1Gi"))),))),
        high(1, spec=PodSpec((Container("c", (("example.com/fpga", "1"), (GPU, "1"))),))),
        high(1, spec=PodSpec((Container("c", ((GPU, "1"), ("hugepages-2Mi", "2Mi"))),))),
    ],
    ids=["constraints", "storage", "another device", "huge pages"],
)
def test_proposed_victims_stay_where_something_else_may_have_decided(two, pod):
    assert answer(two, pod, {"a": ["a-old"]}) == {"a": ["a-old"]}
    assert answer(two, high(1), {"a": ["a-old"]}) == {"a": ["a-new"]}


def test_a_proposed_victim_with_constraints_of_its_own_stays(two):
    two.apply([Upserted(replace(two.pods["default/a-old"], has_other_constraints=True))])
    assert answer(two, high(1), {"a": ["a-old"]}) == {"a": ["a-old"]}
    assert set(answer(two, high(2), {"a": ["a-old"]})["a"]) == {"a-new", "a-old"}


def test_required_victims_that_are_protected_close_the_node(two):
    two.apply([Upserted(replace(two.pods["default/a-old"], priority=100))])
    assert answer(two, high(1, has_other_constraints=True), {"a": ["a-old"]}) == {}


def test_at_the_pod_limit_the_proposed_victims_stay():
    state = make_state(
        make_node("n", 2, pods="2"),
        make_pod("cpu", 0, node_name="n"),
        make_pod("gpu", 2, node_name="n", started=NOW - HOUR),
    )
    victims = [state.pods["default/cpu"]]
    assert required_victims(state, high(), "n", victims) == victims
    assert set(answer(state, high(1), {"n": ["cpu"]})["n"]) == {"cpu", "gpu"}


def test_a_candidate_that_violates_a_budget_only_if_there_is_no_other(two):
    pods = [two.pods[f"default/{name}"] for name in ("a-new", "a-old")]
    two.apply([Upserted(replace(pod, labels=GUARDED)) for pod in pods])
    guard(two, 0)
    assert answer(two, high(1), {"a": ["a-new"], "b": ["b-0"]}, most=5).keys() == {"b"}
    args = PreemptArgs(high(1), {"a": ProposedVictims(["uid-a-new"], 7)})
    assert preempt(two, args, NOW).candidates == {"a": ProposedVictims(["uid-a-new"], 1)}  # counted again


def test_pods_that_terminate_are_named_only_if_nobody_else_has_to_leave(two):
    two.apply([Upserted(replace(two.pods["default/a-old"], deleting=True))])
    assert answer(two, high(1), {"a": ["a-old", "a-new"]}) == {"a": ["a-old"]}
    assert answer(two, high(2), {"a": ["a-old", "a-new"]}) == {"a": ["a-new"]}


def test_nodes_that_kube_scheduler_would_refuse_are_left_out(two):
    assert answer(two, high(1, spec=replace(high().spec, node_selector=(("x", "y"),))), {"a": []}) == {}


@pytest.fixture
def coming():
    """As after an eviction by Kueue: on ``a`` a pod of the same priority as the one that waits terminates, so
    kube-scheduler only proposes ``b``."""
    return make_state(
        make_node("a", 1),
        make_node("b", 1),
        make_pod("stopped", 1, node_name="a", priority=100, deleting=True, ends=NOW + 30, started=NOW - HOUR),
        make_pod("innocent", 1, node_name="b", started=NOW - HOUR),
    )


def test_nobody_is_evicted_while_room_is_coming_on_a_node_that_was_not_proposed(coming):
    assert answer(coming, high(1), {"b": ["innocent"]}) == {}
    coming.apply(
        [Deleted("Pod", "default/stopped"), Upserted(make_pod("takes", 1, node_name="a", priority=100))]
    )
    assert answer(coming, high(1), {"b": ["innocent"]}) == {"b": ["innocent"]}


def test_a_pod_still_ends_in_the_seconds_after_its_grace_period(coming):
    coming.apply([Upserted(replace(coming.pods["default/stopped"], ends=NOW - 3))])
    assert answer(coming, high(1), {"b": ["innocent"]}) == {}


@pytest.mark.parametrize(
    ("stopped", "pod"),
    [
        ({"ends": NOW - 31}, high(1)),
        ({"ends": NOW - 1, "deleted": NOW - 1}, high(1)),
        ({}, high(1, has_other_constraints=True)),
        ({}, high(1, spec=replace(high(1).spec, node_selector=(("zone", "b"),)))),
        ({"spec": make_pod("half", 0).spec}, high(1)),
    ],
    ids=[
        "it is stuck",
        "a finalizer holds it",
        "kube-scheduler may refuse the node",
        "the node is not allowed",
        "it frees no GPU",
    ],
)
def test_room_that_does_not_come_is_not_waited_for(coming, stopped, pod):
    coming.apply([Upserted(replace(make_node("b", 1), labels={"zone": "b"}))])
    coming.apply([Upserted(replace(coming.pods["default/stopped"], **stopped))])
    assert answer(coming, pod, {"b": ["innocent"]}) == {"b": ["innocent"]}


def test_room_that_a_nominated_pod_waits_for_is_not_coming_for_others(coming):
    coming.apply([Upserted(make_pod("first", 1, priority=100, nominated_node="a"))])
    assert answer(coming, high(1), {"b": ["innocent"]}) == {"b": ["innocent"]}


@pytest.mark.parametrize("proposed", [{"b": ["innocent"]}, {"a": ["other"], "b": ["innocent"]}])
def test_nobody_is_evicted_while_kube_scheduler_has_not_seen_the_end_of_a_pod(coming, proposed):
    """Stowage has. kube-scheduler tries the pod again when it sees it."""
    coming.pods.now = lambda: NOW
    coming.apply([Upserted(make_node("a", 2)), Upserted(make_pod("other", 1, node_name="a"))])
    coming.apply([Upserted(replace(coming.pods["default/stopped"], phase="Failed"))])
    assert answer(coming, high(1), proposed) == {}
    coming.pods.now = lambda: NOW - 6
    coming.apply([Deleted("Pod", "default/other")])
    assert answer(coming, high(1), {"b": ["innocent"]}) == {"b": ["innocent"]}


def test_pods_that_end_all_the_time_keep_nobody_waiting_for_ever(coming):
    """kube-scheduler may never place the pod there, for a reason that Stowage does not see."""
    waits = high(1)
    coming.apply([Upserted(make_node("a", 2)), Upserted(waits)])
    answers = []
    for second in range(0, 90, 3):
        coming.pods.now = lambda at=second: NOW + at
        coming.apply([Upserted(make_pod("short", 1, node_name="a")), Deleted("Pod", "default/short")])
        found = preempt(coming, PreemptArgs(waits, {"b": ProposedVictims(["uid-innocent"])}), NOW + second)
        answers.append(bool(found.candidates))
    assert answers == [False] * 20 + [True] * 10
    assert waits.uid in coming.pods.expects
    coming.apply([Deleted("Pod", waits.key)])
    assert not coming.pods.expects


def test_nobody_is_evicted_for_a_pod_that_is_gone(two):
    two.apply([Upserted(replace(high(1), deleting=True))])
    assert answer(two, high(1), {"a": ["a-old"]}) == {}
    two.apply([Upserted(high(1))])
    assert answer(two, replace(high(1), deleting=True), {"a": ["a-old"]}) == {}
    assert answer(two, high(1), {"a": ["a-old"]}) == {"a": ["a-new"]}


def test_no_room_is_so_good_that_somebody_leaves_for_it_where_others_leave_already():
    """The small pod would leave an empty node, which is worth more than the little work that it loses."""
    state = make_state(
        make_node("a", 8),
        make_node("b", 2),
        make_pod("a-leaves", 8, node_name="a", deleting=True, started=NOW - HOUR),
        make_pod("b-stays", 1, node_name="b", priority=100),
        make_pod("b-new", 1, node_name="b", started=NOW, cpu="100m"),
    )
    plans = {plan.node: plan for plan in plan_evictions(state, high(1), ["a", "b"], NOW)}
    assert plans["b"].cost < plans["a"].cost  # what this test is about
    assert list(plans) == ["a", "b"]
    assert answer(state, high(1), {"a": ["a-leaves"], "b": ["b-new"]}) == {"a": ["a-leaves"]}
