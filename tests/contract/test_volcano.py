"""Volcano's messages and the answers to them, byte for byte.

The messages in tests/data/volcano are what Volcano's Go types marshal to at commit ed72c7c8
(v1.16.0-alpha.1): two nodes ``a`` and ``b`` with 8 GPUs each, the pod ``low`` with 6 GPUs of ``a``, and the
pod ``waiting`` that requests 4. The outer fields have JSON tags, those inside (``TaskInfo``, ``NodeInfo``)
have none.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from extender.k8s.objects import Node, Pod
from extender.protocol.volcano import VOLCANO_VERBS, TaskStatus
from packing.model.reasons import Reason
from tests.contract.conftest import Start, Stowage
from tests.extender.builders import make_node, make_pod

MESSAGES = Path(__file__).parents[1] / "data" / "volcano"
EVENT = b'{"errorMessage":""}'
NODES = (make_node("a"), make_node("b"))
LOW = make_pod("low", 6, node_name="a", priority=1)
WAITING = make_pod("waiting", 4, priority=1000)


def message(name: str) -> bytes:
    return (MESSAGES / f"{name}.json").read_bytes()


async def send(stowage: Stowage, verb: str, body: bytes | AsyncIterator[bytes]) -> httpx.Response:
    headers = {"content-type": "application/json"}
    return await stowage.http.post(f"/volcano/{verb}", content=body, headers=headers)


async def answer(stowage: Stowage, verb: str, name: str = "") -> bytes:
    response = await send(stowage, verb, message(name or verb))
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    return response.content


async def started(start: Start, *objects: Node | Pod, **settings: Any) -> Stowage:
    return await start(*NODES, *objects, **{"volcano": True, "policy": "best-fit", **settings})


def test_the_keys_that_stowage_reads_are_those_of_the_go_types() -> None:
    predicate = json.loads(message("predicate"))
    assert list(predicate) == ["task", "node"]  # the task first: the message is cut behind it
    assert list(predicate["node"])[:2] == ["Name", "Node"]
    assert {"UID", "NodeName", "Status", "Pod"} <= predicate["task"].keys()
    assert list(json.loads(message("prioritize"))) == ["task", "nodes"]
    assert list(json.loads(message("preemptable"))) == ["evictor", "evictees"]
    for name, status in (
        ("allocate", TaskStatus.ALLOCATED),
        ("pipeline", TaskStatus.PIPELINED),
        ("deallocate", TaskStatus.PENDING),
        ("evict", TaskStatus.RELEASING),
        ("unevict", 32),
    ):
        assert json.loads(message(name))["task"]["Status"] == status


async def test_predicate(start: Start) -> None:
    stowage = await started(start, WAITING)
    assert await answer(stowage, "predicate") == b'{"status":"","code":0}'


async def test_predicate_says_whether_evictions_could_help(start: Start) -> None:
    stowage = await started(start, WAITING, LOW)
    assert await answer(stowage, "predicate") == b'{"status":"not enough free GPUs","code":2}'
    changing = make_node("a", labels={"nvidia.com/mig.config.state": "pending"})
    stowage = await start(changing, WAITING, volcano=True)
    assert await answer(stowage, "predicate") == b'{"status":"MIG reconfiguration in progress","code":3}'


async def test_predicate_of_a_pod_and_a_node_that_are_not_known(start: Start) -> None:
    """The pod is then read from the message; Volcano's watch may be faster than ours."""
    stowage = await started(start, LOW)
    assert await answer(stowage, "predicate") == b'{"status":"not enough free GPUs","code":2}'
    stowage = await start(make_node("c"), WAITING, volcano=True)
    assert json.loads(await answer(stowage, "predicate")) == {"status": Reason.UNKNOWN_NODE.text, "code": 3}


