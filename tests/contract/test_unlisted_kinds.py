"""A service beside an API server that cannot list all kinds."""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import chain, product, repeat
from pathlib import Path
from typing import Any

import httpx
import pytest

from extender.server.app import create_app
from extender.server.service import Service
from extender.settings import Settings
from extender.source.reflector import Backoff
from extender.source.watched_kinds import ALWAYS_AWAITED, UNKNOWN, WATCHED_KINDS
from tests.contract.conftest import GPU, Stowage, manifest
from tests.examples import some
from tests.extender.apiserver import PATIENT, ApiServer, node, source_of
from tests.extender.apistore import Store

FAULTS: dict[str, Callable[[], Iterator[str]]] = {
    "500": lambda: repeat("500"),
    "503": lambda: repeat("503"),
    "429": lambda: repeat("429"),
    "no answer": lambda: repeat("headless"),
    "half a page": lambda: repeat("silent"),
    "a broken connection": lambda: repeat("cut"),
    "half of the chunks": lambda: repeat("cut chunks"),
    "no JSON": lambda: repeat("garbage"),
    "half a list": lambda: chain([""], repeat("500")),
}
JOB_SETS = WATCHED_KINDS["JobSet"]


class Script(deque[str]):
    """What happens to all further requests."""

    def __init__(self, faults: Iterator[str]) -> None:
        super().__init__(["more"])
        self._faults = faults

    def popleft(self) -> str:
        return next(self._faults)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """An API server that serves all kinds, with several objects each. The watches retry soon."""
    monkeypatch.setattr(Backoff, "LONGEST", 0.5)
    server = ApiServer()
    for watched in WATCHED_KINDS.values():
        server.stores.setdefault(watched.path, Store())
        for name in () if watched.kind in ALWAYS_AWAITED else ("a", "b", "c"):
            server.stores[watched.path].put({"metadata": {"name": name}, "spec": {}})
    allocatable = {"cpu": "8", "memory": "64Gi", "pods": "110", GPU: "8"}
    server.put(node("a") | {"status": {"allocatable": allocatable}})
    server.start()
    yield server
    server.stop()


