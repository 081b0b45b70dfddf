"""Two replicas behind one address: which is ready, which binds, which closes connections."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import generate_latest

from extender.server.app import create_app
from extender.server.service import Service
from extender.settings import Settings
from extender.source.errors import Unavailable
from extender.source.snapshot import Snapshot, SnapshotSource
from tests.contract.conftest import GPU, Stowage, manifest
from tests.extender.apiserver import ApiServer, source_of
from tests.extender.builders import make_pod

ALLOCATABLE = {GPU: "8", "cpu": "64", "memory": "256Gi", "pods": "100"}
Replica = Callable[[], Stowage]


@pytest.fixture
def api() -> Iterator[ApiServer]:
    server = ApiServer()
    server.start()
    server.put({"metadata": {"name": "a", "uid": "u-a"}, "status": {"allocatable": ALLOCATABLE}})
    server.put(manifest())
    yield server
    server.stop()


@pytest.fixture
async def replica(api: ApiServer, tmp_path: Path) -> AsyncIterator[Replica]:
    """Starts another replica."""
    async with AsyncExitStack() as stack:
        settings = Settings(bind=True, leader_election="gpu/stowage", lease_seconds=5)

        def starting() -> Stowage:
            service = Service(settings, source_of(api, tmp_path), "1.2.3")
            running = asyncio.create_task(service.run())
            stack.push_async_callback(ended, running)
            client = httpx.AsyncClient(
                transport=httpx.ASGITransport(create_app(service)), base_url="http://stowage"
            )
            stack.push_async_callback(client.aclose)
            return Stowage(service, client)

        yield starting


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def ready(stowage: Stowage) -> str:
    """What ``/readyz`` says: ok, or why not."""
    text = (await stowage.http.get("/readyz")).text
    return "; ".join(re.findall("failed: (.*)", text)) or text


async def becomes(stowage: Stowage, text: str) -> None:
    async with asyncio.timeout(120):
        while await ready(stowage) != text:
            await asyncio.sleep(0.02)


def filter_message() -> dict[str, Any]:
    return {"Pod": manifest(), "Nodes": None, "NodeNames": ["a"]}


async def test_only_the_leader_is_ready_and_binds(api: ApiServer, replica: Replica) -> None:
    leader = replica()
    await becomes(leader, "ok")
    other = replica()
    await becomes(other, "another replica is the leader")
    assert (
        await other.bind(manifest(), "a")
        == b'{"Error":"Stowage is not ready: another replica is the leader"}'
    )
    assert await other.metric('stowage_verb_results_total{result="not_ready",verb="bind"}') == 1
    assert await leader.bind(manifest(), "a") == b'{"Error":""}'
    assert [await one.metric("stowage_leader") for one in (leader, other)] == [1, 0]


async def test_other_replicas_answer_and_close_the_connection(replica: Replica) -> None:
    """kube-scheduler keeps its connections, and a Service balances connections, not requests."""
    leader = replica()
    await becomes(leader, "ok")
    other = replica()
    await becomes(other, "another replica is the leader")
    near, far = [await one.post("filter", filter_message()) for one in (leader, other)]
    assert near.json()["NodeNames"] == far.json()["NodeNames"] == ["a"]
    assert "connection" not in near.headers
    assert far.headers["connection"] == "close"
    assert (await other.http.get("/debug/nodes")).status_code == 200


async def test_every_replica_says_which_one_has_the_decisions(api: ApiServer, replica: Replica) -> None:
    """Both run on this machine, so they have one name; the Lease says who leads."""
    leader = replica()
    await becomes(leader, "ok")
    other = replica()
    await becomes(other, "another replica is the leader")
    await leader.post("filter", filter_message())
    near, far = [(await one.http.get("/debug/pods/default/train")).json() for one in (leader, other)]
    holder = api.leases.objects["gpu/stowage"]["spec"]["holderIdentity"]
    name = holder.rpartition("_")[0]
    assert (near["replica"], far["replica"]) == (
        {"name": name, "leads": True, "leader": name},
        {"name": name, "leads": False, "leader": name},
    )
    assert [one["verb"] for one in near["decisions"]] == ["filter"]
    assert far["decisions"] == []
    assert f"kube-scheduler calls the leader, {name}" in far["note"]


async def test_a_leaving_leader_releases_the_lease_and_refuses_binds(
    api: ApiServer, replica: Replica
) -> None:
    leader, other = replica(), replica()
    for one in (leader, other):
        async with asyncio.timeout(120):
            while one.service.missing():
                await asyncio.sleep(0.02)
    while "ok" not in {await ready(leader), await ready(other)}:
        await asyncio.sleep(0.02)
    if await ready(other) == "ok":
        leader, other = other, leader
    leaving = asyncio.create_task(leader.service.leave())
    await asyncio.sleep(0)
    assert (await ready(leader)).startswith("draining")
    assert b"not ready" in await leader.bind(manifest(), "a")
    await leaving
    await becomes(other, "ok")
    assert await other.bind(manifest(), "a") == b'{"Error":""}'
    assert api.pods.objects["default/train"]["spec"]["nodeName"] == "a"


async def test_a_caller_that_hangs_up_gets_no_binding() -> None:
    """It may have exited, and the new leading scheduler asks another replica."""

    class Behind(SnapshotSource):
        async def caught_up(self, recent: float = 0.0) -> bool:
            waiting.set()
            return await asyncio.Event().wait()

    waiting = asyncio.Event()
    service = Service(
        Settings(bind=True), Behind(Snapshot(pods={"default/train": make_pod("train")}), ""), "1"
    )
    await service.start()
    request = {"PodName": "train", "PodNamespace": "default", "PodUID": "uid-train", "Node": "a"}
    messages = iter([{"type": "http.request", "body": json.dumps(request).encode()}])

    async def receive() -> MutableMapping[str, Any]:
        if (message := next(messages, None)) is None:
            await waiting.wait()
        return message or {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        """Nobody listens."""

    scope = {"type": "http", "method": "POST", "path": "/scheduler/bind", "http_version": "1.0"}
    async with asyncio.timeout(60):
        await create_app(service)(
            scope | {"headers": [(b"content-type", b"application/json")]}, receive, send
        )
    assert b'result="hung_up",verb="bind"} 1.0' in generate_latest(service.metrics.registry)


def test_a_snapshot_has_no_lease() -> None:
    with pytest.raises(Unavailable, match="leader_election: a snapshot has no API server"):
        Service(Settings(leader_election="gpu/stowage"), SnapshotSource(Snapshot(), "test"), "1.2.3")
