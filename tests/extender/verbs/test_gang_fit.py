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

from extender.cluster import gang_domains, gang_placement
from extender.cluster.factory import state_of
from extender.cluster.gang_placement import place_together, waiting_members
from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.explain.pod import explain
from extender.k8s.objects import Container, Deleted, Node, Pod, PodClaim, PodSpec, Upserted
from extender.k8s.resource_claims import DeviceClass
from extender.protocol.codec import FilterArgs
from extender.protocol.node_names import NodeNames
from extender.queues.rights import WhyNot
from extender.verbs import gang_fit, gang_room
from extender.verbs.filter import filter_nodes
from packing.fleet.feasibility import reasons_for
from packing.fleet.placement import allocation_of, freest_gpus
from packing.model.reasons import Reason
from tests.examples import examples
from tests.extender.builders import GPU, make_node, make_pod, make_settings, make_state


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


def test_a_gang_may_get_devices_as_soon_as_a_class_provides_its_resource() -> None:
    pods = gang(3)
    state = checked_state(make_node("a"), *pods)
    assert answer(state, pods[0]) == REFUSED
    state.apply([Upserted(DeviceClass("gpu.nvidia.com", extended_resource=GPU))])
    assert answer(state, pods[0])[0] == ["a"]


def test_the_check_can_be_switched_off() -> None:
    pods = gang(3)
    state = make_state(make_node("a"), *pods)
    assert answer(state, pods[0])[0] == ["a"]


def test_once_a_member_is_bound_the_others_are_placed_where_they_fit() -> None:
    pods = gang(3)
    state = checked_state(make_node("a"), make_node("b"), *pods)
    state.apply([Upserted(replace(pods[0], node_name="a"))])
    assert answer(state, pods[1])[0] == ["b"]


def test_a_member_that_bind_assumes_counts_as_bound() -> None:
    pods = gang(3)
    state = checked_state(make_node("a"), make_node("b"), *pods)
    state.assume(pods[0], "a", {}, now=0.0)
    assert answer(state, pods[1])[0] == ["b"]


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


def test_members_that_do_not_exist_yet_count_as_copies() -> None:
    first = gang(1, minimum=3)[0]
    assert answer(checked_state(make_node("a"), make_node("b"), first), first) == REFUSED
    assert answer(checked_state(*(make_node(n) for n in "abc"), first), first)[0] == ["a", "b", "c"]


def test_a_leader_is_not_taken_for_its_workers() -> None:
    prefix = "leaderworkerset.sigs.k8s.io/"
    leader = make_pod(
        "l",
        8,
        labels={f"{prefix}name": "v", f"{prefix}group-index": "0", f"{prefix}worker-index": "0"},
        annotations={f"{prefix}size": "5"},
    )
    assert answer(checked_state(make_node("a"), leader), leader)[0] == ["a"]


def test_members_go_only_where_kube_scheduler_lets_them() -> None:
    pods = gang(2)
    state = checked_state(make_node("a"), replace(make_node("b"), unschedulable=True), *pods)
    assert answer(state, pods[0])[1] == [Reason.GANG_DOES_NOT_FIT.text]
    pinned = [replace(p, spec=replace(p.spec, node_selector=(("zone", "1"),))) for p in pods]
    nodes = make_node("a", labels={"zone": "1"}), make_node("b", labels={"zone": "2"})
    assert answer(checked_state(*nodes, *pinned), pinned[0])[1] == [Reason.GANG_DOES_NOT_FIT.text]


def test_a_member_that_requests_nothing_and_may_run_nowhere_keeps_its_gang_out() -> None:
    worker, head = gang(2)
    nothing = PodSpec((Container("main"),), node_selector=(("pool", "none"),))
    head = replace(head, spec=nothing)
    state = checked_state(make_node("a"), worker, head)
    assert answer(state, worker) == REFUSED


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


def test_a_nomination_neither_places_a_gang_nor_counts_against_it() -> None:
    pods = gang(2)
    nominated = replace(pods[0], nominated_node="a")
    state = checked_state(make_node("a"), nominated, pods[1])
    assert answer(state, nominated) == REFUSED
    state.apply([Upserted(make_node("b"))])
    assert answer(state, nominated)[0] == ["a", "b"]
    assert answer(state, pods[1])[0] == ["b"]


def test_room_of_pods_that_terminate_counts() -> None:
    """Whoever stopped them: Kueue's priorities are its own."""
    pods = gang(2)
    stopped = make_pod("stopped", 8, node_name="b", priority=1000, deleting=True)
    assert answer(checked_state(make_node("a"), make_node("b"), stopped, *pods), pods[0])[0] == ["a"]


def with_queues(queues: dict[str, Any], *objects: Node | Pod) -> State:
    state = state_of(make_settings(queues=queues))
    state.apply([Upserted(one) for one in objects])
    return state


@pytest.mark.parametrize(("hours", "fits"), [(2, ["a"]), (0.5, [])])
def test_room_that_the_evictor_may_take_over_from_equals_counts(hours: float, fits: list[str]) -> None:
    queue = {"stowage.dev/queue": "q"}
    late = make_pod("late", 8, node_name="b", labels=queue, started=time.time() - hours * 3600)
    pods = [replace(pod, labels=pod.labels | queue) for pod in gang(2)]
    state = with_queues({"q": {"max_duration": 3600.0}}, make_node("a"), make_node("b"), late, *pods)
    assert answer(state, pods[0])[0] == fits


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


