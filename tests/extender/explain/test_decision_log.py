from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from extender.background import Failures
from extender.explain.answers import Decision, Explanation
from extender.explain.decision_log import Decisions
from tests.extender.builders import make_pod

START = datetime(2026, 1, 1, tzinfo=UTC)


def decision(seconds: float, verb: str = "filter") -> Decision:
    return Decision(START + timedelta(seconds=seconds), verb, "said")


def test_the_last_of_each_verb_newest_first():
    decisions = Decisions(10)
    pod = make_pod("p")
    for one in (decision(1), decision(2, "prioritize"), decision(3), decision(4, "bind")):
        decisions.add(pod, one)
    assert decisions.about(pod.key) == [decision(4, "bind"), decision(3), decision(2, "prioritize")]
    assert decisions.pod(pod.key) == pod


def test_the_pod_that_was_not_asked_about_for_longest_goes_first():
    decisions = Decisions(2)
    for second, name in enumerate(("a", "b", "a", "c")):
        decisions.add(make_pod(name), decision(second))
    assert [bool(decisions.about(f"default/{name}")) for name in "abc"] == [True, False, True]


def test_another_pod_of_the_same_name_has_no_decisions():
    decisions = Decisions(2)
    decisions.add(make_pod("p", uid="1"), decision(1))
    decisions.add(make_pod("p", uid="2"), decision(2, "bind"))
    assert decisions.about("default/p") == [decision(2, "bind")]


def test_large_pods_are_kept_in_smaller_numbers():
    decisions = Decisions(1000)
    for number in range(1000):
        pod = make_pod(f"p{number}", annotations={"stowage.dev/large": "x" * (32 << 10)})
        decisions.add(pod, decision(number))
    kept = [number for number in range(1000) if decisions.about(f"default/p{number}")]
    assert kept == list(range(1000 - len(kept), 1000))
    assert 200 < len(kept) < 300
    huge = make_pod("huge", annotations={"stowage.dev/large": "x" * (20 << 20)})
    decisions.add(huge, decision(1))
    assert decisions.about(huge.key) == [decision(1)]


def test_a_decision_that_cannot_be_explained_is_counted_and_harms_no_other(caplog):
    def fail():
        raise RuntimeError("injected")

    failures = Failures()
    decisions = Decisions(10, failures)
    for number in range(5):
        decisions.defer(make_pod(f"p{number}"), decision(number), fail)
    decisions.defer(make_pod("p"), decision(1))
    assert decisions.about("default/p") == [decision(1)]
    assert failures.counts == {"explain": 5}
    assert caplog.text.count("explain failed") == 1


def takes(seconds: float) -> Callable[[], Explanation]:
    """An explanation that takes so many seconds of CPU."""

    def explain() -> Explanation:
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass
        return Explanation("default/p")

    return explain


def test_explanations_take_a_part_of_the_time_and_less_for_pods_that_fit(monkeypatch):
    monkeypatch.setattr("extender.explain.decision_log.monotonic", lambda: 1.0)  # nothing refills

    explain = takes(0.2)
    decisions = Decisions(100)
    for number in range(20):
        pod = make_pod(f"p{number}")
        decisions.defer(pod, decision(number), explain, fits=number < 10)
    kept = [decisions.about(f"default/p{number}")[0].explanation is not None for number in range(20)]
    assert kept[0]
    assert sum(kept[:10]) == 1  # 0.03 s, and a debt that is not paid back
    assert kept[10]
    assert sum(kept[10:]) == 3  # half of a second


def test_where_there_is_no_time_to_explain_nothing_waits(monkeypatch):
    monkeypatch.setattr("extender.explain.decision_log.monotonic", lambda: 1.0)  # nothing refills

    explain = takes(0.05)
    decisions = Decisions(10)
    assert decisions.defer(make_pod("a"), decision(1), explain)
    assert not decisions.defer(make_pod("b"), decision(2), explain)  # the first one calls flush for both
    decisions.flush()
    assert not decisions.defer(make_pod("c"), decision(3), explain)
    assert decisions.pod("default/c") is not None
    assert not decisions.defer(make_pod("d"), decision(4))  # without an explanation
    kept = {key: one.explanation is not None for key, one in decisions.latest()}
    assert kept == {"default/a": True, "default/b": False, "default/c": False, "default/d": False}


def test_none_kept_is_none_wanted():
    decisions = Decisions(0)
    assert not decisions.wanted
    decisions.add(make_pod("p"), decision(1))
    assert decisions.about("default/p") == []
    assert decisions.pod("default/p") is None