async def test_prioritize_adds_more_than_volcanos_own_scores(start: Start) -> None:
    stowage = await started(start, WAITING, make_pod("other", 2, node_name="b"))
    scores = json.loads(await answer(stowage, "prioritize"))
    assert scores["errorMessage"] == ""
    assert scores["nodeScore"]["b"] == 20_000  # best fit
    assert scores["nodeScore"]["b"] - scores["nodeScore"]["a"] > 1200


@pytest.mark.parametrize("nodes", [b"null", b"[]", b" null ", b"[ ]"])
async def test_prioritize_without_nodes(start: Start, nodes: bytes) -> None:
    """Volcano asks so in its preempt action where no node is a candidate: a nil slice is null."""
    stowage = await started(start, WAITING)
    task = json.dumps(json.loads(message("prioritize"))["task"]).encode()
    response = await send(stowage, "prioritize", b'{"task":%b,"nodes":%b}' % (task, nodes))
    assert response.json() == {"nodeScore": {}, "errorMessage": ""}


async def test_other_spaces_and_another_order_are_the_same_message(start: Start) -> None:
    stowage = await started(start, WAITING, LOW)
    for verb, expected in (
        ("predicate", {"status": "not enough free GPUs", "code": 2}),
        ("prioritize", None),
    ):
        usual = json.loads(await answer(stowage, verb))
        assert expected is None or usual == expected
        turned = dict(reversed(json.loads(message(verb)).items()))
        assert (await send(stowage, verb, json.dumps(turned, indent=1).encode())).json() == usual


async def test_prioritize_of_a_pod_without_gpus_is_no_error(start: Start) -> None:
    """Volcano fails the call where the map is null."""
    stowage = await started(start, make_pod("waiting", 0))
    assert await answer(stowage, "prioritize") == b'{"nodeScore":{},"errorMessage":""}'


async def test_prioritize_before_an_eviction_prefers_the_cheapest(start: Start) -> None:
    high = make_pod("high", 8, node_name="b", priority=900)
    stowage = await started(start, WAITING, LOW, high)
    scores = json.loads(await answer(stowage, "prioritize"))["nodeScore"]
    assert scores == {"a": 20_000, "b": 18_000}


@pytest.mark.parametrize("verb", ["preemptable", "reclaimable"])
async def test_victims_come_back_unchanged(start: Start, verb: str) -> None:
    """Volcano goes on with these objects: it reads their pod, job and resources."""
    stowage = await started(start, WAITING, LOW)
    reply = json.loads(await answer(stowage, verb))
    assert list(reply) == ["status", "victims"]
    assert reply == {"status": 1, "victims": json.loads(message(verb))["evictees"]}


@pytest.mark.parametrize("verb", ["preemptable", "reclaimable"])
async def test_no_victims(start: Start, verb: str) -> None:
    protected = make_pod("low", 6, node_name="a", priority=2000)
    stowage = await started(start, WAITING, protected)
    assert await answer(stowage, verb) == b'{"status":-1,"victims":[]}'
    stowage = await started(start, make_pod("waiting", 0, priority=1000), LOW)
    assert await answer(stowage, verb) == b'{"status":0,"victims":[]}'  # no opinion about pods without GPUs


async def test_a_gang_is_placed_undone_and_placed(start: Start) -> None:
    """Volcano tries places, undoes them all, and repeats those that it has chosen."""
    stowage = await started(start, WAITING, make_pod("other", 5))
    for _ in range(2):
        assert await answer(stowage, "allocate") == EVENT
        assert await free(stowage, "b") == 4
        other = (
            message("predicate").replace(b"uid-waiting", b"uid-other").replace(b'"Name":"a"', b'"Name":"b"')
        )
        assert json.loads((await send(stowage, "predicate", other)).content)["code"] == 2
        assert await answer(stowage, "deallocate") == EVENT
        assert await free(stowage, "b") == 8
        assert json.loads((await send(stowage, "predicate", other)).content)["code"] == 0
    assert await answer(stowage, "allocate") == EVENT
    assert await answer(stowage, "onSessionClose") == b"{}"
    assert await free(stowage, "b") == 4  # Volcano binds the pod now


