from __future__ import annotations

from datetime import UTC, datetime, timedelta

from extender.explain.answers import Decision
from extender.explain.decision_log import Decisions
from tests.extender.builders import make_pod

START = datetime(2026, 1, 1, tzinfo=UTC)


def decision(seconds: float, verb: str = "filter") -> Decision:
    return Decision(START + timedelta(seconds=seconds), verb, "said")


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
