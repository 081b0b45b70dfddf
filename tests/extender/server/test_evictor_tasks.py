"""The evictor within the service: one of two replicas evicts, and a snapshot has no evictor."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from extender.evictor import book, large_jobs
from extender.server import leader_elector
from extender.server.service import Service
from extender.settings import Settings
from extender.source.errors import Unavailable
from extender.source.snapshot import Snapshot, SnapshotSource
from tests.extender.apiserver import ApiServer, source_of
from tests.extender.evictor.replica import UNHURRIED, node, pod, until

Start = Callable[..., Service]


@pytest.fixture
def api(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    monkeypatch.setattr(book, "SETTLE", 0.0)
    monkeypatch.setattr(leader_elector, "RETRY", 1 / 150)  # the other replica takes over soon
    api.put(node("n1"))
    api.put(pod("v", "n1"))
    api.put(pod("p"))
    api.evictions.config_maps.put({"metadata": {"namespace": "gpu", "name": "shield"}})
    return api


@pytest.fixture
async def start(api: ApiServer, tmp_path: Path) -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        def starting(**settings: Any) -> Service:
            given = {"evictor": "on", "lease_seconds": 60, "shield_configmap": "gpu/shield"} | settings
            service = Service(Settings(**given), source_of(api, tmp_path, timeouts=UNHURRIED), "1.2.3")
            stack.push_async_callback(ended, asyncio.create_task(service.run()))
            return service

        yield starting


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def ask(service: Service, name: str = "p") -> bytes:
    """A filter request of kube-scheduler, from which the evictor learns the scheduler's name."""
    message = {"Pod": pod(name), "Nodes": None, "NodeNames": ["n1"]}
    return (await service.answer("filter", json.dumps(message).encode())).body


def evicted(api: ApiServer) -> list[str]:
    return [key for action, key, _ in api.evictions.log if action == "evict"]


@pytest.mark.parametrize("lease", ["evictor_lease", "leader_election"])
async def test_one_of_two_replicas_evicts_and_the_other_takes_over(
    api: ApiServer, start: Start, lease: str
) -> None:
    replicas = [start(**{lease: "gpu/stowage"}) for _ in range(2)]
    for service in replicas:
        await until(lambda service=service: not service.missing(), within=120)  # type: ignore[misc]
    assert evicted(api) == []  # no scheduler has asked yet
    for service in replicas:
        assert b"not enough free GPUs" in await ask(service)
    await until(lambda: len(evicted(api)) == 1)
    leaders = [service for service in replicas if service._evictor_elector.is_leader]  # type: ignore[union-attr]
    assert len(leaders) == 1
    if lease == "evictor_lease":  # it does not decide who is ready
        assert [service.waiting_for() for service in replicas] == ["", ""]
    counted = b'stowage_evictor_evictions_total{result="evicted"} 1.0'
    await until(lambda: counted in generate_latest(leaders[0].metrics.registry))
    assert api.pods.objects["ml/p"]["status"]["nominatedNodeName"] == "n1"
    await leaders[0].leave()
    api.put(node("n2"))
    api.put(pod("w", "n2"))
    api.put(pod("q"))
    await until(lambda: len(evicted(api)) == 2)
    assert evicted(api) == ["ml/v", "ml/w"]


async def test_the_scheduler_of_the_settings_needs_no_request(api: ApiServer, start: Start) -> None:
    """On a full cluster kube-scheduler may never ask. By default the scheduler is called stowage."""
    api.put(pod("p", schedulerName="stowage"))
    start(evictor_lease="gpu/stowage")
    await until(lambda: len(evicted(api)) == 1)


async def test_a_node_is_reserved_and_all_replicas_refuse_it_to_others(api: ApiServer, start: Start) -> None:
    given = {"evictor": "off", "reserve": "limits", "reserve_after_seconds": 0}
    large = pod("p", gpus=2, schedulerName="stowage")
    large["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    api.put(node("n1", 2))
    api.put(pod("v", "n1", activeDeadlineSeconds=3000))
    api.put(large)
    replicas = [start(**given, evictor_lease="gpu/stowage") for _ in range(2)]
    for service in replicas:
        await until(lambda service=service: not service.missing(), within=120)  # type: ignore[misc]
    for service in replicas:
        await until(lambda service=service: _reserved(service), within=60)  # type: ignore[misc]
        message = {"Pod": pod("q", priority=100), "Nodes": None, "NodeNames": ["n1"]}
        assert (
            b"reserved for ml/p until about"
            in (await service.answer("filter", json.dumps(message).encode())).body
        )


def _reserved(service: Service) -> bool:
    return bool(service.engine and service.engine.state.large_jobs.table.current)


@pytest.mark.parametrize(
    "settings", [{"evictor": "on"}, {"shield_configmap": "gpu/shield"}, {"kueue_priority_boost": True}]
)
def test_a_snapshot_has_no_evictor(settings: dict[str, Any]) -> None:
    given = Settings(evictor_lease="gpu/stowage", **settings)
    with pytest.raises(Unavailable):
        Service(given, SnapshotSource(Snapshot(), "test"), "1.2.3")


async def test_a_node_is_reserved_for_a_member_that_a_running_gang_has_lost(
    api: ApiServer, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the evictor on, also with ``reserve: off``."""
    monkeypatch.setattr(large_jobs, "INTERVAL", 0.05)
    api.put(node("n2"))
    words = {"stowage.dev/gang": "g", "stowage.dev/gang-min": "2"}
    busy, member = pod("v", "n1", priority=100, activeDeadlineSeconds=1000), pod("w", "n2", priority=100)
    lost = pod("p", schedulerName="stowage")
    began, later = (f"{datetime.now(UTC) - timedelta(seconds=age):%Y-%m-%dT%H:%M:%SZ}" for age in (600, 60))
    for manifest in (busy, member):
        manifest["status"]["startTime"] = began
    for manifest in (member, lost):
        manifest["metadata"]["labels"] = words
    lost["metadata"]["creationTimestamp"] = later
    for manifest in (busy, member, lost):
        api.put(manifest)
    service = start(evictor_lease="gpu/stowage")
    await until(lambda: service.engine is not None)
    assert service.engine is not None
    table = service.engine.state.large_jobs
    await until(lambda: [held.nodes for held in table.table.current] == [("n1",)])
