"""Probes and verbs need no FastAPI; all else makes it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from unittest.mock import Mock

import httpx
import pytest

from extender.server.front import Front
from extender.server.service import Service
from extender.settings import Settings
from extender.source.snapshot import Snapshot, SnapshotSource
from tests.contract.conftest import manifest
from tests.extender.builders import make_node


@pytest.fixture
def service() -> Service:
    return Service(Settings(), SnapshotSource(Snapshot({"a": make_node("a")}), "test"), "1.2.3")


def client(app: object) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://stowage")  # type: ignore[arg-type]


def test_a_server_that_starts_has_not_imported_fastapi() -> None:
    code = "import sys, extender.server.run, extender.server.service; sys.exit('fastapi' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_probes_and_verbs_are_answered_before_the_other_routes_are_made(service: Service) -> None:
    front = Front(service)
    async with client(front) as http:
        assert (await http.get("/healthz")).text == "ok"
        starting = await http.get("/readyz")
        assert starting.status_code == 503
        assert "[-]informer-sync failed: kernels are being compiled\n" in starting.text
        refused = await http.post("/scheduler/filter", json={})
        assert refused.json()["Error"] == "Stowage is not ready: kernels are being compiled"
        await service.start()
        assert (await http.get("/readyz")).text == "ok"
        answer = await http.post(
            "/scheduler/filter", json={"Pod": manifest(), "Nodes": None, "NodeNames": ["a"]}
        )
        assert answer.json()["NodeNames"] == ["a"]
        assert front._app is None


@pytest.mark.parametrize("path", ["/version", "/metrics", "/debug/overview", "/"])
async def test_whoever_asks_for_another_route_has_it_made(service: Service, path: str) -> None:
    await service.start()
    async with client(Front(service)) as http:
        assert [(await http.get(path)).status_code for _ in range(2)] == [200, 200]
        assert (await http.get("/no")).status_code == 404


@pytest.mark.parametrize(("path", "status"), [("/healthz", 200), ("/readyz", 503)])
async def test_probes_answer_the_same_before_and_after(service: Service, path: str, status: int) -> None:
    front = Front(service)
    async with client(front) as http:
        early = [(await http.request(method, path)).status_code for method in ("GET", "HEAD", "POST")]
        await front.made()
        late = [(await http.request(method, path)).status_code for method in ("GET", "HEAD", "POST")]
    assert early == late == [status, status, 404]


async def test_the_length_of_a_refusal_is_in_bytes(service: Service) -> None:
    """A host that is no ASCII is quoted, and a wrong length would end the connection."""
    async with client(Front(service)) as http:
        refused = await http.get("/debug", headers={b"host": b"\xe9vil.example"})
    assert (refused.status_code, int(refused.headers["content-length"])) == (421, len(refused.content))


async def test_routes_are_made_once_the_service_is_ready(service: Service) -> None:
    front = Front(service)
    making = asyncio.create_task(front.make_when_ready())
    await asyncio.sleep(0.1)
    assert front._app is None
    await service.start()
    await making
    assert front._app is not None


async def test_a_caller_that_leaves_does_not_stop_the_making(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    front = Front(service)
    make = Mock(side_effect=front._make)
    monkeypatch.setattr(front, "_make", make)
    first = asyncio.create_task(front.made())
    await asyncio.sleep(0)
    first.cancel()
    assert await front.made() is await front.made()
    assert make.call_count == 1


async def test_routes_that_could_not_be_made_are_made_for_the_next_one(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    front = Front(service)

    def fail() -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(front, "_make", fail)
        with pytest.raises(MemoryError):
            await front.made()
    async with client(front) as http:
        assert (await http.get("/version")).status_code == 200


async def test_other_methods_on_the_path_of_a_verb_are_405(service: Service) -> None:
    async with client(Front(service)) as http:
        assert (await http.get("/scheduler/filter")).status_code == 405
