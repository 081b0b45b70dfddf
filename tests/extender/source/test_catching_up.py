"""After an interruption, requests wait until missed events have been delivered."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from extender.k8s.objects import Event, Upserted
from extender.source import apiserver as kube
from extender.source.apiserver import KubeSource
from extender.source.interface import Backlog
from extender.source.reflector import Backoff
from tests.extender.apiserver import PATIENT, ApiServer, pod, source_of

PODS = "/api/v1/pods"


class Delivered:
    """The keys of delivered objects, applied in the event loop as in the service."""

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self._loop = asyncio.get_running_loop()

    def apply(self, events: Sequence[Event]) -> None:
        self._loop.call_soon_threadsafe(self._take, events)

    def _take(self, events: Sequence[Event]) -> None:
        self.keys |= {event.obj.key for event in events if isinstance(event, Upserted)}


@pytest.fixture
def api(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    monkeypatch.setattr(Backoff, "SHORTEST", 60.0)  # so that only retry_now retries
    api.put(pod("p0"))
    return api


@pytest.fixture
async def source(api: ApiServer, tmp_path: Path) -> AsyncIterator[KubeSource]:
    source = source_of(api, tmp_path, timeouts=replace(PATIENT, catch_up=10.0))
    yield source
    source.stop()


@pytest.fixture
async def delivered(source: KubeSource) -> Delivered:
    delivered = Delivered()
    source.start(delivered.apply)
    assert await source.caught_up()
    await Backlog().applied()  # the threads may have delivered before the loop had its first turn
    assert delivered.keys == {"ml/p0"}
    return delivered


async def test_missed_events_are_delivered_before_it_has_caught_up(
    api: ApiServer, source: KubeSource, delivered: Delivered
) -> None:
    api.stop()
    api.pods.put(pod("p1"))
    api.start()
    await broken(source)
    assert await source.caught_up()
    assert delivered.keys == {"ml/p0", "ml/p1"}


async def test_a_connection_for_each_answer_works_too(api: ApiServer, source: KubeSource) -> None:
    api.one_answer_each = True
    delivered = Delivered()
    source.start(delivered.apply)
    assert await source.caught_up()
    assert await source.caught_up()
    api.hang_up()
    api.pods.put(pod("p1"))
    assert await source.caught_up()
    assert delivered.keys == {"ml/p0", "ml/p1"}


async def test_an_unreachable_server_counts_as_caught_up(
    api: ApiServer, source: KubeSource, delivered: Delivered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source.rest, "timeouts", replace(PATIENT, catch_up=3600))
    assert source.interruption() is None
    api.stop()
    await broken(source)
    async with asyncio.timeout(60):
        assert await source.caught_up()
    interruption = source.interruption()
    assert interruption
    assert interruption.ended_at is None
    api.start()


async def test_a_server_that_refuses_counts_as_behind(
    api: ApiServer, source: KubeSource, delivered: Delivered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source.rest, "timeouts", replace(PATIENT, catch_up=0.3))
    api.script[PODS].extend(["403"] * 1000)  # as while it starts, and has not loaded who may do what
    api.hang_up()
    await broken(source)
    assert not await source.caught_up()
    api.script[PODS].clear()
    async with asyncio.timeout(60):
        while not await source.caught_up():
            pass


async def test_only_the_first_call_waits_for_a_silent_server(
    api: ApiServer, source: KubeSource, delivered: Delivered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source.rest, "timeouts", replace(PATIENT, catch_up=0.3))
    monkeypatch.setattr(kube, "_NOT_WAITING", 60.0)
    port = int(api.url.rpartition(":")[2])
    api.stop()
    with socket.create_server(("127.0.0.1", port)):
        await broken(source)
        assert await source.caught_up()
        monkeypatch.setattr(source.rest, "timeouts", replace(PATIENT, catch_up=3600))
        async with asyncio.timeout(60):
            for _ in range(100):
                assert await source.caught_up()
    api.start()


async def broken(source: KubeSource) -> None:
    """Wait until all reflectors have noticed."""
    for reflector in (source._reflectors[kind] for kind in ("Node", "Pod")):
        while reflector.is_open:
            await asyncio.sleep(0.001)
