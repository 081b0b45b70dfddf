"""How long room is held for a waiting pod, on a real state."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from extender.cluster.reservations import Reserved
from extender.cluster.state import State
from extender.evictor.book import Book, Hold
from extender.evictor.decision import (
    OWN_GRACE,
    adopt,
    candidates,
    next_step_of_hold,
)
from extender.k8s.objects import Deleted, Upserted
from packing.model.reasons import Reason
from tests.extender.builders import make_node, make_state, why
from tests.extender.evictor.waiting import settled, victim, waiter

SECONDS = 120.0


def hold(**more: Any) -> Hold:
    return Hold(**({"node": "n1", "leaving": frozenset({"uid-v"}), "ends": 1000.0, "ours": True} | more))


def steps(state: State, held: Hold, now: float) -> list[str]:
    book = Book()
    book.holds["uid-p"] = held
    step = next_step_of_hold(state, book, "uid-p", now, SECONDS)
    return [step] if step else []


def test_room_is_held_until_some_time_after_the_victims_have_gone() -> None:
    leaving = victim(deleting=True)
    state = make_state(make_node("n1", 1), leaving, waiter(nominated_node="n1"))
    held = hold()
    assert steps(state, held, 999.0) == []
    assert steps(state, held, 1000.0) == ["clear"]  # they never go
    state.apply([Deleted("Pod", leaving.key)])
    assert steps(state, held, 100.0) == []
    assert steps(state, held, 100.0 + SECONDS - 1) == []
    assert steps(state, held, 100.0 + SECONDS) == ["clear"]


def test_a_nomination_that_kube_scheduler_cleared_is_made_again() -> None:
    state = make_state(make_node("n1", 1), victim(deleting=True), waiter())
    assert steps(state, hold(), 1.0) == ["nominate"]
    assert steps(state, hold(ours=False), 1.0) == ["drop"]
    book = Book()
    book.holds["uid-p"] = hold()
    book.delay("uid-p", 0.0)
    assert next_step_of_hold(state, book, "uid-p", 1.0, SECONDS) is None  # it failed a moment ago


@pytest.mark.parametrize(
    "changes", [{"node_name": "n1"}, {"nominated_node": "n2"}, {"deleting": True}, {"phase": "Failed"}]
)
def test_a_hold_ends_when_the_pod_is_placed_or_gone_or_others_decide(changes: dict[str, Any]) -> None:
    pod = replace(waiter(nominated_node="n1"), **changes)
    assert steps(make_state(make_node("n1", 1), pod), hold(), 1.0) == ["drop"]


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


def test_held_room_is_not_given_to_others_whatever_kube_scheduler_writes() -> None:
    pod, equal, above = waiter(), waiter("equal"), waiter("above", priority=101)
    state = make_state(make_node("n1", 1), pod, equal, above)
    state.reservations.reserve(pod.uid, Reserved.EVICTOR, "n1")
    state.apply([Upserted(replace(pod, nominated_node="n1")), Upserted(pod)])  # nominated, and cleared
    assert why(state, equal, "n1") is not Reason.FITS
    assert why(state, pod, "n1") is Reason.FITS
    assert why(state, above, "n1") is Reason.FITS  # as for kube-scheduler
    state.reservations.release(pod.uid, Reserved.EVICTOR)
    assert why(state, equal, "n1") is Reason.FITS
    state.reservations.reserve(pod.uid, Reserved.EVICTOR, "n1")
    state.apply([Upserted(replace(pod, node_name="n1")), Deleted("Pod", pod.key)])
    assert (state.reservations.by_reason(Reserved.EVICTOR), why(state, equal, "n1")) == ({}, Reason.FITS)
    state.reservations.reserve(pod.uid, Reserved.EVICTOR, "n1")  # it is gone
    assert state.reservations.by_reason(Reserved.EVICTOR) == {}
