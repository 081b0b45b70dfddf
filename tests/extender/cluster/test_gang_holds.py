"""Room for the members of a gang that are still missing, with a clock of the test."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from extender.cluster import gang_placement
from extender.cluster.state import State
from extender.explain.pod import explain
from extender.k8s.objects import Deleted, Node, Pod, Upserted
from packing.model.reasons import Reason
from tests.examples import examples
from tests.extender.builders import make_node, make_pod, make_state, why

SECONDS = 60.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def gang(count: int, gpus: int = 8, **fields: Any) -> list[Pod]:
    labels = {"stowage.dev/gang": "g", "stowage.dev/gang-min": str(count)}
    return [make_pod(f"w{i}", gpus, labels=labels, **fields) for i in range(count)]


def holding_state(*objects: Node | Pod) -> tuple[State, Clock]:
    state, clock = make_state(*objects), Clock()
    state.gang_holds.seconds, state.reservations.clock = SECONDS, clock
    return state, clock


def bind(state: State, pod: Pod, node: str) -> None:
    state.apply([Upserted(replace(pod, node_name=node))])


OTHER = make_pod("other", 1)
NODES = [make_node(name) for name in "abc"]


def free_for(state: State, pod: Pod = OTHER) -> list[str]:
    return [name for name in sorted(state.nodes) if why(state, pod, name) == Reason.FITS]


def test_others_do_not_see_the_room_of_missing_members() -> None:
    pods = gang(3)
    state, _ = holding_state(*NODES, *pods)
    assert free_for(state) == ["a", "b", "c"]  # nothing is held before a member is bound
    bind(state, pods[0], "a")
    assert free_for(state) == []
    assert free_for(state, pods[1]) == ["b", "c"]  # its own gang sees it
    assert free_for(state, make_pod("high", 1, priority=1)) == ["b", "c"]
    bind(state, pods[1], "b")
    assert free_for(state) == []
    bind(state, pods[2], "c")
    assert state.reservations.is_empty


def test_the_room_is_given_up_after_the_time(caplog: pytest.LogCaptureFixture) -> None:
    pods = gang(3)
    state, clock = holding_state(*NODES, *pods)
    bind(state, pods[0], "a")
    clock.now += SECONDS - 1
    assert free_for(state) == []
    assert "room for 2 more is held for 1 s" in explain(state, pods[1]).gang
    clock.now += 1
    assert free_for(state) == ["b", "c"]
    with caplog.at_level(logging.WARNING):
        state.reservations.expire()
        state.reservations.expire()
    assert caplog.text.count("stowage default/g: not complete after 60 s") == 1
    assert state.reservations.is_empty  # from here on it costs no other pod any time
    assert "no longer held: they were not bound within 60 s" in explain(state, pods[1]).gang


def test_no_second_time_before_the_gang_starts_again() -> None:
    pods = gang(3)
    state, clock = holding_state(*NODES, *pods)
    bind(state, pods[0], "a")
    clock.now += SECONDS
    bind(state, pods[1], "b")
    assert free_for(state) == ["c"]
    state.apply([Upserted(pod) for pod in pods])  # created again
    bind(state, pods[0], "a")
    assert free_for(state) == []


def test_all_gangs_together_hold_a_limited_number_of_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_placement, "GANG_HELD", 2)
    pods = gang(4, gpus=1)
    state, clock = holding_state(*NODES, *pods)
    bind(state, pods[0], "a")
    assert len(state.reservations.gang_places(0, "")) == 2  # of three
    second = [replace(pod, name=f"v{pod.name}", uid=pod.name) for pod in gang(2, gpus=1, priority=1)]
    state.apply([Upserted(pod) for pod in second])
    bind(state, second[0], "b")
    assert len(state.reservations.gang_places(0, "")) == 2
    clock.now += 1
    bind(state, pods[1], "a")
    bind(state, pods[2], "a")
    assert len(state.reservations.gang_places(0, "")) == 1


def test_a_namespace_gives_up_places_that_others_want(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_placement, "GANG_HELD", 6)
    state, _ = holding_state(*NODES, make_node("d"))

    def start(namespace: str, number: int) -> None:
        labels = {"stowage.dev/gang": f"g{number}", "stowage.dev/gang-min": "4"}
        pods = [make_pod(f"{namespace}{number}-{i}", labels=labels) for i in range(4)]
        pods = [replace(pod, namespace=namespace) for pod in pods]
        state.apply([Upserted(pod) for pod in pods])
        bind(state, pods[0], "a")

    def places() -> Counter[str]:
        rooms = state.reservations.gangs.values()
        return Counter(room.namespace for room in rooms for _ in room.places)

    for number in range(3):
        start("x", number)
    assert places() == {"x": 6}
    start("y", 0)
    assert places() == {"x": 3, "y": 3}
    start("y", 1)
    start("x", 3)
    assert places() == {"x": 3, "y": 3}


def test_the_time_of_a_lost_member_begins_when_there_is_room_again() -> None:
    pods, busy = gang(3), make_pod("busy", 8, node_name="d")
    state, clock = holding_state(*NODES, make_node("d"), busy, *pods)
    for pod, node in zip(pods, "abc", strict=True):
        bind(state, pod, node)
    state.apply([Deleted("Node", "c"), Deleted("Pod", pods[2].key), Upserted(pods[2])])
    clock.now += 10 * SECONDS
    assert state.reservations.gang_places(0, "") == []
    state.apply([Deleted("Pod", busy.key)])
    assert free_for(state) == []  # no other pod takes what has become free
    clock.now += SECONDS - 1
    assert free_for(state) == []
    clock.now += 1
    assert free_for(state) == ["d"]


def test_a_member_that_comes_right_after_a_search_gets_room_a_second_later() -> None:
    pods = gang(3)
    state, clock = holding_state(*NODES, *pods[:2])
    bind(state, pods[0], "a")
    state.apply([Upserted(pods[2])])
    clock.now += 1
    state.apply([])
    assert free_for(state) == []


class Holds(RuleBasedStateMachine):
    """Members of two gangs come, are bound and go, on nodes that are large enough or not."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.clock = holding_state(*(make_node(name, 4) for name in "abcd"))

    @rule(
        name=st.sampled_from(["p", "q", "r", "s"]),
        of=st.sampled_from("gh"),
        gpus=st.integers(1, 3),
        node=st.sampled_from(["", "", "a", "b"]),
        minimum=st.integers(2, 4),
        priority=st.sampled_from([0, 1]),
    )
    def put(self, name: str, of: str, gpus: int, node: str, minimum: int, priority: int) -> None:
        labels = {"stowage.dev/gang": of, "stowage.dev/gang-min": str(minimum)}
        pod = make_pod(name + of, gpus, labels=labels, node_name=node, priority=priority)
        self.state.apply([Upserted(pod)])

    @rule(name=st.sampled_from(["p", "q", "r", "s"]), of=st.sampled_from("gh"))
    def delete(self, name: str, of: str) -> None:
        self.state.apply([Deleted("Pod", f"default/{name}{of}")])

    @rule(seconds=st.sampled_from([1.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def only_incomplete_gangs_hold_room_and_only_in_time(self) -> None:
        state = self.state
        for key, room in state.reservations.gangs.items():
            gang = state.gangs.gang(key)
            assert gang is not None
            bound = [pod for pod in state.gangs.members(key) if pod.node_name]
            assert 0 < len(bound) < gang.together
            assert len(room.places) <= gang.together - len(bound)
            if self.clock.now >= room.expires:
                assert not any(p in room.places for p in state.reservations.gang_places(-1, ""))
            assert not any(p in room.places for p in state.reservations.gang_places(2, ""))

    @invariant()
    def the_fleet_is_as_without_holds(self) -> None:
        bound = [pod for pod in self.state.pods.values() if pod.node_name]
        plain = make_state(*(make_node(name, 4) for name in "abcd"), *bound)
        free = self.state.fleet.arrays.free_devices[:, :4]
        assert sorted(free[0].tolist()) == sorted(plain.fleet.arrays.free_devices[0, :4].tolist())


Holds.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=15)
TestHolds = Holds.TestCase
