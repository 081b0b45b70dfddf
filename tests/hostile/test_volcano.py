"""Input that a caller of Volcano's verbs controls: tasks, nodes and candidates that are no such things."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from extender.protocol.volcano import VOLCANO_VERBS
from tests.examples import some
from tests.hostile.cluster import NAMES, PLAIN, SAID, VERB, Cluster, Manifest, steps, usual_pod
from tests.hostile.test_requests import deep

POD = usual_pod("asked")


@pytest.fixture
def cluster(runner: asyncio.Runner) -> Cluster:
    return Cluster(runner, volcano=True)


def task(pod: Manifest = POD, **fields: Any) -> Manifest:
    return {"UID": pod["metadata"]["uid"], "NodeName": "", "Status": 1, "Pod": pod} | fields


def node(name: str = PLAIN, **fields: Any) -> Manifest:
    return {"Name": name, "Node": {"metadata": {"name": name}}} | fields


def sent(
    about: Manifest | None = None,
    nodes: list[Manifest] | None = None,
    evictees: list[Manifest] | None = None,
) -> dict[str, Any]:
    """One message with what each of the verbs reads, as Volcano orders it."""
    one = about or task()
    given = [node(name) for name in NAMES] if nodes is None else nodes
    return {
        "task": one,
        "node": given[0] if given else None,
        "nodes": given,
        "evictor": one,
        "evictees": evictees,
    }


MESSAGES: dict[str, Callable[[], Any]] = {
    "nodes": lambda: sent(nodes=[node(f"n{n}") for n in range(50_000)]),
    "one node": lambda: sent(nodes=[node()] * 50_000),
    "long names": lambda: sent(nodes=[node("n" * 500_000)]),
    "odd names": lambda: sent(nodes=[node(name) for name in ("\x00", "\u2028", '"', "\\", "")]),
    "nodes in a pod": lambda: sent(task(POD | {"x": [{}, {"a": 1, "nodes": [node()], "node": node()}]})),
    "deep nodes": lambda: sent(nodes=[node(Tasks=deep(90))]),
    "too deep": lambda: sent(task(POD | {"x": deep(300)})),
    "evictees": lambda: sent(evictees=[task(usual_pod(f"p{n}"), NodeName=PLAIN) for n in range(2000)]),
    "nodes of evictees": lambda: sent(
        evictees=[{"UID": f"u{n}", "NodeName": f"n{n}"} for n in range(20_000)]
    ),
    "evictees without fields": lambda: sent(evictees=[{}] * 20_000),
    "no task": lambda: {"task": None, "node": None, "nodes": None, "evictor": None, "evictees": None},
    "no pod": lambda: sent({"UID": "u", "Pod": None}),
    "long texts": lambda: sent(task(UID="u" * 500_000, NodeName="n" * 500_000)),
    "digits": lambda: sent(task(Status=10**4000)),
    "long keys": lambda: {"k" * 500_000: 1},
    "text": lambda: "x" * 500_000,
}


@pytest.mark.parametrize(("verb", "kind"), some(product(VOLCANO_VERBS, MESSAGES), 19))
def test_a_hostile_message(cluster: Cluster, caplog: pytest.LogCaptureFixture, verb: str, kind: str) -> None:
    before = cluster.books()
    body = json.dumps(MESSAGES[kind](), separators=(",", ":")).encode()
    response = cluster.send("POST", f"/{verb}", body)
    assert len(response.content) <= (2 * len(body) if response.status_code == 200 else 0) + SAID
    assert len(caplog.text) <= 2 * SAID
    assert cluster.books() == before
    cluster.alive()


def test_the_length_of_a_node_costs_nothing(cluster: Cluster) -> None:
    """Volcano sends each node with all its pods, and no answer needs them."""
    pods = {f"d/p{n}": task(usual_pod(f"p{n}")) for n in range(200)}
    short, long = (
        json.dumps({"task": task(), "node": node(Tasks=tasks)}, separators=(",", ":")).encode()
        for tasks in ({}, pods)
    )

    def ask(body: bytes) -> int:
        return steps(lambda: cluster.answer_all([("volcano/predicate", body)]))

    ask(short)
    usual = ask(short)
    assert len(long) > 100 * len(short)
    assert ask(long) <= 1.1 * usual


def test_many_nodes_of_candidates_cost_no_more_than_a_few(cluster: Cluster) -> None:
    def ask(count: int) -> int:
        candidates = [{"UID": f"u{n}", "NodeName": NAMES[n % 4] if n < 8 else f"n{n}"} for n in range(count)]
        body = json.dumps(sent(evictees=candidates)).encode()
        return steps(lambda: cluster.answer_all([("volcano/preemptable", body)]))

    ask(8)
    usual = ask(8)
    assert ask(1000) <= VERB * usual + 100 * 1000


def test_a_pod_takes_no_more_than_there_is(cluster: Cluster) -> None:
    """Whatever is allocated and evicted, and in whatever order, a place for now must be free now."""
    pods = [usual_pod(f"p{n}", {"nvidia.com/gpu": "3"}) for n in range(12)]
    cluster.put(*pods)
    for number in range(200):
        pod = pods[number * 7 % len(pods)]
        for verb, status in (("deallocate", 64), ("allocate", 2 if number % 3 else 4)):
            body = json.dumps({"task": task(pod, NodeName=PLAIN, Status=status)}).encode()
            cluster.send("POST", f"/volcano/{verb}", body)
        if number % 11 == 0:
            cluster.send("POST", "/volcano/onSessionClose", b"{}")
        assert not cluster.engine.state.overcommitted
        held = sum(one.pod.node_name == PLAIN for one in cluster.engine.state.assumed_pods)
        assert held <= 2
    cluster.remove(*pods)
    assert not len(cluster.engine.state.assumed_pods)
