"""Events in any order give the right allocations, also where objects vanish, return or cannot be read."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.k8s.objects import Container, Deleted, Node, PodSpec, Upserted
from packing.model.reasons import Reason
from tests.extender.builders import GPU, make_node, make_pod, make_state, why


def free(state: State, node: str) -> int:
    return int(state.fleet.arrays.free_devices[state.fleet.names.resources[GPU], state.fleet.rows[node]])


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