@asynccontextmanager
async def started(api: ApiServer, directory: Path, first_list: float = 0.1) -> AsyncIterator[Stowage]:
    timeouts = replace(PATIENT, first_list=first_list)
    service = Service(Settings(), source_of(api, directory, timeouts=timeouts), "1.2.3")
    task = asyncio.create_task(service.run())
    transport = httpx.ASGITransport(create_app(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://stowage") as client:
        yield Stowage(service, client)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.02)


async def problems(stowage: Stowage) -> dict[str, dict[str, Any]]:
    found = (await stowage.http.get("/debug/problems?limit=1000")).json()["problems"]
    return {problem["about"]: problem for problem in found if problem["kind"] in ("watch", "right")}


async def unsynced(stowage: Stowage) -> set[str]:
    text = (await stowage.http.get("/metrics")).text
    return {*re.findall(r'^stowage_synced\{resource="(.+)"\} 0.0$', text, re.MULTILINE)}


@pytest.mark.parametrize("fault", some(FAULTS))
async def test_no_kind_that_may_be_unknown_keeps_stowage_from_being_ready(
    api: ApiServer, tmp_path: Path, fault: str
) -> None:
    unknown = {kind: WATCHED_KINDS[kind] for kind in UNKNOWN if kind in WATCHED_KINDS}
    names = {watched.full_resource for watched in unknown.values()}
    for watched in unknown.values():
        api.script[watched.path] = Script(FAULTS[fault]())
    async with started(api, tmp_path) as stowage:
        await until(lambda: not stowage.service.missing())
        assert stowage.service.engine
        state = stowage.service.engine.state
        assert state.unlisted.keys() == unknown.keys()
        assert b'"NodeNames":["a"]' in await stowage.filter(manifest(), ["a"])
        await until(lambda: all("no complete list" not in kind.why for kind in state.unlisted.values()))
        ready = await stowage.http.get("/readyz")
        assert ready.status_code == 200
        listed = [line for line in ready.text.splitlines() if " cannot be listed (" in line]
        assert {line.partition(" ")[0] for line in listed} == names
        assert max(map(len, listed)) < 1000
        shown = await problems(stowage)
        for watched in unknown.values():
            assert UNKNOWN[watched.kind] in shown[watched.full_resource]["advice"]
        if fault.isdigit():
            assert {problem["text"] for problem in shown.values()} == {f"{fault} scripted"}
        answer = (await stowage.http.post("/debug/explain", content=json.dumps(manifest()))).json()
        assert "deviceclasses.resource.k8s.io cannot be listed (" in " ".join(answer["hints"])
        top = (await stowage.http.get("/debug/overview")).json()
        assert "deviceclasses.resource.k8s.io cannot be listed (" in " ".join(top["overview"]["unread"])
        assert await unsynced(stowage) == names
        for watched in unknown.values():
            api.script[watched.path] = deque()
        await until(lambda: not state.unlisted)
        assert (await stowage.http.get("/readyz")).text == "ok"
        async with asyncio.timeout(60):
            while await problems(stowage):  # each watch opens after the list
                await asyncio.sleep(0.1)
        assert {group.name for group in state.gangs.pod_groups()} == {"a", "b", "c"}
        assert not await unsynced(stowage)


@pytest.mark.parametrize(
    ("kind", "fault"), some(product(sorted(ALWAYS_AWAITED), ["500", "no answer", "half a page"]), 5)
)
async def test_kinds_that_could_over_commit_are_awaited_without_end(
    api: ApiServer, tmp_path: Path, kind: Any, fault: str
) -> None:
    watched = WATCHED_KINDS[kind]
    api.script[watched.path] = Script(FAULTS[fault]())
    async with started(api, tmp_path, first_list=0) as stowage:
        others = WATCHED_KINDS.keys() - {kind}
        await until(lambda: stowage.service.engine is not None)
        assert stowage.service.engine
        state = stowage.service.engine.state
        await until(lambda: others <= state.synced and ": " in stowage.service.missing())
        await asyncio.sleep(1)  # the time limits were looked at
        ready = await stowage.http.get("/readyz")
        assert ready.status_code == 503
        assert f"[-]informer-sync failed: {watched.full_resource} are not listed yet: " in ready.text
        assert f"{watched.full_resource} are not listed yet: ".encode() in await stowage.filter(
            manifest(), ["a"]
        )
        api.script[watched.path] = deque()
        await until(lambda: not stowage.service.missing())


async def test_before_its_time_is_over_a_broken_kind_is_named_and_awaited(
    api: ApiServer, tmp_path: Path
) -> None:
    api.script[JOB_SETS.path] = Script(FAULTS["500"]())
    async with started(api, tmp_path, first_list=3600) as stowage:
        text = "jobsets.jobset.x-k8s.io are not listed yet: 500 scripted"
        await until(lambda: stowage.service.missing() == text)
        api.script[JOB_SETS.path] = deque()
        await until(lambda: not stowage.service.missing())
        assert (await stowage.http.get("/readyz")).text == "ok"


async def test_an_api_server_that_is_down_makes_no_kind_unknown(api: ApiServer, tmp_path: Path) -> None:
    """Its time begins when the kinds that are always awaited have arrived."""
    api.stop()
    async with started(api, tmp_path, first_list=0.5) as stowage:
        await until(lambda: stowage.service.engine is not None)
        await asyncio.sleep(1.5)
        assert stowage.service.engine
        assert not stowage.service.engine.state.synced
        api.start()
        await until(lambda: not stowage.service.missing())
        assert not stowage.service.engine.state.unlisted


async def test_a_kind_that_breaks_later_remains_known(api: ApiServer, tmp_path: Path) -> None:
    async with started(api, tmp_path) as stowage:
        await until(lambda: not stowage.service.missing())
        assert stowage.service.engine
        state = stowage.service.engine.state
        api.script[JOB_SETS.path] = Script(FAULTS["500"]())
        api.hang_up()
        about, text = "jobsets.jobset.x-k8s.io", ""
        async with asyncio.timeout(60):
            while not text.startswith("500 "):
                shown = (await problems(stowage)).get(about, {"text": "", "advice": ""})
                text = shown["text"]
                await asyncio.sleep(0.02)
        assert "last known state" in shown["advice"]
        assert {group.name for group in state.gangs.pod_groups() if group.kind == "JobSet"} == {"a", "b", "c"}
        assert not state.unlisted
        assert (await stowage.http.get("/readyz")).text == "ok"


@pytest.mark.parametrize(
    ("answers", "names"),
    [
        (repeat(""), {"a", "b", "c"}),  # the second page
        (chain(["410"], repeat("")), {"a", "b", "c"}),  # another list
        (repeat("404"), set()),  # the kind was removed
    ],
)
async def test_half_a_list_of_a_kind_is_not_used(
    api: ApiServer, tmp_path: Path, answers: Iterable[str], names: set[str]
) -> None:
    api.script[JOB_SETS.path] = Script(FAULTS["half a list"]())
    async with started(api, tmp_path) as stowage:
        await until(lambda: not stowage.service.missing())
        assert stowage.service.engine
        state = stowage.service.engine.state
        assert state.unlisted.keys() == {"JobSet"}
        assert not {group.name for group in state.gangs.pod_groups() if group.kind == "JobSet"}
        api.script[JOB_SETS.path] = Script(iter(answers))
        await until(lambda: not state.unlisted)
        assert {group.name for group in state.gangs.pod_groups() if group.kind == "JobSet"} == names
