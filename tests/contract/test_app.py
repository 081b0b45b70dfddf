"""The application of a port: one for probes, verbs and all else, described by ``/openapi.json``."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import pytest

from extender.protocol.messages import MESSAGES, VERBS
from extender.server.app import create_app
from extender.server.service import Service
from extender.settings import Settings
from extender.source.snapshot import Snapshot, SnapshotSource
from tests.contract.conftest import Start, manifest
from tests.extender.builders import make_node, make_pod


@pytest.fixture
def service() -> Service:
    return Service(Settings(), SnapshotSource(Snapshot({"a": make_node("a")}), "test"), "1.2.3")


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://stowage")


async def test_probes_and_verbs_are_answered_while_the_service_starts(service: Service) -> None:
    async with client(create_app(service)) as http:
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


@pytest.mark.parametrize("path", ["/version", "/metrics", "/debug/overview", "/"])
async def test_head_is_answered_like_get(service: Service, path: str) -> None:
    await service.start()
    async with client(create_app(service)) as http:
        answers = [await http.request(method, path) for method in ("GET", "HEAD")]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert (await http.get("/no")).status_code == 404


@pytest.mark.parametrize(("path", "status"), [("/healthz", 200), ("/readyz", 503)])
async def test_probes_answer_get_and_head(service: Service, path: str, status: int) -> None:
    async with client(create_app(service)) as http:
        answers = [(await http.request(method, path)).status_code for method in ("GET", "HEAD", "POST")]
    assert answers == [status, status, 404]


async def test_the_length_of_a_refusal_is_in_bytes(service: Service) -> None:
    """A host that is no ASCII is quoted, and a wrong length would end the connection."""
    async with client(create_app(service)) as http:
        refused = await http.get("/debug", headers={b"host": b"\xe9vil.example"})
    assert (refused.status_code, int(refused.headers["content-length"])) == (421, len(refused.content))


async def test_other_methods_on_the_path_of_a_verb_are_405(service: Service) -> None:
    async with client(create_app(service)) as http:
        assert (await http.get("/scheduler/filter")).status_code == 405


async def test_openapi_describes_every_route_and_the_messages_of_the_verbs(start: Start) -> None:
    stowage = await start(make_node("a"), make_pod("runs", 8, node_name="a", priority=1), bind=True)
    described = (await stowage.http.get("/openapi.json")).json()
    assert {f"/scheduler/{verb}" for verb in VERBS} < described["paths"].keys()
    assert "/debug/pods/{namespace}/{name}" in described["paths"]
    schemas = described["components"]["schemas"]
    assert set(schemas["ExtenderArgs"]["properties"]) == {"Pod", "Nodes", "NodeNames"}
    references = set(_references(described))
    assert references
    assert references <= {f"#/components/schemas/{name}" for name in schemas}


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if "$ref" in value else []
        return own + [text for member in value.values() for text in _references(member)]
    return [text for item in value for text in _references(item)] if isinstance(value, list) else []


async def test_replies_have_the_shapes_that_openapi_gives(start: Start) -> None:
    stowage = await start(make_node("a"), make_pod("runs", 8, node_name="a", priority=1), bind=True)
    urgent, names = manifest("urgent", gpus=8, spec_priority=1), {"Nodes": None, "NodeNames": ["a", "b"]}
    victims = {"a": {"Pods": [{"UID": "uid-runs"}], "NumPDBViolations": 0}}
    messages = {
        "filter": {"Pod": urgent, **names},
        "prioritize": {"Pod": urgent, **names},
        "preempt": {"Pod": urgent, "NodeNameToVictims": None, "NodeNameToMetaVictims": victims},
        "bind": {"PodName": "urgent", "PodNamespace": "default", "PodUID": "u", "Node": "a"},
    }
    for verb, message in messages.items():
        msgspec.json.decode(json.dumps(message), type=MESSAGES[verb][0])
        reply = await stowage.post(verb, message)
        assert reply.status_code == 200
        msgspec.json.decode(reply.content, type=MESSAGES[verb][1])
