"""Who may be evicted for whom, and why not."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.k8s.admission_objects import PriorityClass
from extender.k8s.objects import Owner, Pod, Upserted
from extender.queues.disruptions import DisruptionLog
from extender.queues.gangs import GangTable
from extender.queues.queue import QUEUE_LABEL, Queues
from extender.queues.rights import EvictionRules, Rights, WhyNot
from extender.settings import DEFAULT_QUEUES, Queue
from tests.extender.builders import make_pod

NOW = 100_000.0
SAFE = "cluster-autoscaler.kubernetes.io/safe-to-evict"
PRIORITIES = {"interactive": 1000, "batch": 500, "backfill": 100, "": 300}


def running(queue: str = "", age: float = 5000, **pod: Any) -> Pod:
    """A pod that has run for ``age`` seconds, with the priority of its queue."""
    labels = {QUEUE_LABEL: queue} | pod.pop("labels", {})
    pod = {"priority": PRIORITIES[queue], "phase": "Running", "started": NOW - age if age else 0.0} | pod
    return make_pod("victim", labels=labels, **pod)


def waiting(queue: str = "", **pod: Any) -> Pod:
    pod = {"priority": PRIORITIES[queue]} | pod
    return make_pod("preemptor", labels={QUEUE_LABEL: queue}, **pod)


def why(preemptor: Pod, victim: Pod, rights: Rights | None = None, *, to_equals: bool = False) -> str:
    """Why the victim may not be evicted, as far as these two pods show."""
    gangs = GangTable()
    gangs.apply(Upserted(victim))
    rules = EvictionRules(rights or Rights(), gangs, DisruptionLog(), preemptor, NOW, to_equals=to_equals)
    [found] = rules.why_not([victim])
    return found


def test_the_default_queues() -> None:
    queues = ("interactive", "batch", "backfill")
    evictable = {(a, b) for a in queues for b in queues if why(waiting(a), running(b)) == ""}
    assert evictable == {("interactive", "batch"), ("interactive", "backfill"), ("batch", "backfill")}


def test_without_queues_only_priorities_count() -> None:
    high, low = waiting(priority=1), running(priority=0, age=0)
    assert why(high, low) == ""
    assert why(replace(low, node_name=""), high) == WhyNot.PRIORITY
    assert why(replace(high, priority=0), low) == WhyNot.PRIORITY
    assert why(replace(high, never_preempts=True), low) == WhyNot.NEVER
    assert why(waiting("interactive"), running(priority=999)) == ""
    assert why(waiting(priority=2000), running("interactive")) == ""


def test_a_right_needs_priority_and_queue() -> None:
    assert why(waiting("interactive", priority=400), running("batch")) == WhyNot.PRIORITY
    assert why(waiting("backfill", priority=9000), running("batch")) == WhyNot.QUEUE
    assert why(waiting("batch", priority=9000), running("batch")) == WhyNot.QUEUE
    itself = Rights(Queues({"batch": Queue(preempts=frozenset({"batch"}))}))
    assert why(waiting("batch", priority=9000), running("batch"), itself) == ""


def test_the_minimum_runtime_protects_pods_that_have_started() -> None:
    assert why(waiting("interactive"), running("batch", age=599)) == WhyNot.MIN_RUNTIME
    assert why(waiting("interactive"), running("batch", age=600)) == ""
    assert why(waiting("interactive"), running("batch", age=0)) == ""


@pytest.mark.parametrize(
    ("preemptor", "victim", "age", "expected"),
    [
        ("backfill", "backfill", 4 * 3600, ""),
        ("backfill", "backfill", 4 * 3600 - 1, WhyNot.PRIORITY),
        ("batch", "backfill", 4 * 3600 + 1, ""),
        ("", "backfill", 4 * 3600 + 1, WhyNot.PRIORITY),  # without a queue there are no equals
        ("batch", "batch", 10**6, WhyNot.PRIORITY),  # without a maximum duration
        ("backfill", "interactive", 10**6, WhyNot.PRIORITY),
    ],
)
def test_equals_take_over_after_the_maximum_duration(
    preemptor: str, victim: str, age: float, expected: str
) -> None:
    pods = waiting(preemptor, priority=100), running(victim, age, priority=100)
    assert why(*pods, to_equals=True) == expected
    assert why(*pods) == WhyNot.PRIORITY


def test_taking_over_respects_protection_but_not_the_minimum_runtime() -> None:
    pods = waiting("backfill"), running("backfill", 10**5 - 1, annotations={SAFE: "false"})
    assert why(*pods, to_equals=True) == WhyNot.SAFE_TO_EVICT
    gang = {"stowage.dev/gang": "g"}
    in_gang = [replace(pod, labels={**pod.labels, **gang}) for pod in pods]
    assert why(*in_gang, to_equals=True) == WhyNot.SAME_GANG
    modest = replace(pods[0], never_preempts=True), replace(pods[1], annotations={})
    assert why(*modest, to_equals=True) == ""
    assert why(modest[0], replace(modest[1], priority=1), to_equals=True) == WhyNot.NEVER
    higher = replace(pods[1], priority=101)
    assert why(pods[0], higher, to_equals=True) == WhyNot.PRIORITY


def test_who_is_never_a_victim() -> None:
    first = waiting("interactive", priority=2_000_001_000)
    for kind in ("DaemonSet", "Node"):
        assert why(first, running("backfill", owner=Owner(kind, "x", "u"))) == WhyNot.PINNED
    assert why(first, running(priority=2_000_000_000)) == WhyNot.SYSTEM
    assert why(first, running(priority=1_999_999_999)) == ""


def test_pods_of_one_job_or_gang_do_not_evict_each_other() -> None:
    owner = Owner("Job", "j", "uid-j")
    assert why(waiting(priority=999, owner=owner), running(owner=owner)) == WhyNot.SAME_GANG
    assert why(waiting(priority=999, owner=owner), running(owner=Owner("Job", "j", "other"))) == ""
    assert why(waiting(priority=999, owner=Owner("Job", "j")), running(owner=Owner("Job", "j"))) == ""
    assert why(waiting(priority=999, pod_group="g"), running(pod_group="g")) == WhyNot.SAME_GANG
    elsewhere = replace(running(pod_group="g"), namespace="other")
    assert why(waiting(priority=999, pod_group="g"), elsewhere) == ""


def test_pods_of_kueue_are_left_to_kueue_unless_a_setting_says_otherwise() -> None:
    victim = running("backfill", labels={"kueue.x-k8s.io/managed": "true"})
    assert why(waiting("batch"), victim) == WhyNot.KUEUE
    assert why(waiting("batch"), victim, Rights(evict_kueue_pods=True)) == ""


def test_words_protect_unless_the_queue_forbids_it() -> None:
    victim = running("backfill", annotations={SAFE: "false"})
    assert why(waiting("batch"), victim) == WhyNot.SAFE_TO_EVICT
    strict = {"backfill": DEFAULT_QUEUES["backfill"].model_copy(update={"self_protection": False})}
    assert why(waiting("batch"), victim, Rights(Queues({**DEFAULT_QUEUES, **strict}))) == ""


def test_a_semi_preemptible_gang_keeps_its_minimum() -> None:
    victim = running("backfill", labels={"kai.scheduler/preemptibility": "semi-preemptible"})
    assert why(waiting("batch"), victim) == WhyNot.GANG_MINIMUM
    member = replace(victim, labels={**victim.labels, "stowage.dev/gang": "g"})
    assert why(waiting("batch"), member) == "", "the search sees to the minimum"


def tolerant(minimum: int, toleration: float) -> Rights:
    rights = Rights()
    rights.queues.classes.apply(Upserted(PriorityClass("c", "", minimum, toleration)))
    return rights


@pytest.mark.parametrize(
    ("minimum", "toleration", "age", "expected"),
    [
        (1000, 3600, 3599, WhyNot.TOLERATION),
        (1000, 3600, 3600, ""),
        (1000, 3600, 0, WhyNot.TOLERATION),  # it was bound a moment ago
        (1000, math.inf, 10**6, WhyNot.TOLERATION),
        (1000, 0, 1, ""),
        (1000, 0, 0, ""),
        (999, math.inf, 1, ""),
    ],
)
def test_preemption_toleration(minimum: int, toleration: float, age: float, expected: str) -> None:
    """The preemptor has priority 999. ``ExemptedFromPreemption`` of scheduler-plugins answers the same."""
    victim = running(age=age, priority_class="c")
    assert why(waiting(priority=999), victim, tolerant(minimum, toleration)) == expected


def test_a_change_of_the_class_counts_at_once() -> None:
    rights, victim = tolerant(1000, math.inf), running(priority_class="c")
    assert why(waiting(priority=999), victim, rights) == WhyNot.TOLERATION
    rights.queues.classes.apply(Upserted(PriorityClass("c")))
    assert why(waiting(priority=999), victim, rights) == ""
    assert why(waiting(priority=999), victim, tolerant(1000, math.inf)) == WhyNot.TOLERATION
    assert why(waiting(priority=999), victim, rights) == ""


WORDS = {
    SAFE: ["false", "true", ""],
    "karpenter.sh/do-not-disrupt": ["true", "1h", "x"],
    "volcano.sh/cooldown-time": ["1h", "-1s", "?"],
    "kai.scheduler/preemptibility": ["preemptible", "semi-preemptible", "no"],
    "kueue.x-k8s.io/managed": ["true"],
    QUEUE_LABEL: ["interactive", "batch", "backfill", "other"],
}
words = st.fixed_dictionaries({}, optional={key: st.sampled_from(texts) for key, texts in WORDS.items()})
pods = st.builds(
    make_pod,
    st.sampled_from(["a", "b"]),
    labels=words,
    annotations=words,
    priority=st.sampled_from([0, 1, 2, 2_000_000_000]),
    priority_class=st.sampled_from(["", "stowage-batch", "stowage-backfill"]),
    phase=st.sampled_from(["Pending", "Running"]),
    started=st.sampled_from([0.0, NOW - 10, NOW - 10**5]),
    never_preempts=st.booleans(),
)


@given(pods, pods, st.booleans())
def test_words_and_queues_only_ever_protect(preemptor: Pod, victim: Pod, to_equals: bool) -> None:
    """Whatever authors write: nobody evicts a higher priority, and a text of the set says why not."""
    rights = Rights()
    answer = why(preemptor, victim, rights, to_equals=to_equals)
    assert answer == why(preemptor, victim, rights, to_equals=to_equals)
    assert answer in ("", *WhyNot)
    if answer == "":
        assert victim.priority < preemptor.priority + to_equals
        if victim.priority == preemptor.priority:
            assert NOW - victim.started >= 4 * 3600
            assert rights.queues.name_of(victim) == "backfill"
            return
        assert not preemptor.never_preempts
        wordless = [replace(one, labels={}, annotations={}, priority_class="") for one in (preemptor, victim)]
        assert why(*wordless) == ""
