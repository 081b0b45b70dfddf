"""filter refuses the first member of a gang while the gang does not fit as a whole, and no other pod."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.cluster import gang_placement
from extender.cluster.factory import state_of
from extender.cluster.gang_placement import place_together, waiting_members
from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.explain.pod import explain
from extender.k8s.objects import Deleted, Node, Pod, PodClaim, Upserted
from extender.protocol.codec import FilterArgs
from extender.protocol.node_names import NodeNames
from extender.queues.rights import WhyNot
from extender.verbs import gang_room
from extender.verbs.filter import filter_nodes
from packing.fleet.feasibility import reasons_for
from packing.fleet.placement import allocation_of, freest_gpus
from packing.model.reasons import Reason
from tests.examples import examples
from tests.extender.builders import make_node, make_pod, make_settings, make_state


def gang(count: int, gpus: int = 8, minimum: int | None = None, **fields: Any) -> list[Pod]:
    labels = {"stowage.dev/gang": "g", "stowage.dev/gang-min": str(minimum or count)}
    return [make_pod(f"w{i}", gpus, labels=labels, **fields) for i in range(count)]


def checked_state(*objects: Node | Pod) -> State:
    state = make_state(*objects)
    state.gang_check = True
    return state


def answer(state: State, pod: Pod) -> tuple[list[str], list[str]]:
    """The nodes that fit, and the reasons of the others."""
    names = NodeNames.of(sorted(state.nodes))
    result, _ = filter_nodes(state, FilterArgs(pod, names), make_settings())
    return list(result.names), [*result.failed, *result.unresolvable]


REFUSED = ([], [Reason.GANG_DOES_NOT_FIT.text])


def test_no_member_is_placed_while_the_gang_does_not_fit() -> None:
    pods = gang(3)
    state = checked_state(make_node("a"), make_node("b"), *pods)
    assert [answer(state, pod) for pod in pods] == [REFUSED] * 3
    state.apply([Upserted(make_node("c"))])
    assert all(answer(state, pod)[0] == ["a", "b", "c"] for pod in pods)


def test_the_check_can_be_switched_off() -> None:
    pods = gang(3)
    state = make_state(make_node("a"), *pods)
    assert answer(state, pods[0])[0] == ["a"]


@pytest.mark.parametrize("spot", ["ignore", "prefer", "require"])
def test_a_node_that_filter_refuses_to_a_member_has_no_room_for_its_gang(
    spot: Literal["ignore", "prefer", "require"],
) -> None:
    pods = gang(2)
    state = checked_state(
        make_node("a"), make_node("b", labels={"karpenter.sh/capacity-type": "spot"}), *pods
    )
    state.spot = spot
    fits, reasons = answer(state, pods[0])
    said = explain(state, pods[0])
    if spot == "require":
        assert not fits
        assert reasons == [Reason.GANG_DOES_NOT_FIT.text, Reason.ON_SPOT.text]
        assert said.verdict.why.startswith(Reason.GANG_DOES_NOT_FIT.text)
    else:
        assert fits == ["a", "b"]
    assert said.fits == len(fits)


def test_only_the_minimum_must_fit() -> None:
    pods = gang(3, minimum=2)
    assert answer(checked_state(make_node("a"), make_node("b"), *pods), pods[2])[0] == ["a", "b"]


def test_a_leader_is_not_taken_for_its_workers() -> None:
    prefix = "leaderworkerset.sigs.k8s.io/"
    leader = make_pod(
        "l",
        8,
        labels={f"{prefix}name": "v", f"{prefix}group-index": "0", f"{prefix}worker-index": "0"},
        annotations={f"{prefix}size": "5"},
    )
    assert answer(checked_state(make_node("a"), leader), leader)[0] == ["a"]


def test_what_the_gang_may_evict_counts_as_free() -> None:
    pods = gang(2, priority=10)
    low = make_pod("low", 1, node_name="b", started=1.0)
    assert answer(checked_state(make_node("a"), make_node("b"), low, *pods), pods[0])[0] == ["a"]
    polite = [replace(pod, never_preempts=True) for pod in pods]
    state = checked_state(make_node("a"), make_node("b"), low, *polite)
    assert Reason.GANG_DOES_NOT_FIT.text in answer(state, polite[0])[1]
    high = replace(low, priority=10)
    state = checked_state(make_node("a"), make_node("b"), high, *pods)
    assert Reason.GANG_DOES_NOT_FIT.text in answer(state, pods[0])[1]
    assert answer(checked_state(make_node("a"), low, *pods), pods[0]) == REFUSED  # not even then


def with_queues(queues: dict[str, Any], *objects: Node | Pod) -> State:
    state = state_of(make_settings(queues=queues))
    state.apply([Upserted(one) for one in objects])
    return state


def test_a_queue_that_may_lose_no_more_pods_for_a_while_counts_as_evictable() -> None:
    """The first member does not wait for that with the room that it got by evictions."""
    first, second = gang(2, priority=10)
    queue = {"stowage.dev/queue": "q"}
    victims = [make_pod(f"v{node}", 8, node_name=node, labels=queue, started=1.0) for node in "ab"]
    nodes = make_node("a"), make_node("b")
    state = with_queues({"q": {"evictions_per_hour": 1}}, *nodes, *victims, first, second)
    gone = replace(victims[0], deleting=True, disruption="PreemptionByScheduler", disrupted=time.time())
    state.apply([Upserted(gone), Deleted("Pod", gone.key), Upserted(replace(first, nominated_node="a"))])
    assert state.rules_for(second, time.time()).why_not([victims[1]]) == [WhyNot.HOURLY_BOUND]
    assert answer(state, state.pods[first.key])[0] == ["a"]


def test_a_gang_with_claims_is_not_checked() -> None:
    pods = [replace(p, spec=replace(p.spec, claims=(PodClaim("gpu", template="t"),))) for p in gang(3)]
    assert answer(checked_state(make_node("a"), *pods), pods[0])[0] == ["a"]


def test_a_gang_beyond_the_limits_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    unlike = [replace(pod, spec=make_pod("x", 8, cpu=str(i + 1)).spec) for i, pod in enumerate(gang(4))]
    assert answer(checked_state(make_node("a"), make_node("b"), *unlike), unlike[0]) == REFUSED
    monkeypatch.setattr(gang_placement, "GANG_PLACED", 1)
    assert answer(checked_state(make_node("a"), make_node("b"), *unlike), unlike[0])[0] == ["a", "b"]
    monkeypatch.setattr(gang_room, "GANG_READ", 1)
    assert answer(checked_state(make_node("a"), make_node("b"), *unlike), unlike[0])[0] == ["a", "b"]
    many = gang(1, minimum=10**8)[0]
    assert answer(checked_state(make_node("a"), many), many) == REFUSED
    monkeypatch.setattr(gang_room, "GANG_VICTIMS", 2)
    pods = gang(3, priority=10)
    low = [make_pod(f"low{i}", 1, node_name="b", started=1.0) for i in range(3)]
    nodes = make_node("a"), make_node("b")
    assert answer(checked_state(*nodes, *low[:2], *pods), pods[0])[0] == []
    assert answer(checked_state(*nodes, *low, *pods), pods[0])[0] == ["a"]


MEMBERS = st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["", "x"])), min_size=1, max_size=4)
NODES = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["x", "y"])), min_size=1, max_size=3)


def brute_force(state: State, pods: Sequence[Pod]) -> bool:
    """Whether any assignment of the pods to the nodes fits."""
    for rows in product(state.fleet.rows.values(), repeat=len(pods)):
        taken = []
        for pod, row in zip(pods, rows, strict=True):
            request, node = request_of(pod), state.nodes[state.fleet.specs[row].name]
            if any(node.labels.get(k) != v for k, v in pod.spec.node_selector):
                break
            if reasons_for(state.fleet, request)[row] != Reason.FITS:
                break
            taken.append(allocation_of(state.fleet, row, request, freest_gpus(state.fleet, row, request)))
            state.fleet.take(taken[-1])
        for allocation in taken:
            state.fleet.give_back(allocation)
        if len(taken) == len(pods):
            return True
    return False


def member(i: int, gpus: int, zone: str) -> Pod:
    pod = make_pod(f"m{i}", gpus)
    return replace(pod, spec=replace(pod.spec, node_selector=(("zone", zone),) if zone else ()))


@settings(max_examples=examples(150))
@given(MEMBERS, NODES)
def test_places_are_real_and_no_way_is_missed_for_equal_members(
    asked: list[tuple[int, str]], there: list[tuple[int, str]]
) -> None:
    nodes = [make_node(f"n{i}", gpus, labels={"zone": zone}) for i, (gpus, zone) in enumerate(there)]
    state = make_state(*nodes)
    before = state.fleet.arrays.free_devices.copy()
    pods = [member(i, gpus, zone) for i, (gpus, zone) in enumerate(asked)]
    places = place_together(state.fleet, state.policy, state.nodes, waiting_members(pods, 9))
    assert (state.fleet.arrays.free_devices == before).all()
    if places is not None:
        assert len(places) == len(pods)
        assert brute_force(state, pods)
        room = {node.name: gpus for node, (gpus, _) in zip(nodes, there, strict=True)}
        for place in places:
            room[place.node] -= place.request.gpus
        assert min(room.values()) >= 0
    elif len(set(asked)) == 1:
        assert not brute_force(state, pods)


def test_unlike_members_get_a_second_order() -> None:
    # The largest alone fits n0 best, where the other one must go.
    nodes = [make_node("n0", 2, labels={"zone": "x"}), make_node("n1", 3, labels={"zone": "y"})]
    state, members = make_state(*nodes), waiting_members([member(0, 2, ""), member(1, 1, "x")], 2)
    places = place_together(state.fleet, state.policy, state.nodes, members)
    assert places is not None
    assert {place.request.gpus: place.node for place in places} == {1: "n0", 2: "n1"}


def test_kinds_of_members_beyond_those_that_are_placed_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pods = [replace(pod, spec=make_pod("", cpu=f"{i + 1}m").spec) for i, pod in enumerate(gang(250))]
    state, asked = checked_state(*(make_node(f"n{i}") for i in range(40)), *pods), 0
    codes_for = gang_room.codes_of_form

    def counted(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        return codes_for(*args)

    monkeypatch.setattr(gang_room, "codes_of_form", counted)
    assert len(answer(state, pods[0])[0]) == 40
    assert asked <= gang_placement.GANG_PLACED + 1
