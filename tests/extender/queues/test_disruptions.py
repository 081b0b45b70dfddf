"""Disruptions are counted once for each pod, whatever the watch repeats, and are forgotten in order."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.k8s.affinity import Taint
from extender.k8s.objects import Deleted, Listed, Owner, Pod, Upserted
from extender.queues.disruptions import (
    NODE_INTERRUPTION,
    DisruptionLog,
)
from extender.untrusted.limits import DISRUPTIONS
from tests.extender.builders import make_node, make_pod, make_state

T0 = 1_767_225_600.0
JOB = Owner("Job", "train", "uid-train")
PREEMPTED, EVICTED = "PreemptionByScheduler", "EvictionByEvictionAPI"


class Clock:
    def __init__(self, at: float = T0) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


def log_at(clock: Clock, shield: float = 600.0) -> DisruptionLog:
    return DisruptionLog(shield, clock)


def worker(name: str, **more) -> Pod:
    fields = {"owner": JOB, "node_name": "n", "started": T0 - 7200, "created": T0 - 7200, "phase": "Running"}
    return make_pod(name, 2, **(fields | more))


def disrupted(pod: Pod, reason: str = PREEMPTED, at: float = T0 + 10) -> Pod:
    return replace(pod, disruption=reason, disrupted=at, deleting=True)


def note(log: DisruptionLog, pod: Pod, reason: str = PREEMPTED, queue: str = "batch") -> None:
    log.record_loss(pod, queue, reason, 2.0, lambda at: 3600.0)


def state_at(clock: Clock, *pods: Pod, taints: tuple[Taint, ...] = ()):
    state = make_state(replace(make_node("n"), taints=taints), *pods)
    later, clock.at = clock.at, T0
    state.disruptions = log_at(clock)
    clock.at = later
    return state


@pytest.mark.parametrize(
    "events",
    [
        [Deleted("Pod", "default/a")],
        [Listed("Pod", frozenset())],
        [Upserted(worker("a", uid="another"))],
        [Upserted(worker("a", disruption=PREEMPTED, phase="Failed"))],
    ],
)
def test_a_disrupted_pod_may_vanish_unseen(events):
    state = state_at(Clock(T0 + 60), worker("a", disruption=PREEMPTED))
    state.apply(events)
    assert state.disruptions.pods == {("none", PREEMPTED, "Job"): 1}


def test_on_a_node_that_is_interrupted_evictions_and_deletions_are_interruptions():
    spot = (Taint("aws-node-termination-handler/spot-itn", "", "NoSchedule"),)
    pods = [worker(name) for name in "abcd"]
    state = state_at(Clock(T0 + 60), *pods, taints=spot)
    state.apply(
        [
            Upserted(disrupted(pods[0], EVICTED)),
            Upserted(replace(pods[1], deleting=True)),
            Upserted(disrupted(pods[2])),
            Upserted(replace(pods[3], phase="Succeeded")),
        ]
    )
    assert state.disruptions.pods == {
        ("none", NODE_INTERRUPTION, "Job"): 2,
        ("none", PREEMPTED, "Job"): 1,
    }
    assert state.disruptions.evictions_last_hour("", T0 + 60) == 1


def test_the_shield_protects_replacements_only_and_for_a_time():
    clock = Clock(T0 + 10)
    log = log_at(clock)
    note(log, disrupted(worker("a")))
    sibling, replacement = worker("b"), worker("c", created=T0 + 11)
    assert log.shielded_until(replacement) > T0 + 11
    for created in (T0 + 10, T0 + 5):  # in the same second; a clock is ahead
        assert log.shielded_until(replace(replacement, created=created)) > T0 + 11
    assert log.shielded_until(replace(replacement, created=T0 + 4)) <= T0 + 11
    assert log.shielded_until(sibling) <= T0 + 11
    assert log.shielded_until(replace(replacement, owner=Owner("Job", "other", "uid-other"))) <= T0 + 11
    assert log.shielded_until(replacement) > T0 + 609
    assert log.shielded_until(replacement) <= T0 + 610


def test_who_replaces_an_interrupted_pod():
    log = log_at(Clock(T0 + 20))
    waiting = worker("b", node_name="", created=T0 + 15)
    note(log, disrupted(worker("a")))
    assert not log.replaces_interrupted(waiting, T0 + 20)  # preempted, not interrupted
    note(log, disrupted(worker("c")), NODE_INTERRUPTION)
    assert log.replaces_interrupted(waiting, T0 + 20)
    assert not log.replaces_interrupted(replace(waiting, node_name="n"), T0 + 20)
    assert not log.replaces_interrupted(replace(waiting, created=T0 - 60), T0 + 20)
    assert not log.replaces_interrupted(waiting, T0 + 4000)
    assert not log.replaces_interrupted(replace(waiting, owner=None), T0 + 20)


def test_the_log_is_bounded_and_forgets_the_oldest():
    clock = Clock()
    log = log_at(clock)
    pods = [
        worker(f"p{i}", uid=f"u{i}", owner=Owner("Job", "j", f"job-{i}"), disrupted=T0 + i)
        for i in range(DISRUPTIONS + 50)
    ]
    clock.at = T0 + 1e5
    for pod in pods:
        note(log, pod)
    assert len(log.dump()["disruptions"]) == DISRUPTIONS
    assert log.restarts(replace(pods[49], created=clock.at)) == 0
    assert log.restarts(replace(pods[50], created=clock.at)) == 1
    counted = dict(log.pods)
    for pod in pods:  # a relist shows all of them again
        note(log, pod)
    assert dict(log.pods) == counted
    assert len(log._by_job) == len(log._preemptions["batch"]) == DISRUPTIONS


@pytest.mark.parametrize(("namespace", "gpus"), [("default", 0.0), ("other", 0.0), ("other", 2.0)])
def test_nobody_washes_out_what_others_have_lost(namespace: str, gpus: float):
    clock = Clock(T0 + 100)
    log = log_at(clock)
    note(log, disrupted(worker("a", uid="a")))
    for i in range(DISRUPTIONS + 100):
        pod = replace(worker(f"p{i}", uid=f"u{i}"), namespace=namespace, owner=None)
        log.record_loss(disrupted(pod, at=T0 + 20), "batch", PREEMPTED, gpus, lambda at: 0.0)
    replacement = worker("b", created=T0 + 30)
    assert log.shielded_until(replacement) == T0 + 610
    later = log_at(clock)
    later.load(json.loads(json.dumps(log.dump())))
    assert later.shielded_until(replacement) == T0 + 610


_STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 8000), st.booleans()))


@given(_STEPS)
def test_the_log_agrees_with_a_plain_list(steps):
    clock = Clock(T0 + 10_000)
    log, plain = log_at(clock), {}
    for uid, job, at, preempted in steps:
        pod = worker("x", uid=f"u{uid}", owner=Owner("Job", "j", f"job-{job}"), disrupted=T0 + at)
        reason = PREEMPTED if preempted else NODE_INTERRUPTION
        note(log, pod, reason)
        plain.setdefault(f"u{uid}", (T0 + at, f"job-{job}", reason))
    loaded = log_at(clock)
    loaded.load(json.loads(json.dumps(log.dump())))
    for one in (log, loaded):
        for job in range(4):
            of_job = [at for at, name, _ in plain.values() if name == f"job-{job}"]
            pod = worker("y", owner=Owner("Job", "j", f"job-{job}"), created=T0 + 5000)
            before = [at for at in of_job if at <= T0 + 5005]  # 5 s: a clock may be ahead
            assert one.restarts(pod) == len(before)
            assert (one.shielded_until(pod) > T0 + 5100) == any(at > T0 + 4500 for at in before)
        assert one.evictions_last_hour("batch", T0 + 7000) == sum(
            T0 + 3400 < at <= T0 + 7000 and reason == PREEMPTED for at, _, reason in plain.values()
        )


@pytest.mark.parametrize(
    "entry",
    [
        None,
        7,
        "text5",
        [],
        [T0, "u", "j", "q"],
        [float("nan"), "u", "j", "q", PREEMPTED],
        [True, "u", "j", "q", PREEMPTED],
        ["1", "u", "j", "q", PREEMPTED],
        [T0 + 1e9, "u", "j", "q", PREEMPTED],
        [T0, "u", "j", "q", "because"],
        [T0, "", "j", "q", PREEMPTED],
        [T0, "u" * 1000, "j", "q", PREEMPTED],
        [T0, "u", 5, "q", PREEMPTED],
        [10**400, "u", "j", "q", PREEMPTED],
    ],
)
def test_an_invalid_entry_of_a_dump_is_ignored(entry):
    log = log_at(Clock(T0 + 1))
    log.load({"disruptions": [entry, [T0, "fine", "j", "q", PREEMPTED]]})
    assert [one[1] for one in log.dump()["disruptions"]] == ["fine"]


@pytest.mark.parametrize("dumped", [None, [], "x", {}, {"disruptions": "abc"}, {"disruptions": 5}])
def test_what_is_no_dump_is_ignored(dumped):
    log = log_at(Clock())
    log.load(dumped)
    assert log.dump() == {"disruptions": [], "moves": []}


@pytest.mark.parametrize(
    "entry",
    [5, "ab", [], [T0], [T0, -1], [T0, float("nan")], [T0, 10**400], [T0, True], [T0 + 9, 5], [T0 - 3601, 5]],
)
def test_a_dump_has_what_moves_lost_in_the_last_hour(entry):
    log = log_at(Clock(T0 + 1))
    log.load({"moves": [entry, [T0 - 60, 300]]})
    log.load(log.dump())
    assert log.dump()["moves"] == [[T0 - 60, 300]]