async def test_an_eviction_makes_room_for_those_who_wait_and_for_no_other(start: Start) -> None:
    stowage = await started(start, WAITING, LOW)
    assert await answer(stowage, "deallocate", "evict") == EVENT
    assert await answer(stowage, "predicate") == b'{"status":"","code":0}'
    at_once = message("pipeline").replace(b'"Status":4', b'"Status":2')
    response = await send(stowage, "allocate", at_once)
    assert response.content == b'{"errorMessage":"not enough free GPUs"}'
    assert await answer(stowage, "allocate", "pipeline") == EVENT
    assert await answer(stowage, "allocate", "unevict") == EVENT
    assert await answer(stowage, "predicate") == b'{"status":"not enough free GPUs","code":2}'


async def test_a_pod_that_is_not_known_is_not_allocated(start: Start) -> None:
    stowage = await started(start)
    assert await answer(stowage, "allocate") == b'{"errorMessage":"Stowage has not observed this pod yet"}'


@pytest.mark.parametrize("verb", ["onSessionOpen", "onSessionClose"])
async def test_a_session_sends_the_whole_cluster_and_nobody_reads_it(start: Start, verb: str) -> None:
    """Where this call fails, Volcano schedules without the extender: it must not be too large."""
    stowage = await started(start, body_limit_mib=1)
    assert await answer(stowage, verb) == b"{}"
    assert (await send(stowage, verb, b"x" * (2 << 20))).content == b"{}"


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_prioritize_is_read_in_chunks_of_any_size(start: Start, size: int) -> None:
    stowage = await started(start, WAITING, make_pod("other", 2, node_name="b"))
    usual = await answer(stowage, "prioritize")
    assert b'"a":' in usual
    assert b'"b":' in usual
    for body in (message("prioritize"), json.dumps(json.loads(message("prioritize")), indent=1).encode()):

        async def chunks(body: bytes = body) -> AsyncIterator[bytes]:
            for at in range(0, len(body), size):
                yield body[at : at + size]

        assert (await send(stowage, "prioritize", chunks())).content == usual


async def test_prioritize_of_many_nodes_with_many_pods_is_not_too_large(start: Start) -> None:
    """Volcano places no pod where the call fails."""
    stowage = await started(start, WAITING, body_limit_mib=1)
    body = message("prioritize").strip()
    with_images = body.replace(b'"Tasks":{', b'"Tasks":{"x":"%b",' % (b"y" * (2 << 20)))
    assert len(with_images) > 4 << 20
    assert (await send(stowage, "prioritize", with_images)).content == await answer(stowage, "prioritize")
    endless = body[:-2] + b',{"Name":"c","Node":{}}' * 60_000 + b"]}"
    assert (await send(stowage, "prioritize", endless)).status_code == 413


async def test_it_is_off_by_default(start: Start) -> None:
    stowage = await start(*NODES, WAITING)
    for verb in VOLCANO_VERBS:
        assert (await stowage.http.post(f"/{verb}", content=b"{}")).status_code == 404, verb


async def test_refusals_are_statuses(start: Start) -> None:
    """What Volcano does then is its ``extender.ignorable``."""
    json_headers = {"content-type": "application/json"}
    starting = await start(*NODES, volcano=True, ready=False)
    stowage = await start(*NODES, volcano=True)
    for verb in VOLCANO_VERBS:
        early = await starting.http.post(f"/{verb}", content=b"{}", headers=json_headers)
        assert early.status_code == 503, verb
        response = await stowage.http.post(f"/{verb}", content=b"{}", headers={"content-type": "text/plain"})
        assert response.status_code == 400, verb
        assert await stowage.metric(f'stowage_verb_results_total{{result="bad_message",verb="{verb}"}}') == 1


async def free(stowage: Stowage, node: str) -> int:
    engine = stowage.service.engine
    assert engine is not None
    fleet = engine.state.fleet
    return int(fleet.arrays.free_devices[fleet.names.resources["nvidia.com/gpu"], fleet.rows[node]])
