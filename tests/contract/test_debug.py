"""The debug endpoint: what is free on nodes, which pods have what, what was decided and why."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from extender.explain.words import ADVICE
from extender.untrusted.limits import KEY
from packing.model.reasons import Reason
from tests.contract.conftest import GPU, Start, Stowage, manifest
from tests.extender.builders import make_node, make_pod

CLUSTER = (
    make_node("a", 8),
    make_node("b", 8),
    make_node("mig", 0, **{"nvidia.com/mig-1g.10gb": "7"}),
    make_pod("holds", 6, node_name="b"),
    make_pod("slice", 2, resource="nvidia.com/mig-1g.10gb", node_name="mig"),
)


async def get(stowage: Stowage, path: str, status: int = 200) -> Any:
    response = await stowage.http.get(path)
    assert response.status_code == status, response.text
    return response.json()


async def test_nodes_show_what_is_free_and_which_pods_have_what(start: Start) -> None:
    stowage = await start(*CLUSTER)
    nodes = {node["name"]: node for node in (await get(stowage, "/debug/nodes"))["nodes"]}
    assert list(nodes) == ["a", "b", "mig"]
    assert nodes["b"] == await get(stowage, "/debug/nodes/b")
    assert [gpu["free_compute_milli"] for gpu in nodes["b"]["gpus"]] == [0] * 6 + [1000] * 2
    assert nodes["b"]["free_cpu_milli"] == 63_000
    assert nodes["b"]["read_from"]["truth"] == "counts"
    assert nodes["b"]["holders"] == [
        {
            "pod": "default/holds",
            "cpu_milli": 1000,
            "memory_mib": 1024,
            "devices": {GPU: 6},
            "gpus": [],
            "device_ids": [],
            "known": "counts",
            "assumed_seconds": None,
            "parts": [],
            "instances": [],
            "source": "request",
        }
    ]


async def test_mig_instances_are_shown_as_slices_of_their_gpu(start: Start) -> None:
    stowage = await start(*CLUSTER)
    node = await get(stowage, "/debug/nodes/mig")
    [pool] = node["pools"]
    assert (pool["resource"], pool["free"], pool["total"]) == ("nvidia.com/mig-1g.10gb", 5, 7)
    assert pool["compute_milli"] == 142
    assert node["gpus"][0]["free_compute_milli"] == 1000 - 2 * 142


async def test_a_device_that_kubelet_reports_is_a_known_placement(start: Start) -> None:
    stowage = await start(make_node("a"), make_pod("p", 1, node_name="a", devices=((GPU, "GPU-1234"),)))
    [holder] = (await get(stowage, "/debug/nodes/a"))["holders"]
    assert (holder["device_ids"], holder["known"]) == (["GPU-1234"], "placement")


async def test_a_node_that_takes_nothing_says_why(start: Start) -> None:
    stowage = await start(
        make_node("full", 1),
        make_pod("one", 1, node_name="full"),
        make_pod("two", 1, node_name="full"),
        make_node("broken", **{GPU: "x"}),
        make_node("changing", labels={"nvidia.com/mig.config.state": "pending"}),
    )
    closed = {node["name"]: node["takes_nothing"] for node in (await get(stowage, "/debug/nodes"))["nodes"]}
    assert closed == {
        "full": Reason.OVERCOMMITTED.text,
        "broken": Reason.UNREADABLE.text,
        "changing": Reason.REPARTITIONING.text,
    }
    assert "node accepts no pods" in (await get(stowage, "/debug/nodes/broken"))["problem"]


async def test_the_last_decisions_about_a_pod(start: Start) -> None:
    stowage = await start(*CLUSTER, bind=True)
    pod = manifest("new", 4)
    await stowage.filter(pod, ["a", "b", "mig", "gone"])
    await stowage.prioritize(pod, ["a"])
    report = await get(stowage, "/debug/pods/default/new")
    assert [decision["verb"] for decision in report["decisions"]] == ["prioritize", "filter"]
    scored, filtered = report["decisions"]
    assert scored["explanation"]["best"][0]["score"] == 10
    assert filtered["answer"] == "1 of 4 nodes fit"
    explanation = filtered["explanation"]
    assert (explanation["nodes"], explanation["fits"]) == (4, 1)
    [option] = explanation["best"]
    assert option["node"] == "a"
    assert sum(option["terms"].values()) == pytest.approx(option["cost"], abs=1)  # up to rounding
    refusals = {one["reason"]: one for one in explanation["refusals"]}
    assert refusals[Reason.NO_FREE_GPUS.text] == {
        "reason": Reason.NO_FREE_GPUS.text,
        "nodes": 1,
        "eviction_helps": True,
        "nearest": "b",
        "lacks": [
            {
                "what": GPU,
                "asked": 4,
                "free": 2,
                "total": 8,
                "text": f"needs 4 {GPU}, 2 of 8 are free",
                "kind": "devices",
            }
        ],
        "advice": ADVICE[Reason.NO_FREE_GPUS],
        "can_host": 1,
        "kind": "NO_FREE_GPUS",
    }
    assert refusals[Reason.UNKNOWN_NODE.text]["nearest"] == "gone"
    await stowage.bind(pod, "a")
    report = await get(stowage, "/debug/pods/default/new")
    assert report["node"] == "a"
    assert report["decisions"][0]["answer"] == "bound to a"
    assert report["now"] is None


async def test_numbers_are_those_of_the_decision(start: Start) -> None:
    stowage = await start(
        make_node("a", 4), make_pod("holds", 3, node_name="a"), make_pod("more", 1), bind=True
    )
    await stowage.filter(manifest("new", 2), ["a"])
    await stowage.bind(manifest("more"), "a")
    report = await get(stowage, "/debug/pods/default/new")
    then = report["decisions"][0]["explanation"]["refusals"][0]["lacks"]
    now = report["now"]["refusals"][0]["lacks"]
    assert [then[0]["free"], now[0]["free"]] == [1, 0]


async def test_a_pod_that_was_never_asked_about_is_answered_live(start: Start) -> None:
    stowage = await start(*CLUSTER, make_pod("waits", 9))
    report = await get(stowage, "/debug/pods/default/waits")
    assert report["decisions"] == []
    assert "has not called Stowage for this pod" in report["note"]
    assert report["now"]["fits"] == 0
    assert {one["reason"] for one in report["now"]["refusals"]} == {
        Reason.TOO_FEW_GPUS.text,
        Reason.NO_SUCH_RESOURCE.text,
    }


async def test_a_pod_that_is_created_again_has_no_decisions(start: Start) -> None:
    stowage = await start(*CLUSTER)
    await stowage.filter(manifest("new"), ["a"])
    await stowage.prioritize(
        manifest("new", metadata={"name": "new", "namespace": "default", "uid": "2"}), ["a"]
    )
    report = await get(stowage, "/debug/pods/default/new")
    assert [decision["verb"] for decision in report["decisions"]] == ["prioritize"]


async def test_decisions_about_another_pod_of_the_same_name_are_not_shown(start: Start) -> None:
    stowage = await start(*CLUSTER, make_pod("new", 9, uid="2"))
    await stowage.filter(manifest("new", metadata={"name": "new", "namespace": "default", "uid": "1"}), ["a"])
    report = await get(stowage, "/debug/pods/default/new")
    assert report["decisions"] == []
    assert "has not called Stowage for this pod" in report["note"]


@pytest.mark.parametrize("kept", [0, 2])
async def test_only_so_many_pods_are_remembered(start: Start, kept: int) -> None:
    stowage = await start(*CLUSTER, decisions_kept=kept)
    for name in ("one", "two", "three"):
        await stowage.filter(manifest(name), ["a"])
    known = [await stowage.http.get(f"/debug/pods/default/{name}") for name in ("one", "two", "three")]
    assert [response.status_code for response in known] == [404] * (3 - kept) + [200] * kept


async def test_what_is_not_known_is_404(start: Start) -> None:
    stowage = await start(*CLUSTER)
    assert (await get(stowage, "/debug/nodes/gone", 404))["detail"] == "node gone is not known"
    assert (await get(stowage, "/debug/pods/a/b", 404))["detail"] == "pod a/b is not known"


@pytest.mark.parametrize("path", ["nodes", "nodes/a", "pods/a/b"])
async def test_before_it_is_ready_it_says_so(start: Start, path: str) -> None:
    stowage = await start(*CLUSTER, ready=False)
    assert (await get(stowage, f"/debug/{path}", 503))["detail"] == "not ready: kernels are being compiled"


async def test_a_path_is_not_echoed_at_length(start: Start) -> None:
    stowage = await start(*CLUSTER)
    for path in ("nodes/" + "n" * 30_000, f"pods/{'n' * 15_000}/{'p' * 15_000}"):
        assert len((await get(stowage, f"/debug/{path}", 404))["detail"]) <= KEY + 30


async def test_a_long_list_lets_other_tasks_run(start: Start) -> None:
    stowage = await start(*(make_node(f"n{i:04}") for i in range(500)))
    listing = asyncio.create_task(stowage.http.get("/debug/nodes"))
    turns = 0
    while not listing.done():
        await asyncio.sleep(0)
        turns += 1
    assert len(json.loads((await listing).content)["nodes"]) == 500
    assert turns >= 500 // 20


async def test_fragmentation_of_the_fleet(start: Start) -> None:
    stowage = await start(*CLUSTER)
    found = await get(stowage, "/debug/fragmentation")
    assert (found["fleet"]["nodes"], found["fleet"]["whole"], found["fleet"]["largest_request"]) == (3, 10, 8)
    assert found["mig"]["H100 SXM5 80GB"]["profiles"] == {"1g.10gb": {"instances": 5, "stranded": 1}}
    assert found["beside_one_gpu"]["cpu_milli"] > 0
    assert found["closed_nodes"] == {}
