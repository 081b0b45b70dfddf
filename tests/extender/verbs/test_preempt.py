"""preempt: what kube-scheduler gets back, for its versions up to 1.37 and from 1.38 on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extender.k8s.objects import Container, Deleted, PodSpec, Upserted
from extender.protocol.codec import PreemptArgs, ProposedVictims
from extender.verbs.preempt import preempt
from tests.extender.builders import GPU, NOW, make_node, make_pod, make_state

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


def test_where_another_extender_has_refused_the_pod_the_node_is_passed_on(two):
    """From 1.38 on a node that is left out is vetoed."""
    two.apply([Upserted(make_node("free", 2)), Upserted(make_pod("f", 1, node_name="free"))])
    assert answer(two, high(1), {"free": []}) == {"free": []}
    assert answer(two, high(1), {"free": [], "a": []}) == {"free": [], "a": ["a-new"]}
    assert answer(two, high(0), {"a": [], "b": ["b-0"]}) == {"a": [], "b": ["b-0"]}


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


def test_pods_that_terminate_are_named_only_if_nobody_else_has_to_leave(two):
    two.apply([Upserted(replace(two.pods["default/a-old"], deleting=True))])
    assert answer(two, high(1), {"a": ["a-old", "a-new"]}) == {"a": ["a-old"]}
    assert answer(two, high(2), {"a": ["a-old", "a-new"]}) == {"a": ["a-new"]}


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
