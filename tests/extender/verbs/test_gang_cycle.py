"""filter and prioritize in the cycle in which kube-scheduler asks about all members of a PodGroup."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from extender.cluster.state import State
from extender.k8s.objects import Node, Pod, PodGroup, Upserted
from extender.protocol.codec import FilterArgs
from extender.protocol.node_names import NodeNames
from extender.verbs.filter import filter_nodes
from extender.verbs.prioritize import prioritize
from tests.extender.builders import make_node, make_pod, make_settings, make_state
from tests.extender.verbs.binding import own


def member(number: int, gpus: int = 8, **fields: Any) -> Pod:
    return make_pod(f"w{number}", gpus, pod_group="g", priority=1000, **fields)


def state_with(*objects: Node | Pod, minimum: int = 2) -> State:
    state = make_state(*objects)
    state.gang_check = True
    state.apply([Upserted(PodGroup("PodGroup", "default", "g", minimum))])
    return state


def best(state: State, pod: Pod, nodes: list[str] | None = None) -> str:
    """The node that prioritize would give 10 points; "" if none fits."""
    names = NodeNames.of(nodes or sorted(state.nodes))
    _, evaluation = filter_nodes(state, FilterArgs(pod, names), make_settings())
    assert evaluation is not None
    if not evaluation.fitting:
        return ""
    return names[int(np.where(evaluation.codes == 0, evaluation.keys, np.iinfo(np.int64).max).argmin())]


def placed(state: State, pods: list[Pod], nodes: list[str] | None = None) -> list[str]:
    """The nodes of a cycle: each member is asked about after the answer to the one before."""
    found = []
    for pod in pods:
        node = best(state, pod, nodes)
        state.reservations.answered(pod, node, state.gangs.cycle_of(pod))
        found.append(node)
    return found


def full(node: str, *sizes: int, priority: int = 0) -> list[Pod]:
    """Running pods of these numbers of GPUs."""
    return [
        make_pod(f"{node}-{number}", gpus, node_name=node, priority=priority, phase="Running", started=1.0)
        for number, gpus in enumerate(sizes)
    ]


def test_no_share_is_promised_twice_in_a_cycle() -> None:
    """kube-scheduler does not count them, so it would name both nodes to both members."""
    pods = [replace(own(f"w{n}"), pod_group="g") for n in range(2)]
    nodes = [make_node(name, 1, labels={"stowage.dev/gpu-sharing": "true"}) for name in "ab"]
    state = state_with(*nodes, *pods)
    state.binds = True
    assert sorted(placed(state, pods)) == ["a", "b"]


def test_a_member_that_is_asked_about_again_begins_a_new_cycle() -> None:
    pods = [member(n) for n in range(2)]
    state = state_with(make_node("a"), make_node("b"), *pods)
    first = placed(state, pods)
    assert placed(state, pods) == first


@pytest.mark.parametrize("ends", ["time", "binding"])
def test_a_cycle_ends(ends: str) -> None:
    pods = [member(n, 4) for n in range(2)]
    state = state_with(make_node("a"), *pods)
    now = 0.0
    state.reservations.clock = lambda: now
    placed(state, pods)
    if ends == "time":
        now = 60.0
    else:
        state.apply([Upserted(make_pod(f"w{n}", 4, pod_group="g", node_name="a")) for n in range(2)])
    assert state.reservations.in_cycle(state.gangs.cycle_of(pods[0])) == {}
    assert state.reservations.is_empty


def test_where_pods_have_left_the_snapshot_a_full_node_fits() -> None:
    """kube-scheduler names no node that is full by its own count."""
    pods = [member(n) for n in range(2)]
    state = state_with(make_node("a"), make_node("b"), *full("a", 4, 4), *full("b", 8), *pods)
    assert best(state, pods[0]) in ("a", "b")


def test_nobody_leaves_for_a_gang_that_does_not_fit_even_then() -> None:
    pods = [member(n) for n in range(3)]
    state = state_with(make_node("a"), make_node("b"), *full("a", 8), *full("b", 8), *pods, minimum=3)
    assert best(state, pods[0]) == ""


def test_prioritize_knows_the_same_nodes_without_the_answer_of_filter() -> None:
    """An event between the two calls ends what filter has kept."""
    pods = [member(n) for n in range(2)]
    nodes = [make_node(name) for name in "ab"]
    state = state_with(*nodes, *full("a", *[1] * 8), *full("b", 8), *pods)
    scores, _ = prioritize(state, FilterArgs(pods[0], NodeNames.of(["a", "b"])))
    assert scores.tolist()[1] == 10