def test_members_that_were_nominated_may_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the search finds no way for all of them, but the evictor has found one."""
    pods = gang(2)
    placed: list[int] = []

    def only_one(*args: Any, **keys: Any) -> Any:
        placed.append(sum(members.count for members in args[3]))
        return place_together(*args, **keys) if placed[-1] == 1 else None

    monkeypatch.setattr(gang_domains, "place_together", only_one)
    state = checked_state(make_node("a"), make_node("b"), replace(pods[0], nominated_node="a"), pods[1])
    assert answer(state, pods[1])[0] == ["b"]
    assert placed == [2, 1]


def test_members_with_scheduling_gates_are_not_placed() -> None:
    nodes = [make_node(name) for name in "abc"]
    pods = gang(3)
    gated = replace(pods[2], gates=("example.com/gate",))
    state = checked_state(*nodes, *pods[:2], gated)
    assert answer(state, gated)[0] == ["a", "b", "c"]  # as soon as its own gate is lifted
    assert answer(state, pods[0])[1] == [Reason.GANG_DOES_NOT_FIT.text]
    assert answer(checked_state(*nodes, pods[0], gated), pods[0])[0] == []  # whatever is still to come
    assert answer(checked_state(*nodes, *pods, replace(gated, name="spare")), pods[0])[0] == ["a", "b", "c"]


def test_members_that_have_succeeded_need_no_room() -> None:
    pods = gang(3)
    ended = [replace(pod, node_name="gone", phase="Succeeded") for pod in pods[:2]]
    assert answer(checked_state(make_node("a"), *ended, pods[2]), pods[2])[0] == ["a"]
    failed = replace(ended[1], phase="Failed")
    assert answer(checked_state(make_node("a"), ended[0], failed, pods[2]), pods[2]) == REFUSED


def test_a_small_member_is_not_refused_for_what_a_large_one_was_told() -> None:
    small, large = gang(3, gpus=1, minimum=2), gang(1, minimum=2)[0]
    large = replace(large, name="large", uid="uid-large")
    state = checked_state(make_node("a"), *small, large)
    assert answer(state, large) == REFUSED
    assert answer(state, small[0])[0] == ["a"]


def test_pods_where_no_member_can_run_are_not_counted_as_victims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_room, "GANG_VICTIMS", 1)
    pods = gang(2, priority=10)
    cpu_only = [make_pod(f"c{number}", 0, node_name="cpu", started=1.0) for number in range(3)]
    low = make_pod("low", 1, node_name="a", started=1.0)
    state = checked_state(make_node("a"), make_node("cpu", 0), *cpu_only, low, *pods)
    assert not gang_fit.gang_may_fit(state, pods[0], request_of(pods[0]))


def test_room_of_nominated_pods_is_not_free() -> None:
    pods = gang(2)
    other = make_pod("other", 8, nominated_node="b", priority=5)
    assert answer(checked_state(make_node("a"), make_node("b"), other, *pods), pods[0])[0] == []


def test_a_gang_with_claims_is_not_checked() -> None:
    pods = [replace(p, spec=replace(p.spec, claims=(PodClaim("gpu", template="t"),))) for p in gang(3)]
    assert answer(checked_state(make_node("a"), *pods), pods[0])[0] == ["a"]


def test_a_member_whose_request_cannot_be_read_does_not_stop_the_others() -> None:
    pods = gang(2, minimum=1)
    broken = make_pod("broken", 1, labels=pods[0].labels, annotations={"stowage.dev/gpu-compute": "1000%"})
    assert answer(checked_state(make_node("a"), broken, *pods), pods[0])[0] == ["a"]


def test_a_pod_that_the_watch_has_not_shown_is_checked() -> None:
    first, second = gang(2)
    state = checked_state(make_node("a"), first)
    assert answer(state, second) == REFUSED


def test_members_ask_once_per_change_of_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def counted(*args: Any, **keys: Any) -> Any:
        nonlocal calls
        calls += 1
        return place_together(*args, **keys)

    monkeypatch.setattr(gang_domains, "place_together", counted)
    monkeypatch.setattr("extender.verbs.gang_fit.time.time", lambda: 1000.0)
    pods = gang(3)
    state = checked_state(make_node("a"), make_node("b"), *pods)
    for pod in pods * 3:
        assert answer(state, pod) == REFUSED
    assert calls == 1
    state.apply([Upserted(pods[1]), Upserted(make_node("a")), Deleted("Pod", "default/nobody")])
    assert answer(state, pods[0]) == REFUSED
    assert calls == 1  # nothing has changed
    for change in (
        Upserted(make_pod("p", 1, node_name="b")),
        Upserted(make_pod("q", 1, nominated_node="b")),
        Upserted(make_node("a", labels={"zone": "x"})),
        Upserted(replace(pods[1], priority_class="x")),
        Deleted("Pod", "default/p"),
        Deleted("Pod", "default/q"),
    ):
        before = calls
        state.apply([change])
        assert answer(state, pods[0])[0] == []
        assert calls > before


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
