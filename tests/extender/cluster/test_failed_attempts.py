"""A nomination that an error has cleared counts until the pod is tried again."""

from __future__ import annotations

from dataclasses import replace

from extender.cluster.reservations import FAILED, RETRIED_WITHIN
from extender.cluster.state import State
from extender.k8s.objects import Deleted, Pod, Upserted
from packing.model.reasons import Reason
from tests.extender.builders import make_node, make_pod, make_state, why

WAITS = make_pod("waits", 8, priority=1, nominated_node="n", unscheduled="Unschedulable")
FAILS = replace(WAITS, nominated_node="", unscheduled=FAILED)
EQUAL, HIGHER = make_pod("equal", 1, priority=1), make_pod("higher", 1, priority=2)


def after_an_error() -> State:
    state = make_state(make_node("n"), WAITS)
    state.apply([Upserted(FAILS)])
    return state


def sees_the_room(state: State, pod: Pod = EQUAL) -> bool:
    return why(state, pod, "n") == Reason.FITS


def test_others_of_its_priority_do_not_get_its_room() -> None:
    state = after_an_error()
    assert not sees_the_room(state)
    assert sees_the_room(state, HIGHER)
    assert sees_the_room(state, FAILS)
    state.apply([Upserted(replace(FAILS, labels={"changed": "meanwhile"}))])
    assert not sees_the_room(state)


def test_it_takes_its_room_once() -> None:
    state = after_an_error()
    state.apply([Upserted(replace(FAILS, node_name="n"))])
    assert not sees_the_room(state)
    state.apply([Deleted("Pod", FAILS.key)])
    assert sees_the_room(state)


def test_it_is_not_for_ever() -> None:
    state = make_state(make_node("n"), WAITS)
    now = 100.0
    state.reservations.clock = lambda: now
    state.apply([Upserted(FAILS)])
    now += RETRIED_WITHIN - 1
    state.apply([Upserted(replace(FAILS, labels={"changed": "again"}))])
    assert not sees_the_room(state)
    now += 1
    assert sees_the_room(state)


def test_without_a_nomination_nothing_is_kept() -> None:
    state = make_state(make_node("n"), FAILS)
    assert sees_the_room(state)
