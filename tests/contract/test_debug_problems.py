"""``/debug/problems`` of a service that follows an API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from extender.server.app import create_app
from extender.server.service import Service
from extender.settings import Settings
from extender.source.watched_kinds import WATCHED_KINDS
from tests.contract.conftest import GPU, Start
from tests.contract.test_debug import get
from tests.extender.apiserver import ApiServer, node, source_of
from tests.extender.builders import make_node


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, httpx.AsyncClient]]:
    """A service, and its API server, which lets it read nodes and pods only."""
    api = ApiServer()
    api.without_devices = 403
    api.put(node("a"))
    api.start()
    service = Service(Settings(leader_election="gpu/stowage"), source_of(api, tmp_path), "1.2.3")
    task = asyncio.create_task(service.run())
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(service)), base_url="http://stowage"
    ) as client:
        async with asyncio.timeout(120):
            while service.missing():
                await asyncio.sleep(0.02)
        yield api, client
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    api.stop()


async def eventually(client: httpx.AsyncClient, done: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            found: dict[str, Any] = (await client.get("/debug/problems")).json()
            if done(found):
                return found
            await asyncio.sleep(0.05)


async def test_missing_rights_and_failing_watches(running: tuple[ApiServer, httpx.AsyncClient]) -> None:
    api, client = running
    optional = {one.full_resource for one in WATCHED_KINDS.values() if one.optional}
    found = await eventually(client, lambda found: found["counts"].get("right", 0) == len(optional))
    about = {one["about"]: one for one in found["problems"]}
    assert about.keys() >= optional
    assert about["poddisruptionbudgets.policy"]["text"].startswith("403 ")
    api.banned.add("secret")
    found = await eventually(client, lambda found: "the Lease" in {one["about"] for one in found["problems"]})
    (lease,) = [one for one in found["problems"] if one["about"] == "the Lease"]
    assert lease["kind"] == "right"
    api.stop()
    found = await eventually(
        client, lambda found: {"nodes", "pods"} <= {one["about"] for one in found["problems"]}
    )
    assert {one["kind"] for one in found["problems"] if one["about"] in ("nodes", "pods")} == {"watch"}
    api.banned.clear()
    api.start()
    await eventually(
        client,
        lambda found: not {"nodes", "pods", "the Lease"} & {one["about"] for one in found["problems"]},
    )


async def test_the_answer_is_bounded(start: Start) -> None:
    stowage = await start(*(make_node(f"n{number}", **{GPU: "x"}) for number in range(5)))
    answer = await get(stowage, "/debug/problems?limit=2")
    assert (answer["counts"], len(answer["problems"]), answer["more"]) == ({"node": 5}, 2, 3)
    await get(stowage, "/debug/problems?limit=1001", 422)
    for problem in answer["problems"]:
        assert problem["advice"]
