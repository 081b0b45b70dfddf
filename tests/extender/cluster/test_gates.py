"""A pod with scheduling gates is no waiting pod: kube-scheduler does not try it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extender.cluster.census import pods_waiting_for_devices
from extender.cluster.state import State
from extender.explain.pod import explain
from extender.k8s.objects import Listed, Upserted
from extender.k8s.pod_manifest import PodManifest
from extender.untrusted.limits import SCHEDULING_GATES
from packing.policies.registry import POLICIES
from tests.extender.builders import NOW, make_node, make_pod, make_state

ADMISSION, TOPOLOGY = "kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology"
GATED = make_pod("held", 2, gates=(ADMISSION, TOPOLOGY))


def test_the_gates_of_a_manifest() -> None:
    gates = [{"name": ADMISSION}, {"name": "example.com/mine"}]
    pod = PodManifest.from_value({"spec": {"schedulingGates": gates}}).record()
    assert pod.gates == (ADMISSION, "example.com/mine")
    assert PodManifest.from_value({"spec": {"schedulingGates": None}}).record().gates == ()


def test_so_many_gates_are_kept() -> None:
    gates = [{"name": f"example.com/{number}"} for number in range(10 * SCHEDULING_GATES)]
    pod = PodManifest.from_value({"spec": {"schedulingGates": gates}}).record()
    assert len(pod.gates) == SCHEDULING_GATES


def test_it_counts_as_waiting_once_the_last_gate_is_gone() -> None:
    """The condition PodScheduled has the reason SchedulingGated until kube-scheduler has tried the pod."""
    state = make_state(make_node("n"), GATED)
    for gates, waits in (((ADMISSION, TOPOLOGY), 0), ((TOPOLOGY,), 0), ((), 1)):
        state.apply([Upserted(replace(GATED, gates=gates, unscheduled="SchedulingGated"))])
        assert len(pods_waiting_for_devices(state)) == waits


@pytest.mark.parametrize("nodes_first", [True, False])
def test_it_is_no_demand_before(nodes_first: bool) -> None:
    state = State(POLICIES["inventory"]())
    nodes = [Upserted(make_node("n")), Listed("Node", frozenset("n"))]
    held = Upserted(GATED)
    for events in (nodes, [held]) if nodes_first else ([held], nodes):
        state.apply(events)
    assert state.learner.learned == 0
    ungated = replace(GATED, gates=())
    state.apply([Upserted(ungated), Upserted(replace(ungated, node_name="n"))])
    assert state.learner.learned == 1


def test_explain_names_the_gates_and_evicts_nobody_for_it() -> None:
    low = make_pod("low", 8, node_name="n")
    high = replace(make_pod("held", 2), priority=10)
    state = make_state(make_node("n"), low)
    free, held = explain(state, high, now=NOW), explain(state, replace(high, gates=GATED.gates), now=NOW)
    assert free.evictions
    assert free.evictions.best
    assert held.evictions is None
    assert held.held == (
        "held by the scheduling gates "
        "kueue.x-k8s.io/admission (Kueue has not admitted it to its queue), "
        "kueue.x-k8s.io/topology (Kueue has not assigned it to a topology domain)"
    )
    assert held.verdict.why == "not enough free GPUs (1 of 1 node)"
    assert not free.held


@pytest.mark.parametrize(("nodes", "fits"), [("n", 0), ("nm", 2)])
def test_a_gated_gang_is_answered_as_if_it_were_released(nodes: str, fits: int) -> None:
    labels = {"stowage.dev/gang": "g", "stowage.dev/gang-min": "2"}
    pods = [make_pod(name, 8, labels=labels, gates=(ADMISSION,)) for name in ("v", "w")]
    state = make_state(*pods, *map(make_node, nodes))
    state.gang_check = True
    found = explain(state, pods[0])
    assert found.fits == fits
    assert "2 held by scheduling gates" in found.gang
    assert all(one.gates for one in state.gangs.members("stowage default/g"))


def test_an_explanation_of_gates_is_short() -> None:
    gates = tuple(f"example.com/{number}{'x' * 300}" for number in range(SCHEDULING_GATES))
    hint = explain(make_state(make_node("n")), replace(GATED, gates=gates)).held
    assert "and 29 more" in hint
    assert len(hint) < 1200
