"""The fleet in one table."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from extender.cli.top import render
from extender.cluster.census import CensusTaker
from extender.cluster.state import State
from extender.explain.answers import Overview
from extender.explain.overview import overview
from extender.explain.words import Word
from extender.k8s.objects import Container, Pod, PodSpec, Upserted
from extender.queues.queue import Queues
from extender.queues.rights import Rights
from extender.settings import Queue
from tests.extender.builders import make_node, make_pod, make_state


def overview_of(state: State, most_waiting: int) -> Overview:
    return asyncio.run(overview(state, CensusTaker(state), most_waiting))


@pytest.mark.parametrize(
    ("cpu", "memory", "gpus", "note"),
    [
        ("30", "1Gi", 4, "2 pods without GPUs hold 60 of 64 CPUs"),
        ("1", "240Gi", 4, "2 pods without GPUs hold 480 of 512 GiB"),
        ("20", "1Gi", 4, ""),
        ("30", "1Gi", 8, ""),  # no whole GPU is free
    ],
)
def test_pods_without_gpus_that_hold_what_free_gpus_need_are_in_the_note(cpu, memory, gpus, note) -> None:
    spec = PodSpec((Container("main", (("cpu", cpu), ("memory", memory))),))
    holders = [make_pod(name, 0, spec=spec, node_name="a") for name in ("logs", "cache")]
    state = make_state(make_node("a", 8), make_pod("train", gpus, node_name="a", cpu="0"), *holders)
    assert overview_of(state, 1).nodes[0].note == note


@pytest.mark.parametrize(("age", "is_late"), [(3500, False), (3700, True)])
def test_a_queue_whose_pods_wait_for_too_long_is_named(age: float, is_late: bool) -> None:
    state = make_state(make_node("a", 1), make_pod("p", 8, created=1e9))
    state.rights = Rights(Queues({"batch": Queue(wait_objective=3600), "other": Queue(wait_objective=60)}))
    pod = make_pod("q", 8, created=1e9, labels={"stowage.dev/queue": "batch"})
    state.apply([Upserted(pod)])
    found = overview_of(state, 1)
    assert found.totals.objectives == {"batch": (1e9, 3600)}
    text = "queue batch: a pod has been pending for 61m, longer than 60m"
    assert (text in render(found, found.nodes, "node", 1e9 + age)) is is_late


def waiting(*pods: Pod, most: int = 10) -> list[tuple[str, str]]:
    state = make_state(make_node("a", 8), make_node("b", 4), *pods)
    return [(line.pod, line.why) for line in overview_of(state, most).waiting]


def test_the_most_urgent_waiting_pods_come_first_with_the_reason() -> None:
    small, large = make_pod("small", 1, created=5.0), make_pod("large", 9, priority=3)
    odd = make_pod("odd", -1, created=1.0)
    pods = [small, large, odd, make_pod("cpu", 0), replace(make_pod("going", 1), deleting=True)]
    assert waiting(*pods) == [
        ("default/large", f"{Word.TOO_LARGE()}."),
        ("default/odd", "nvidia.com/gpu: quantity '-1' is negative"),
        ("default/small", "fits on 2 nodes"),
    ]
    assert waiting(*pods, most=1) == [("default/large", f"{Word.TOO_LARGE()}.")]


def test_a_nominated_pod_waits_for_its_room() -> None:
    pods = [make_pod("victim", 8, node_name="a"), make_pod("new", 8, nominated_node="a", priority=1)]
    assert waiting(*pods) == [("default/new", "waiting for room on a")]


def test_pods_are_in_the_order_of_the_queue_and_those_with_gates_come_last() -> None:
    pods = [
        replace(make_pod("gated", 1, priority=9), gates=("example.com/quota",)),
        *(make_pod("late", 1, created=2.0), make_pod("early", 1, created=1.0)),
        make_pod("urgent", 9, priority=5),
    ]
    other = replace(make_pod("other", 1, created=3.0), namespace="ml")
    state = make_state(make_node("a", 8), *pods, other)
    found = overview_of(state, 10)
    assert [(line.pod, line.position, line.kind) for line in found.waiting] == [
        ("default/urgent", 1, "TOO_LARGE"),
        ("default/early", 2, "FITS"),
        ("default/late", 3, "FITS"),
        ("ml/other", 4, "FITS"),
        ("default/gated", 0, "HELD"),
    ]
    assert (found.totals.waiting, found.totals.gated) == (4, 1)
    text = "held by the scheduling gate example.com/quota; once released: fits on 1 node"
    assert found.waiting[-1].why == text
    [line] = asyncio.run(overview(state, CensusTaker(state), 10, "ml")).waiting
    assert (line.pod, line.position) == ("ml/other", 4)
    with pytest.raises(ValueError, match="there are no pods in the namespace 'nope'"):
        asyncio.run(overview(state, CensusTaker(state), 10, "nope"))
