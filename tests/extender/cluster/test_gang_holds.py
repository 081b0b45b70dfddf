"""Room for the members of a gang that are still missing, with a clock of the test."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from extender.cluster import gang_placement
from extender.cluster.allocations import Placement
from extender.cluster.gang_placement import GangHolds, WaitingMembers
from extender.cluster.state import State
from extender.explain.pod import explain
from extender.k8s.objects import Deleted, Node, Owner, Pod, PodGroup, Upserted
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


def test_the_room_on_a_deleted_node_is_held_elsewhere() -> None:
    pods = gang(2)
    state, clock = holding_state(*NODES, *pods)
    bind(state, pods[0], "a")
    (free,) = free_for(state)
    (held,) = {"b", "c"} - {free}
    clock.now += 2
    state.apply([Deleted("Node", held)])
    assert free_for(state) == []  # the other node is held now
    assert free_for(state, pods[1]) == [free]


def test_nothing_is_held_for_members_that_have_succeeded() -> None:
    pods = gang(3)
    state, _ = holding_state(*NODES, *pods)
    state.apply([Upserted(replace(pods[0], node_name="a", phase="Succeeded"))])
    bind(state, pods[1], "b")
    assert len(free_for(state)) == 1  # the room of the third is held
    state.apply([Upserted(replace(pods[1], node_name="b", phase="Succeeded"))])
    bind(state, pods[2], "b")
    assert state.reservations.is_empty


def test_a_member_that_goes_elsewhere_leaves_room_for_the_last_one() -> None:
    pods = gang(3)
    state, _ = holding_state(*NODES, make_node("d"), *pods)
    bind(state, pods[0], "a")
    [free] = free_for(state)
    held = {"b", "c", "d"} - {free}
    bind(state, pods[1], min(held))
    assert set(free_for(state)) == {free}  # the room that is left to hold is not where the member went
    state, _ = holding_state(*NODES, make_node("d"), *pods)
    bind(state, pods[0], "a")
    bind(state, pods[1], free)
    assert len(free_for(state)) == 1


def test_the_room_of_a_member_that_is_deleted_is_free() -> None:
    pods = gang(2)
    state, clock = holding_state(*NODES, *pods, make_pod("low", 1, node_name="c"))
    bind(state, pods[0], "a")
    assert free_for(state) == ["c"]
    state.apply([Deleted("Pod", "default/w1")])
    assert free_for(state) == ["b", "c"]
    state.apply([Upserted(pods[1])])
    assert free_for(state) == ["b", "c"]
    clock.now += 1  # at most one search for room in a second
    state.apply([Upserted(replace(pods[1], priority_class="x"))])
    assert free_for(state) == ["c"]


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


def test_nothing_is_held_for_members_that_do_not_fit_or_do_not_exist() -> None:
    pods = gang(4)
    state, _ = holding_state(*NODES, *pods)
    bind(state, pods[0], "a")
    assert free_for(state) == ["b", "c"]
    text = "no room is held for the others: they do not exist, are too many, or do not fit together"
    assert text in explain(state, pods[1]).gang
    assert state.reservations.is_empty
    state, _ = holding_state(*NODES, pods[0])
    bind(state, pods[0], "a")
    assert free_for(state) == ["b", "c"]


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


def test_the_room_is_held_for_the_master_not_for_the_smallest_member() -> None:
    job = Owner("PyTorchJob", "el", "uid-el")
    names = {"training.kubeflow.org/job-name": "el"}
    worker, spare, master = (
        make_pod(name, gpus, owner=job, labels=names | {"training.kubeflow.org/replica-type": role})
        for name, gpus, role in (("w0", 1, "worker"), ("w1", 1, "worker"), ("m", 8, "master"))
    )
    state, _ = holding_state(*NODES[:2], worker, spare, master)
    state.apply([Upserted(PodGroup("PyTorchJob", "default", "el", 2))])
    bind(state, worker, "a")
    assert free_for(state) == ["a"]
    assert free_for(state, master) == ["b"]


def test_nothing_is_held_for_members_of_another_scheduler() -> None:
    pods = gang(3)
    state, _ = holding_state(*NODES, *pods[:2], replace(pods[2], scheduler_name="nobody"))
    bind(state, pods[0], "a")
    assert len(free_for(state)) == 1  # the room of the second is held
    bind(state, pods[1], "b")
    assert free_for(state) == ["c"]


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


def test_events_of_other_pods_do_not_look_at_all_rooms() -> None:
    """There may be a thousand gangs with rooms, and a thousand events per second."""
    asked_about: list[str] = []
    pods = gang(3)
    state, clock = holding_state(*NODES, *pods)

    def has_node(name: str) -> bool:
        asked_about.append(name)
        return name in state.fleet.rows

    def place(members: Sequence[WaitingMembers], own: object) -> list[Placement]:
        return [Placement(node, member.request) for member in members for node in "bc"]

    state.gang_holds = GangHolds(state.reservations, state.gangs, state.pods.is_bound, has_node, place)
    state.gang_holds.seconds = SECONDS
    bind(state, pods[0], "a")
    assert free_for(state) == []
    for number in range(100):
        state.apply([Upserted(make_pod(f"other{number}", 1))])
    assert len(asked_about) <= 2 * len("bc")
    clock.now += 2
    state.apply([Deleted("Node", "b")])
    assert "b" in asked_about[-2:]


def test_a_nominated_member_has_its_room_already() -> None:
    pods = gang(2)
    state, _ = holding_state(*NODES, pods[0], replace(pods[1], nominated_node="b"))
    bind(state, pods[0], "a")
    assert free_for(state) == ["c"]


def test_nothing_is_held_if_the_setting_is_off_or_the_gang_declares_no_minimum() -> None:
    pods = gang(3)
    state = make_state(*NODES, *pods)
    bind(state, pods[0], "a")
    assert free_for(state) == ["b", "c"]
    jobset = [replace(pod, labels={"jobset.sigs.k8s.io/jobset-name": "j"}) for pod in pods]
    state, _ = holding_state(*NODES, *jobset)
    bind(state, jobset[0], "a")
    assert free_for(state) == ["b", "c"]


def test_a_node_with_held_room_may_go() -> None:
    pods = gang(2)
    state, _ = holding_state(*NODES[:2], *pods)
    bind(state, pods[0], "a")
    state.apply([Deleted("Node", "b")])
    assert free_for(state) == []
    state.apply([Upserted(NODES[1])])
    assert free_for(state) == []


def test_a_member_that_bind_assumes_has_its_room() -> None:
    pods = gang(2)
    state, _ = holding_state(*NODES, *pods)
    state.assume(pods[0], "a", {}, now=0.0)
    bind(state, pods[1], "b")
    assert free_for(state) == ["c"]
    assert state.reservations.gang_places(0, "") == []
    bind(state, pods[0], "a")
    assert state.reservations.is_empty


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
