"""Pods and nodes of others do not keep a node from the MIG layout that a pending pod needs."""

from __future__ import annotations

import json
import time
import tracemalloc
from typing import Any

import pytest

from tests.examples import examples
from tests.extender.apiserver import ApiServer
from tests.extender.apistore import Manifest
from tests.extender.evictor.mig_nodes import CHANGE, GPU, SMALL, MigManager, large, mig_node, small
from tests.extender.evictor.replica import Start, log
from tests.extender.evictor.test_layout_changes import begin, layouts, movable, rounds


@pytest.fixture
def manager(api: ApiServer) -> MigManager:
    return MigManager(api)


def asking_for(name: str, resource: str, count: int) -> Manifest:
    manifest = small(name)
    requests = {"cpu": "1", resource: str(count)}
    manifest["spec"]["containers"][0]["resources"] = {"requests": requests, "limits": requests}
    return manifest


def marked(name: str, step: str, since: float, until: float, **spec: Any) -> Manifest:
    """A node that says its layout changes."""
    change = {"step": step, "since": since, "until": until}
    change |= {"from": {"name": "all-1g.10gb", "devices": {SMALL: 56}}}
    change |= {"to": {"name": "all-disabled", "devices": {GPU: 8}}}
    node = mig_node(name, **spec)
    node["metadata"]["annotations"] = {CHANGE: json.dumps(change)}
    return node


@pytest.mark.parametrize("step", ["failed", "given_up", "done"])
async def test_times_that_nobody_can_have_written_delay_no_other_node(
    api: ApiServer, start: Start, manager: MigManager, step: str
) -> None:
    """A kubelet may annotate its own node."""
    api.put(mig_node("n1"))
    for number in range(4):
        api.put(marked(f"other{number}", step, 1e15, 1e16, unschedulable=True))
    api.put(large("p"))
    await rounds(begin(start), manager, 15)
    assert layouts(api)["n1"] == "all-disabled"


async def test_more_than_a_node_can_have_is_no_demand(
    api: ApiServer, start: Start, manager: MigManager
) -> None:
    for name in ("n1", "n2"):
        api.put(mig_node(name))
    api.put(large("p"))
    api.put(asking_for("impossible", SMALL, 100_000))
    await rounds(begin(start), manager, 15)
    assert "all-disabled" in layouts(api).values()


@pytest.mark.parametrize(("gpus", "priority"), [(64, 0), (8, 1000)])
async def test_many_pods_that_came_before_hide_no_pod(
    api: ApiServer, start: Start, manager: MigManager, gpus: int, priority: int
) -> None:
    """They ask for more than a node has, or are less urgent."""
    api.put(mig_node("n1"))
    for number in range(256):
        hopeless = asking_for(f"a{number}", GPU, gpus)
        hopeless["spec"]["nodeSelector"] = {"is": "nowhere"}
        api.put(hopeless)
    pod = large("p")
    pod["spec"]["priority"] = priority
    api.put(pod)
    await rounds(begin(start), manager, 15)
    assert layouts(api) == {"n1": "all-disabled"}


async def test_invented_profiles_hide_no_pod_and_are_not_remembered(
    api: ApiServer, start: Start, manager: MigManager
) -> None:
    """No layout offers them, whatever real device such a pod requests beside them."""
    api.put(mig_node("n1"))
    for number in range(examples(256, least=64)):
        invented = asking_for(f"a{number}", GPU, 1)
        invented["spec"]["priority"] = 1000
        names = {f"nvidia.com/mig-0g.1gb.x{number}x{kind}": "1" for kind in range(40)}
        invented["spec"]["containers"].append({"name": "more", "resources": {"limits": names}})
        api.put(invented)
    replica = begin(start)
    await rounds(replica, manager, 2)
    tracemalloc.start()
    try:
        await rounds(replica, manager, 4, 61.0)
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < examples(2048, least=512) << 10
    api.put(large("p"))
    await rounds(replica, manager, 15)
    assert layouts(api) == {"n1": "all-disabled"}


@pytest.mark.parametrize("lacks", ["toleration", "CPU"])
async def test_nodes_that_accept_no_pending_pod_use_up_no_attempt(
    api: ApiServer, start: Start, manager: MigManager, lacks: str
) -> None:
    for number in range(12):
        node = mig_node(f"a{number}", taints=[{"key": "team", "value": "x", "effect": "NoSchedule"}])
        if lacks == "CPU":
            node["spec"]["taints"], node["status"]["allocatable"]["cpu"] = [], "500m"
        api.put(node)
    api.put(mig_node("z"))
    api.put(large("p"))
    await rounds(begin(start), manager, 15)
    assert layouts(api)["z"] == "all-disabled"


async def test_a_mark_of_others_moves_no_pod_where_layouts_do_not_change(
    api: ApiServer, start: Start, manager: MigManager
) -> None:
    api.put(marked("n1", "drain", time.time(), time.time() + 3000))
    api.put(mig_node("n2"))
    api.put(movable("a", "n1"))
    await rounds(begin(start, mig_layouts="off"), manager, 5)
    assert not log(api)
