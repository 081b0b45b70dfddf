"""How long room is held for a waiting pod, on a real state."""

from __future__ import annotations

from collections import Counter
from typing import Any

from extender.cluster.state import State
from extender.evictor.book import Book, Hold
from extender.evictor.decision import (
    OWN_GRACE,
    adopt,
    candidates,
    next_step_of_hold,
)
from tests.extender.builders import make_node, make_state
from tests.extender.evictor.waiting import settled, victim, waiter

SECONDS = 120.0


def hold(**more: Any) -> Hold:
    return Hold(**({"node": "n1", "leaving": frozenset({"uid-v"}), "ends": 1000.0, "ours": True} | more))


def steps(state: State, held: Hold, now: float) -> list[str]:
    book = Book()
    book.holds["uid-p"] = held
    step = next_step_of_hold(state, book, "uid-p", now, SECONDS)
    return [step] if step else []


def test_a_nomination_that_kube_scheduler_cleared_is_made_again() -> None:
    state = make_state(make_node("n1", 1), victim(deleting=True), waiter())
    assert steps(state, hold(), 1.0) == ["nominate"]
    assert steps(state, hold(ours=False), 1.0) == ["drop"]
    book = Book()
    book.holds["uid-p"] = hold()
    book.delay("uid-p", 0.0)
    assert next_step_of_hold(state, book, "uid-p", 1.0, SECONDS) is None  # it failed a moment ago


def test_a_hold_stays_while_the_pod_is_being_bound() -> None:
    state = make_state(make_node("n1"), waiter(nominated_node="n1"))
    state.assume(state.pods["default/p"], "n1", {}, now=0.0)
    assert steps(state, hold(gone=0.0), 10 * SECONDS) == []


def test_pods_that_are_nominated_already_are_waited_for() -> None:
    """By kube-scheduler, or by the evictor before it died. Nobody else is evicted for them."""
    pod = waiter(nominated_node="n1")
    state, book = make_state(make_node("n1"), victim(deleting=True), victim("stays"), pod), settled(pod)
    adopt(state, book, pod, 0.0, SECONDS)
    assert book.holds == {pod.uid: Hold("n1", frozenset({"uid-v"}), OWN_GRACE + SECONDS, ours=False)}
    assert candidates(book, [pod], 0.0, Counter()) == []
    book.holds.clear()
    book.stale[pod.uid] = "n1"  # it led to nothing
    adopt(state, book, pod, 0.0, SECONDS)
    assert candidates(book, [pod], 0.0, Counter()) == [pod]


def test_terminating_pods_that_are_too_few_are_not_waited_for() -> None:
    """Somebody died between two evictions. The new plan counts what is leaving."""
    pod = waiter(nominated_node="n1", gpus=2)
    state = make_state(make_node("n1", gpus=2), victim(deleting=True), victim("stays"), pod)
    book = settled(pod)
    adopt(state, book, pod, 0.0, SECONDS)
    assert next_step_of_hold(state, book, pod.uid, 0.0, SECONDS) is None
    assert next_step_of_hold(state, book, pod.uid, SECONDS, SECONDS) == "drop"
