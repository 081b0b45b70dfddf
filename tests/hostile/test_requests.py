"""Input that a caller controls: the messages of the verbs apart from the pod, and their number."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from extender.protocol.messages import VERBS
from tests.examples import some
from tests.hostile.cluster import NAMES, PLAIN, SAID, Cluster, usual_node, usual_pod

POD = usual_pod("asked")
NOTHING = {"NodeNameToVictims": None, "NodeNameToMetaVictims": None}


def victims(count: int, pods: int) -> dict[str, Any]:
    one = {"Pods": [{"UID": f"u{n}"} for n in range(pods)], "NumPDBViolations": 1 << 60}
    return {f"n{n}": one for n in range(count)}


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": [value]}
    return value


def about(names: Any, nodes: Any = None, pod: Any = POD) -> Any:
    """A message to filter or prioritize."""
    return {"Pod": pod, "Nodes": nodes, "NodeNames": names}


def preempting(**candidates: Any) -> Any:
    return {"Pod": POD} | NOTHING | candidates


MESSAGES: dict[str, Callable[[], Any]] = {
    "names": lambda: about([f"n{n}" for n in range(100_000)]),
    "one name": lambda: about([PLAIN] * 100_000),
    "long names": lambda: about(["n" * 500_000]),
    "odd names": lambda: about(["\x00", "\u2028", '"', "\\", "\ud83d\ude00"]),
    "nodes": lambda: about(None, {"items": [usual_node("n", {}, {})] * 3000}),
    "deep nodes": lambda: about(None, {"items": [{"metadata": {"name": "n"}, "x": deep(90)}]}),
    "too deep": lambda: about(NAMES, pod=POD | {"x": deep(300)}),
    "victims": lambda: preempting(NodeNameToMetaVictims=victims(1000, 100)),
    "victims of one node": lambda: preempting(NodeNameToMetaVictims={PLAIN: victims(1, 50_000)["n0"]}),
    "whole victims": lambda: preempting(
        NodeNameToVictims={PLAIN: {"Pods": [POD] * 2000, "NumPDBViolations": -1}}
    ),
    "members": lambda: {f"Pod{n}": POD for n in range(2000)},
    "spellings": lambda: {f"P{'oO'[n % 2]}D"[: n % 4]: POD for n in range(2000)} | {"nodenames": NAMES},
    "bind": lambda: {
        "PodName": "p" * 500_000,
        "PodNamespace": "d",
        "PodUID": "u" * 500_000,
        "Node": "n" * 500_000,
    },
    "long keys": lambda: {"k" * 500_000: 1},
    "digits": lambda: about(NAMES, pod=POD | {"spec": POD["spec"] | {"priority": 10**4000}}),
    "text": lambda: "x" * 500_000,
}


@pytest.mark.parametrize(("verb", "kind"), some(product(VERBS, MESSAGES), 19))
def test_a_hostile_message(cluster: Cluster, caplog: pytest.LogCaptureFixture, verb: str, kind: str) -> None:
    body = json.dumps(MESSAGES[kind]()).encode()
    response = cluster.send("POST", f"/scheduler/{verb}", body)
    if response.status_code != 200:
        assert len(response.content) <= SAID
    else:
        reply = response.json()
        error = reply.get("Error", "") if isinstance(reply, dict) else ""
        assert len(error) <= SAID
        assert len(response.content) <= 8 * len(body) + SAID  # each name comes back with a reason
    assert len(caplog.text) <= 2 * SAID
    cluster.alive()


@pytest.mark.nightly
def test_requests_leave_nothing_behind(cluster: Cluster) -> None:
    """Pods and names in requests that are never seen in a watch."""
    text = "x" * 200_000

    def ask(n: int) -> None:
        pod = usual_pod(f"p{n}{text[:60_000]}", annotations={"stowage.dev/gpu-models": f"{n}{text}"})
        cluster.ask_all(pod)
        cluster.filter(usual_pod(f"q{n}"), [f"{n}-{k}{text[:200]}" for k in range(500)])
        cluster.send("GET", f"/debug/pods/d/{n}{text[:5000]}")
        cluster.send("GET", f"/nothing/{n}{text[:5000]}")

    ask(0)
    gc.collect()
    tracemalloc.start()
    try:
        for n in range(1, 150):
            ask(n)
        gc.collect()
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < 18 << 20, f"{left >> 20} MiB"
