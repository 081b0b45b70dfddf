"""Events in any order give the right allocations, also where objects vanish, return or cannot be read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.k8s.objects import Container, Deleted, Listed, Node, PodSpec, Upserted
from extender.protocol.node_names import NodeNames
from packing.model.reasons import Reason
from tests.extender.builders import GPU, make_node, make_pod, make_state, why


def free(state: State, node: str) -> int:
    return int(state.fleet.arrays.free_devices[state.fleet.names.resources[GPU], state.fleet.rows[node]])


def test_bound_pods_are_allocated_and_ended_ones_are_not():
    bound = make_pod("a", 3, node_name="n")
    state = make_state(
        make_node("n"), bound, make_pod("b", 2, node_name="n", phase="Succeeded"), make_pod("c", 4)
    )
    assert free(state, "n") == 5
    state.apply([Upserted(replace(bound, phase="Failed"))])
    assert free(state, "n") == 8
    assert set(state.pods) == {"default/c"}


def test_a_pod_may_come_before_its_node_and_a_node_may_come_back():
    pod = make_pod("a", 3, node_name="n")
    state = make_state(pod)
    state.apply([Upserted(make_node("n"))])
    assert free(state, "n") == 5
    state.apply([Deleted("Node", "n"), Upserted(make_node("other")), Upserted(make_node("n"))])
    assert (free(state, "n"), free(state, "other")) == (5, 8)


def test_a_pod_created_again_under_its_name_replaces_the_old_one():
    state = make_state(make_node("n"), make_pod("a", 3, node_name="n", uid="1"))
    state.apply([Upserted(make_pod("a", 1, node_name="n", uid="2"))])
    assert free(state, "n") == 7
    assert state.pods.by_uid("1") is None
    assert state.pods.by_uid("2").key == "default/a"


def test_a_full_list_removes_what_it_does_not_name():
    state = make_state(make_node("n"), make_node("gone"), make_pod("a", 3, node_name="n"), synced=False)
    assert state.synced == set()
    state.apply([Listed("Node", frozenset({"n"})), Listed("Pod", frozenset())])
    assert state.synced == {"Node", "Pod"}
    assert set(state.fleet.rows) == {"n"}
    assert free(state, "n") == 8


def test_an_overcommitted_node_takes_nothing_until_pods_end():
    pods = [make_pod(name, 6, node_name="n") for name in "ab"]
    state = make_state(make_node("n"), *pods)
    assert state.overcommitted == {"n"}
    assert why(state, make_pod("new"), "n") is Reason.OVERCOMMITTED
    state.apply([Deleted("Pod", "default/a")])
    assert state.overcommitted == frozenset()
    assert why(state, make_pod("new"), "n") is Reason.FITS


def test_a_pod_that_loses_its_node_no_longer_overcommits_it():
    bound = make_pod("a", 9, node_name="n")
    state = make_state(make_node("n"), bound)
    assert state.overcommitted == {"n"}
    state.apply([Upserted(replace(bound, node_name=""))])
    assert state.overcommitted == frozenset()


def test_a_node_that_shrinks_below_its_allocations_is_overcommitted():
    state = make_state(make_node("n"), make_pod("a", 6, node_name="n"))
    state.apply([Upserted(make_node("n", 4))])
    assert state.overcommitted == {"n"}


def test_a_node_that_is_gone_is_not_overcommitted_any_more():
    state = make_state(make_node("n"), make_pod("a", 9, node_name="n"))
    state.apply([Deleted("Node", "n")])
    assert state.overcommitted == frozenset()


def test_an_unreadable_node_takes_nothing_and_heals():
    state = make_state(make_node("n", **{"nvidia.com/gpu": "many"}))
    assert "many" in state.problems["n"]
    assert why(state, make_pod("p"), "n") is Reason.UNREADABLE
    state.apply([Upserted(make_node("n"))])
    assert state.problems == {}
    assert why(state, make_pod("p"), "n") is Reason.FITS


def test_an_unreadable_bound_pod_is_a_problem_and_stops_nothing():
    broken = make_pod("a", node_name="n", spec=PodSpec((Container(requests=((GPU, "-3"),)),)))
    state = make_state(make_node("n"), broken)
    assert "nvidia.com/gpu" in state.problems["default/a"]
    assert free(state, "n") == 8


def test_a_nomination_counts_for_equal_and_lower_priority_only():
    nominated = make_pod("hi", 8, nominated_node="n", priority=10)
    state = make_state(make_node("n"), nominated)
    assert why(state, make_pod("low", priority=9), "n") is Reason.NO_FREE_GPUS
    assert why(state, make_pod("same", priority=10), "n") is Reason.NO_FREE_GPUS
    assert why(state, make_pod("higher", priority=11), "n") is Reason.FITS
    assert why(state, nominated, "n") is Reason.FITS
    state.apply([Upserted(replace(nominated, nominated_node="", node_name="n"))])
    assert why(state, make_pod("higher", priority=11), "n") is Reason.NO_FREE_GPUS
    state.apply([Deleted("Pod", nominated.key)])
    assert why(state, make_pod("low"), "n") is Reason.FITS


def test_heartbeats_do_not_touch_the_fleet():
    state = make_state(make_node("n"))
    before = state.fleet.arrays.generation.copy()
    state.apply([Upserted(replace(make_node("n"), unschedulable=True))])
    np.testing.assert_array_equal(state.fleet.arrays.generation, before)


names = st.sampled_from("abcd")
steps = st.one_of(
    st.builds(lambda n, g: Upserted(make_node(f"n{n}", g)), names, st.integers(0, 8)),
    st.builds(lambda n: Deleted("Node", f"n{n}"), names),
    st.builds(
        lambda p, g, n, uid: Upserted(make_pod(p, g, node_name=f"n{n}" if n else "", uid=f"{p}{uid}")),
        names,
        st.integers(1, 4),
        st.sampled_from(["", *"abcd"]),
        st.integers(0, 1),
    ),
    st.builds(lambda p: Deleted("Pod", f"default/{p}"), names),
    st.builds(lambda p: Upserted(make_pod(p, phase="Succeeded")), names),
)


@given(st.lists(steps, max_size=40))
def test_allocations_are_what_a_recount_says(events):
    state = State(make_state().policy)
    nodes, pods = {}, {}
    for event in events:
        state.apply([event])
        match event:
            case Upserted(obj) if obj.kind == "Node":
                nodes[obj.name] = obj
            case Upserted(obj) if obj.terminated:
                pods.pop(obj.key, None)
            case Upserted(obj):
                pods[obj.key] = obj
            case Deleted(kind, key):
                (nodes if kind == "Node" else pods).pop(key, None)
    assert set(state.fleet.rows) == set(nodes)
    for name, node in nodes.items():
        total = int(node.allocatable[GPU])
        held = sum(dict(request_of(pod).devices)[GPU] for pod in pods.values() if pod.node_name == name)
        if total:
            assert free(state, name) == total - held
            assert (name in state.overcommitted) == (held > total)


@pytest.mark.parametrize("name", ["nowhere", ""])
def test_unknown_names_have_row_minus_one(name):
    assert make_state(make_node("n")).rows(NodeNames.of([name])).tolist() == [-1]


def test_a_pod_that_is_shown_bound_never_counts_twice(caplog: pytest.LogCaptureFixture) -> None:
    pod = make_pod("a", 8)
    state = make_state(make_node("n"), pod)
    state.assume(pod, "n", {}, now=0.0)
    state.apply([Upserted(replace(pod, node_name="n"))])
    assert free(state, "n") == 0
    assert not caplog.records  # "node is over-committed"


def test_a_pod_that_asks_for_all_that_a_node_has_fits_to_the_byte():
    state = make_state(make_node("n", memory="263856108Ki"))
    for memory, reason in (("263856108Ki", Reason.FITS), ("270188654593", Reason.NO_FREE_MEMORY)):
        spec = PodSpec((Container("main", (("cpu", "64"), ("memory", memory), (GPU, "1"))),))
        assert why(state, make_pod("all", spec=spec), "n") is reason


def test_numbers_as_large_as_the_api_lets_through_leave_no_trace():
    node, largest = make_node("n"), str(2**63 - 1)
    requests = (("cpu", "9223372036854775"), ("memory", largest), (GPU, largest))
    spec = PodSpec((Container("a", requests), Container("b", requests)))
    huge = [make_pod(f"huge-{i}", spec=spec, node_name="n") for i in range(3)]
    state, fresh = make_state(node), make_state(node)
    state.apply([Upserted(pod) for pod in huge])
    assert why(state, make_pod("small"), "n") is Reason.OVERCOMMITTED
    state.apply([Deleted("Pod", pod.key) for pod in reversed(huge)])
    for name in (
        "free_cpu",
        "free_memory",
        "cpu",
        "node_memory",
        "free_devices",
        "compute",
        "memory",
        "overcommitted",
    ):
        arrays, expected = getattr(state.fleet.arrays, name), getattr(fresh.fleet.arrays, name)
        np.testing.assert_array_equal(arrays, expected, err_msg=name)


def test_a_nomination_to_a_full_node_does_not_close_it_for_others():
    state = make_state(
        make_node("n", 8, **{"amd.com__gpu": "1"}),
        make_pod("running", 8, node_name="n"),
        make_pod("nominated", 4, nominated_node="n", priority=9),
    )
    assert why(state, make_pod("amd", 1, resource="amd.com/gpu"), "n") is Reason.FITS
    assert why(state, make_pod("other", 0), "n") is Reason.FITS
    assert why(state, make_pod("more", 1), "n") is Reason.NO_FREE_GPUS


def test_a_node_beyond_the_bounds_of_the_fleet_is_unreadable_and_harms_no_other():
    def rogue(number: int) -> Node:
        profiles = {f"nvidia.com__mig-1g.{10 + i}gb": "1" for i in range(50 * number, 50 * number + 50)}
        return make_node(f"rogue-{number}", 0, **profiles)

    held = make_pod("a", 3, node_name="rogue-2")
    state = make_state(make_node("n"), *map(rogue, range(3)), held)
    assert "different resources" in state.problems["rogue-2"]
    assert why(state, make_pod("b", 1), "rogue-2") is Reason.UNREADABLE
    assert why(state, make_pod("b", 8), "n") is Reason.FITS
    state.apply([Deleted("Node", "rogue-1"), Upserted(make_node("rogue-2", 8))])
    assert "rogue-2" not in state.problems
    assert free(state, "rogue-2") == 5
