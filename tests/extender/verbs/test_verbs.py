"""filter, prioritize and preempt as functions of state and arguments; HTTP is tested in tests/contract."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from extender.k8s.objects import Container, Deleted, PodSpec, Upserted
from extender.protocol.codec import FilterArgs, PreemptArgs, ProposedVictims
from extender.protocol.node_names import NodeNames
from extender.untrusted.limits import PROBLEM
from extender.verbs.filter import filter_nodes
from extender.verbs.preempt import preempt
from extender.verbs.prioritize import prioritize
from packing.model.reasons import Reason
from tests.extender.builders import GPU, NOW, make_node, make_pod, make_settings, make_state, why
from tests.extender.dialects.test_dialect_manifests import node as node_of

ALL = make_settings(shortlist=0)


def ask(state, pod, *names, settings=ALL):
    return filter_nodes(state, FilterArgs(pod, NodeNames.of(names)), settings)[0]


def said(refused):
    return {reason: list(names) for reason, names in refused.items()}


def nodes_of(refused):
    return {name for names in refused.values() for name in names}


@pytest.fixture
def three():
    """a is empty, b has two GPUs free, c is full."""
    return make_state(
        *(make_node(name) for name in "abc"),
        make_pod("on-b", 6, node_name="b"),
        make_pod("on-c", 8, node_name="c"),
    )


def test_every_dropped_node_has_a_reason(three):
    result = ask(three, make_pod("p", 4), "a", "b", "c", "nowhere")
    assert list(result.names) == ["a"]
    assert result.failed == {}
    assert said(result.unresolvable) == {
        Reason.NO_FREE_GPUS.text: ["b", "c"],
        Reason.UNKNOWN_NODE.text: ["nowhere"],
    }
    assert result.error == ""


def test_from_1_38_reasons_that_eviction_helps_go_where_kube_scheduler_looks_for_victims(three):
    three.eviction_helps_extenders = True
    result = ask(three, make_pod("p", 9), "a", "b")
    assert (result.failed, nodes_of(result.unresolvable)) == ({}, {"a", "b"})
    result = ask(three, make_pod("p", 4), "c", "nowhere")
    assert said(result.failed) == {Reason.NO_FREE_GPUS.text: ["c"]}
    assert nodes_of(result.unresolvable) == {"nowhere"}


def test_the_shortlist_holds_the_best_in_the_order_asked(three):
    result = ask(three, make_pod("p", 1), "c", "a", "b", settings=make_settings(shortlist=1))
    assert (list(result.names), result.failed, result.unresolvable) == (["b"], {}, {})
    result = ask(three, make_pod("p", 1), "c", "a", "b", settings=make_settings(shortlist=5))
    assert list(result.names) == ["a", "b"]


def test_the_shortlist_gives_all_reasons_when_nothing_fits(three):
    result = ask(three, make_pod("p", 9), "a", "b", "c", settings=make_settings(shortlist=1))
    assert nodes_of(result.unresolvable) == {"a", "b", "c"}


def test_pods_without_gpu_pass_everywhere(three):
    assert list(ask(three, make_pod("p", 0), "c", "nowhere").names) == ["c", "nowhere"]
    scores, _ = prioritize(three, FilterArgs(make_pod("p", 0), NodeNames.of(["c", "nowhere"])))
    assert scores.tolist() == [0, 0]


def test_an_impossible_request_is_an_error(three):
    broken = make_pod("p", spec=PodSpec((Container(requests=((GPU, "-1"),)),)))
    assert "nvidia.com/gpu" in ask(three, broken, "a").error
    assert prioritize(three, FilterArgs(broken, NodeNames.of(["a"])))[0].tolist() == [0]
    assert preempt(three, PreemptArgs(broken, {"c": ProposedVictims(["uid-on-c"])}), NOW).candidates == {}


@pytest.mark.parametrize("said", ["x" * 200_000, "1" * 200_000])
def test_an_error_does_not_echo_a_whole_pod(three, said):
    broken = make_pod("p", 0, annotations={"stowage.dev/gpus": said})
    assert 0 < len(ask(three, broken, "a").error) <= PROBLEM


def test_the_fullest_node_that_fits_alone_has_ten(three):
    scores, _ = prioritize(three, FilterArgs(make_pod("p", 1), NodeNames.of(["a", "b", "c", "nowhere"])))
    assert scores.tolist() == [0, 10, 0, 0]


def test_equal_nodes_still_have_one_best():
    state = make_state(*(make_node(f"n{i}") for i in range(5)))
    scores, _ = prioritize(state, FilterArgs(make_pod("p", 1), NodeNames.of(f"n{i}" for i in range(5))))
    assert sorted(scores) == [9, 9, 9, 9, 10]


def test_the_best_does_not_depend_on_the_order_in_which_nodes_came():
    names = [f"n{i}" for i in range(9)]
    one, other = (make_state(*(make_node(name) for name in order)) for order in (names, names[::-1]))
    args = FilterArgs(make_pod("p", 1), NodeNames.of(names))
    assert prioritize(one, args)[0].tolist() == prioritize(other, args)[0].tolist()


def answers(state, args):
    result, _ = filter_nodes(state, args, ALL)
    return list(result.names), said(result.unresolvable), prioritize(state, args)[0].tolist()


def test_asking_changes_nothing(three):
    args = FilterArgs(make_pod("p", 1), NodeNames.of(["a", "b", "c"]))
    first = answers(three, args)
    before = three.fleet.arrays.free_devices.copy(), three.fleet.arrays.compute.copy(), dict(three.pods)
    assert answers(three, args) == first
    assert (three.fleet.arrays.free_devices == before[0]).all()
    assert (three.fleet.arrays.compute == before[1]).all()
    assert three.pods == before[2]


@pytest.fixture
def full():
    """n is full of three pods; x has room; over holds more than it has."""
    return make_state(
        make_node("n"),
        make_node("m"),
        make_pod("low", 4, node_name="n", priority=1),
        make_pod("lower", 2, node_name="n", priority=0),
        make_pod("high", 2, node_name="n", priority=5),
        make_pod("on-m", 8, node_name="m"),
    )


def victims(full, gpus: int, node: str, *uids: str) -> list[str] | None:
    args = PreemptArgs(make_pod("p", gpus, priority=10), {node: ProposedVictims(list(uids), 1)})
    kept = preempt(full, args, NOW).candidates
    return kept[node].victims if kept else None


def test_victims_that_make_the_pod_fit_are_kept_highest_priority_first(full):
    assert victims(full, 6, "n", "uid-lower", "uid-low") == ["uid-low", "uid-lower"]


@pytest.mark.parametrize("uids", [["uid-low"], ["uid-low", "uid-low"], []])
def test_victims_that_are_not_enough_are_replaced_and_no_list_is_empty(full, uids):
    """kube-scheduler counts other things; from 1.38 on it may find no victims at all."""
    assert victims(full, 6, "n", *uids) == ["uid-low", "uid-lower"]


@pytest.mark.parametrize(
    ("gpus", "node", "uids"),
    [
        (9, "n", ["uid-low"]),  # more than the node has
        (4, "n", ["uid-low", "uid-unknown"]),
        (4, "n", ["uid-on-m"]),  # runs elsewhere
        (4, "nowhere", ["uid-low"]),
    ],
)
def test_nodes_whose_victims_do_not_help_are_dropped(full, gpus, node, uids):
    assert victims(full, gpus, node, *uids) is None


def test_what_a_nominated_pod_will_get_is_not_given_twice(full):
    full.apply([])
    assert victims(full, 4, "n", "uid-low") == ["uid-low"]
    nominated = make_state(
        make_node("n"),
        make_pod("low", 8, node_name="n"),
        make_pod("first", 8, nominated_node="n", priority=10),
    )
    assert victims(nominated, 8, "n", "uid-low") is None


def test_a_pod_is_evaluated_without_its_own_allocation():
    """After a bind whose answer was lost, kube-scheduler asks again for a pod that is allocated already."""
    holds = make_pod("holds", 8, node_name="a")
    state = make_state(make_node("a"), make_node("b"), holds)
    scores, _ = prioritize(state, FilterArgs(holds, NodeNames.of(["a", "b"])))
    assert sorted(scores) == [9, 10]


def proposed(state, pod, *uids, node="n"):
    kept = preempt(state, PreemptArgs(pod, {node: ProposedVictims(list(uids), 2)}), NOW).candidates
    return kept[node] if kept else None


@pytest.mark.parametrize(
    "labels",
    [
        {"nvidia.com/mig.config.state": "pending"},  # takes no pod with GPUs
        {"nvidia.com/gpu.product": "NVIDIA-H100-MIG-INVALID"},
        {},
    ],
)
def test_candidates_for_a_pod_without_gpu_are_returned_unchanged(labels):
    state = make_state(
        make_node("n", labels=labels),
        make_pod("low", 0, cpu="60", node_name="n", priority=1),
        make_pod("high", 0, node_name="n", priority=5),
    )
    # More than the node has free in the fleet: for such pods only kube-scheduler checks that.
    waits = make_pod("p", 0, cpu="64001m", priority=10)
    assert proposed(state, waits, "uid-low", "uid-high") == ProposedVictims(["uid-low", "uid-high"], 2)
    assert proposed(state, waits) == ProposedVictims([], 2)
    assert proposed(state, waits, "uid-low", "uid-elsewhere") is None


def starting(name, device="GPU-aaaa", **more):
    """A pod on a HAMi node whose containers have not started: its plugin is busy."""
    annotations = {
        "hami.io/vgpu-node": "hami",
        "hami.io/vgpu-devices-allocated": f"{device},NVIDIA,32768,100:;",
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": "1",
    }
    return make_pod(name, 1, node_name="hami", annotations=annotations, **{"phase": "Pending"} | more)


def test_a_device_plugin_that_is_busy_is_no_reason_against_preemption():
    starts, waits = starting("starts", priority=1), make_pod("p", 1, priority=10)
    state = make_state(node_of("hami"), starts, binds=True)
    assert why(state, waits, "hami") is Reason.PLUGIN_BUSY  # the other GPU is free
    assert proposed(state, waits, "uid-starts", node="hami") is None  # it need not go for that
    runs = starting("runs", phase="Running", device="GPU-bbbb")
    state.apply([Upserted(runs)])
    assert proposed(state, waits, "uid-runs", node="hami") == ProposedVictims(["uid-runs"], 0)
    assert proposed(state, waits, "uid-starts", node="hami") == ProposedVictims(["uid-runs"], 0)
    large = make_pod("large", 2, priority=10)
    assert proposed(state, large, "uid-starts", node="hami") == ProposedVictims(["uid-starts", "uid-runs"], 0)
    state.apply([Deleted("Pod", runs.key)])
    assert why(state, waits, "hami") is Reason.PLUGIN_BUSY  # and all is as before


def test_a_victim_whose_binding_the_watch_has_not_shown_is_known():
    state = make_state(make_node("n"), make_pod("victim", 8), binds=True)
    state.assume(state.pods["default/victim"], "n", {}, 0.0)
    waits = make_pod("p", 8, priority=10)
    assert proposed(state, waits, "uid-victim") == ProposedVictims(["uid-victim"], 0)
    assert why(state, waits, "n") is Reason.NO_FREE_GPUS


def test_a_pod_that_may_be_bound_counts_once_whatever_else_is_known_of_it():
    half, other = make_pod("half", 4), make_pod("p", 4)
    state = make_state(make_node("n"), make_node("m"), replace(half, nominated_node="n"))

    def fits(*nodes, possibly_bound):
        is_cut_off = bool(possibly_bound)
        state.reservations.interruption = lambda: (time.monotonic(), None) if is_cut_off else None
        for pod, node in possibly_bound:
            state.reservations.answered(pod, node)
        return list(filter_nodes(state, FilterArgs(other, NodeNames.of(nodes)), ALL)[0].names)

    assert fits("n", "m", possibly_bound=[(half, "n")]) == ["n", "m"]
    full = make_pod("full", 8)
    assert fits("n", "m", possibly_bound=[(full, "n")]) == ["m"]
    state.apply([Upserted(replace(full, nominated_node="m"))])
    assert fits("n", "m", possibly_bound=[]) == ["n"]
    assert fits("n", "m", possibly_bound=[(full, "n")]) == ["m"]
    assert fits("n", "m", possibly_bound=[(other, "n"), (full, "nowhere")]) == ["n", "m"]
