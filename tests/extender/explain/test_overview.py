"""The fleet in one table."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from extender.cluster.census import CensusTaker
from extender.cluster.state import State
from extender.explain.answers import NodeLine, Overview
from extender.explain.overview import overview
from extender.explain.verdict import TOO_LARGE
from extender.k8s.objects import Pod
from tests.extender.builders import make_node, make_pod, make_state


def overview_of(state: State, most_waiting: int) -> Overview:
    return asyncio.run(overview(state, CensusTaker(state), most_waiting))


def test_what_each_node_has_left() -> None:
    state = make_state(
        make_node("b", 4), make_node("a", 8), make_node("cpu", 0), make_pod("p", 3, node_name="a", cpu="2")
    )
    found = overview_of(state, 10)
    assert [(line.node, line.gpus, line.whole, line.free_gpus, line.pods) for line in found.nodes] == [
        ("a", 8, 5, 5.0, 1),
        ("b", 4, 4, 4.0, 0),
    ]
    assert found.nodes[0].used_percent == (100, 100, 100, 0, 0, 0, 0, 0)
    assert found.totals.whole_nodes == 1
    assert found.waiting == ()


def test_a_node_that_takes_nothing_says_why() -> None:
    state = make_state(make_node("a", labels={"nvidia.com/mig.config.state": "pending"}), make_node("b", 2))
    notes: dict[str, NodeLine] = {line.node: line for line in overview_of(state, 10).nodes}
    assert "a" not in notes or notes["a"].note == "MIG reconfiguration in progress"
    state = make_state(make_node("b", 2), make_pod("p", 2, node_name="b"), make_pod("q", 1, node_name="b"))
    assert overview_of(state, 1).nodes[0].note == "node is over-committed"


def waiting(*pods: Pod, most: int = 10) -> list[tuple[str, str]]:
    state = make_state(make_node("a", 8), make_node("b", 4), *pods)
    return [(line.pod, line.why) for line in overview_of(state, most).waiting]


def test_the_most_urgent_waiting_pods_come_first_with_the_reason() -> None:
    small, large = make_pod("small", 1, created=5.0), make_pod("large", 9, priority=3)
    odd = make_pod("odd", -1, created=1.0)
    pods = [small, large, odd, make_pod("cpu", 0), replace(make_pod("going", 1), deleting=True)]
    assert waiting(*pods) == [
        ("default/large", TOO_LARGE),
        ("default/odd", "nvidia.com/gpu: quantity '-1' is negative"),
        ("default/small", "fits on 2 nodes"),
    ]
    assert waiting(*pods, most=1) == [("default/large", TOO_LARGE)]


def test_a_nominated_pod_waits_for_its_room() -> None:
    pods = [make_pod("victim", 8, node_name="a"), make_pod("new", 8, nominated_node="a", priority=1)]
    assert waiting(*pods) == [("default/new", "waits for room on a")]


def test_how_many_more_wait() -> None:
    state = make_state(make_node("a", 1), *(make_pod(f"p{number}", 2) for number in range(5)))
    assert overview_of(state, 2).more_waiting == 3
