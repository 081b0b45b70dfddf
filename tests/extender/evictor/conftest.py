"""Fixtures: replicas of the evictor that follow an API server on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from extender.settings import Queue
from tests.extender.apiserver import ApiServer
from tests.extender.evictor import planner
from tests.extender.evictor.replica import Replica, Start, node, pod


@pytest.fixture(autouse=True)
def no_event_tells_of_others(api: ApiServer, few_kinds: None) -> Iterator[None]:
    """In every test of the evictor, whatever it is about."""
    yield
    assert api.evictions.told == []


@pytest.fixture
def full_node(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pod v has the only GPU, and p waits for one. Plans come from the slow planner."""
    monkeypatch.setattr("extender.evictor.planner.plan_evictions", planner.plan_evictions)
    for manifest in (node("n1"), pod("v", "n1"), pod("p")):
        api.put(manifest)


@pytest.fixture
async def start(api: ApiServer, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts a replica with these rules of the queue ``low``, and these settings."""
    replicas: list[Replica] = []

    def starting(queue: Queue | None = None, **settings: Any) -> Replica:
        replicas.append(Replica(api, tmp_path, queue or Queue(), **settings))
        return replicas[-1]

    yield starting
    for replica in replicas:
        replica.source.stop()
