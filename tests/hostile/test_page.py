"""What strangers write, on the page: bounded in the answer, and never anything but text."""

from __future__ import annotations

import asyncio
import json

from extender.cluster.census import CensusTaker
from extender.explain.fleet_feed import FleetFeed
from extender.explain.fleet_row import fleet_row
from extender.untrusted.limits import KEY, PAGE_PARTS, PAGE_WAITING
from tests.extender.builders import make_node, make_pod, make_state

SHARED = "nvidia.com/gpu.shared"


def test_a_node_with_too_many_parts() -> None:
    """A device plugin that advertises a million replicas, and more pods than a page shows."""
    labels = {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.replicas": str((1 << 20) // 8)}
    node = make_node("a", 0, labels=labels, **{SHARED: str(1 << 20)})
    pods = [make_pod(f"p{i}", 1, resource=SHARED, node_name="a") for i in range(PAGE_PARTS + 10)]
    state = make_state(node, *pods)
    row = fleet_row(state, "a", None, 0.0)
    assert row is not None
    assert len(row.parts) == PAGE_PARTS
    assert row.more >= 10


def test_long_names_are_cut() -> None:
    pod = make_pod("x" * 5000, 1, node_name="a")
    row = fleet_row(make_state(make_node("a"), pod), "a", None, 0.0)
    assert row is not None
    assert len(row.pods[0].pod) <= KEY + 3


def test_so_many_waiting_pods_are_explained() -> None:
    state = make_state(make_node("a", 1), *(make_pod(f"p{i}", 2) for i in range(PAGE_WAITING + 5)))
    answer = json.loads(b"".join(asyncio.run(FleetFeed(state, CensusTaker(state)).since(""))))
    assert len(answer["waiting"]) == PAGE_WAITING
    assert answer["more_waiting"] == 5
