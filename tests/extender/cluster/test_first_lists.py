"""The first lists take all pods of a node in one step, with the result of one after the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.cluster.state import State
from extender.k8s.objects import Deleted, Event, Listed, Node, Pod, Upserted
from packing.policies.registry import POLICIES
from tests.extender.builders import GPU, make_node, make_pod
from tests.packing.fleet.builders import arrays_of

NAMES = ("a", "b", "c")
COMPUTE, INDICES = "stowage.dev/gpu-compute", "stowage.dev/gpu-indices"
SHARED = {"stowage.dev/gpu-sharing": "true"}
MIG = {"nvidia.com/mig-1g.10gb": "7", "nvidia.com/mig-3g.40gb": "2"}
nodes = st.builds(
    make_node,
    st.sampled_from(NAMES),
    st.integers(0, 8),
    labels=st.sampled_from([{}, SHARED, {"nvlink.feature.node.kubernetes.io/islands": "0-3_4-7"}]),
).flatmap(lambda node: st.sampled_from([node, replace(node, allocatable={**node.allocatable, **MIG})]))

devices = st.lists(st.tuples(st.just(GPU), st.sampled_from("xyz")), max_size=3).map(tuple)
annotations = st.sampled_from(
    [
        {},
        {COMPUTE: "300m", INDICES: "0"},
        {COMPUTE: "700m", INDICES: "1"},
        {COMPUTE: "500m"},
        {COMPUTE: "a lot", INDICES: "0"},
        {"stowage.dev/nvlink": "required"},
    ]
)


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    asks = draw(annotations)
    gpus = 0 if COMPUTE in asks else draw(st.integers(0, 5))
    return make_pod(
        draw(st.sampled_from("pqrstuvw")),
        gpus,
        resource=draw(st.sampled_from([GPU, GPU, "nvidia.com/mig-1g.10gb"])),
        node_name=draw(st.sampled_from(["", *NAMES, "gone"])),
        nominated_node=draw(st.sampled_from(["", "a"])),
        phase=draw(st.sampled_from(["Running", "Pending", "Succeeded"])),
        annotations=asks,
        devices=draw(devices),
        labels=draw(st.sampled_from([{}, {"stowage.dev/queue": "q"}])),
    )


def _name(node: Node) -> str:
    return node.name


@st.composite
def lists(draw: st.DrawFn) -> list[Event]:
    """Both lists, a page of one between pages of the other."""
    listed = draw(st.lists(pods(), max_size=10, unique_by=lambda pod: pod.name))
    events: list[Event] = [
        Upserted(one) for one in draw(st.permutations(draw(st.lists(nodes, max_size=3, unique_by=_name))))
    ]
    place = draw(st.integers(0, len(events)))
    events[place:place] = [Upserted(pod) for pod in listed]
    known = frozenset(event.obj.name for event in events if isinstance(event.obj, Node))  # type: ignore[union-attr]
    ends: list[Event] = [Listed("Node", known), Listed("Pod", frozenset(pod.key for pod in listed))]
    return events + draw(st.permutations(ends))


later = st.lists(
    st.one_of(
        pods().map(Upserted),
        nodes.map(Upserted),
        st.sampled_from([Deleted("Node", name) for name in NAMES]),
        st.sampled_from([Deleted("Pod", f"default/{name}") for name in "pqrs"]),
    ),
    max_size=6,
)


def state_after(events: list[Event], later: list[Event], *, deferred: bool, binds: bool) -> State:
    state = State(POLICIES["best-fit"]())
    state.binds, state.allocations.deferred = binds, deferred
    state.apply(events)
    assert not state.allocations.deferred or not deferred
    state.apply(later)
    return state


@given(lists(), later, st.booleans())
def test_taking_all_pods_of_a_node_at_once_gives_the_tables_of_taking_one_by_one(
    events: list[Event], later: list[Event], binds: bool
) -> None:
    one_by_one = state_after(events, later, deferred=False, binds=binds)
    at_once = state_after(events, later, deferred=True, binds=binds)
    expected, found = arrays_of(one_by_one.fleet), arrays_of(at_once.fleet)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        assert np.array_equal(array, found[name]), name
    for of in (
        State.problems.fget,
        lambda s: s.overcommitted,
        lambda s: s.fleet.rows,
        lambda s: s.nodes.closed,
    ):
        assert of(at_once) == of(one_by_one)
    for name in ("_placements", "_allocated", "_histories", "_on_node"):
        assert getattr(at_once.allocations, name) == getattr(one_by_one.allocations, name), name
    for row, usage in one_by_one.fleet.usage.items():
        assert dict(usage.free_devices()) == dict(at_once.fleet.usage[row].free_devices())
        assert usage.free_cpu_and_memory() == at_once.fleet.usage[row].free_cpu_and_memory()


def test_nothing_is_taken_before_both_lists_are_complete() -> None:
    state = State(POLICIES["best-fit"]())
    state.allocations.deferred = True
    pod = make_pod("p", 3, node_name="a")
    state.apply([Upserted(make_node("a")), Listed("Node", frozenset({"a"})), Upserted(pod)])
    number = state.fleet.names.resources[GPU]
    assert state.fleet.arrays.free_devices[number, 0] == 8
    state.apply([Listed("Pod", frozenset({pod.key}))])
    assert state.fleet.arrays.free_devices[number, 0] == 5


@pytest.mark.parametrize("first", ["Node", "Pod"])
def test_the_age_of_a_pod_that_ran_before_the_first_lists_counts(first: str) -> None:
    state = State(POLICIES["best-fit"]())
    state.allocations.deferred = True
    state.end_costs.clock = lambda: 1e9
    started, half = 1e9 - 6600, np.array([0.5])
    pod = replace(make_pod("p", 3, node_name="a"), phase="Running", started=started, deadline=7200.0)
    node, nodes = Upserted(make_node("a")), Listed("Node", frozenset({"a"}))
    lists: list[list[Event]] = [[node, nodes], [Upserted(pod), Listed("Pod", frozenset({pod.key}))]]
    for events in lists if first == "Node" else reversed(lists):
        state.apply(events)
    assert state.end_costs.remaining(pod, half) == [600.0]


def test_a_pod_that_cannot_be_counted_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    state = State(POLICIES["best-fit"]())
    state.allocations.deferred = True
    pods = [make_pod(name, 1, node_name=node) for name, node in (("p", "a"), ("broken", "a"), ("q", "b"))]
    allocation = state.allocations._allocation

    def failing(spec: object, row: int, key: str) -> object:
        if key == "default/broken":
            raise RuntimeError("a fault of ours")
        return allocation(spec, row, key)  # type: ignore[arg-type]

    monkeypatch.setattr(state.allocations, "_allocation", failing)
    state.apply([Upserted(make_node("a")), Upserted(make_node("b")), *map(Upserted, pods)])
    state.apply([Listed("Node", frozenset("ab")), Listed("Pod", frozenset(pod.key for pod in pods))])
    free = state.fleet.arrays.free_devices[state.fleet.names.resources[GPU]]
    assert [free[state.fleet.rows[name]] for name in "ab"] == [7, 7]
    assert "one by one" in caplog.text
