"""Invalid requests get a clear error in a form that kube-scheduler understands."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import pytest

from packing.model.reasons import Reason
from tests.contract.conftest import GPU, Start, Stowage, manifest
from tests.extender.builders import make_node

GOOD = json.dumps({"Pod": manifest(), "Nodes": None, "NodeNames": ["a"]}).encode()
JSON = {"content-type": "application/json"}
VERBS = ("filter", "prioritize", "preempt", "bind")


@pytest.fixture
async def stowage(start: Start) -> AsyncIterator[Stowage]:
    """A service with one empty node. It must still answer after each test."""
    running = await start(make_node("a"), bind=True, body_limit_mib=1)
    yield running
    assert json.loads(await running.filter(manifest(), ["a"]))["NodeNames"] == ["a"]
    assert await running.metric('stowage_verb_results_total{result="internal_error",verb="filter"}') == 0


async def send(stowage: Stowage, verb: str, body: Any, headers: dict[str, str] = JSON) -> Any:
    """The error that kube-scheduler sees: ``Error``, or the text of a status other than 200."""
    response = await stowage.http.post(f"/scheduler/{verb}", content=body, headers=headers)
    if verb in ("filter", "bind"):
        assert response.status_code == 200
        return response.json()["Error"]
    assert response.status_code == 400
    return response.text


async def test_a_body_that_is_not_a_message(stowage: Stowage) -> None:
    bodies = [b"", b"{", GOOD[:-1], GOOD[:150], b"\xff\xfe", b"[]", b"7", b'"pod"', b"null", b"[" * 10_000]
    for verb in VERBS:
        for body in bodies:
            assert (await send(stowage, verb, body)).startswith(f"not a valid {verb} request: "), body
        metric = f'stowage_verb_results_total{{result="bad_message",verb="{verb}"}}'
        assert await stowage.metric(metric) == len(bodies)


async def test_a_body_of_another_type(stowage: Stowage) -> None:
    for verb in VERBS:
        error = await send(stowage, verb, GOOD, {"content-type": "Text/YAML; charset=utf-8"})
        assert error == f"not a valid {verb} request: content type text/yaml, expected application/json"


async def test_content_types_of_json(stowage: Stowage) -> None:
    """A browser may send a body without one for a page of another site."""
    with_charset = {"content-type": "application/json; charset=utf-8"}
    assert await send(stowage, "filter", GOOD, with_charset) == ""
    assert "content type missing" in await send(stowage, "filter", GOOD, {})


async def test_a_page_of_another_site_gets_nothing(stowage: Stowage) -> None:
    sent = [{"host": "evil.example"}, {"host": "localhost:8888", "origin": "http://evil.example"}]
    paths = ("/scheduler/bind", "/debug/state", "/", "/metrics")
    for method, path, headers in product(("GET", "POST"), paths, sent):
        response = await stowage.http.request(method, path, headers=JSON | headers, content=GOOD)
        assert response.status_code == 421, (method, path, response.text)


async def test_nobody_is_sent_elsewhere(stowage: Stowage) -> None:
    response = await stowage.http.get("/debug/state/", headers={"host": "localhost"})
    assert response.status_code == 404


async def test_a_body_above_the_limit_is_413(stowage: Stowage) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b" " * (1 << 18)

    for verb in VERBS:
        for body in (b" " * ((1 << 20) + 1), endless()):
            response = await stowage.http.post(f"/scheduler/{verb}", content=body, headers=JSON)
            assert (response.status_code, response.headers["connection"]) == (413, "close")
            assert "larger than 1 MiB" in response.text
        assert await stowage.metric(f'stowage_verb_results_total{{result="too_large",verb="{verb}"}}') == 2


async def test_a_body_at_the_limit_is_read(stowage: Stowage) -> None:
    assert await send(stowage, "filter", GOOD.ljust(1 << 20)) == ""


async def test_a_pod_without_containers(stowage: Stowage) -> None:
    for spec in ({"containers": None}, {"containers": []}, {}):
        reply = json.loads(await stowage.filter(manifest(spec=spec), ["a"]))
        assert reply["Error"] == "the pod has no containers", spec


async def test_a_pod_with_missing_fields_is_answered(stowage: Stowage) -> None:
    for member in ("metadata", "spec", "status"):
        absent = manifest()
        del absent[member]
        for pod in (absent, absent | {member: None}, absent | {member: {}}):
            reply = json.loads(await stowage.filter(pod, ["a"]))
            assert reply["Error"] or reply["NodeNames"] == ["a"], pod


async def test_absurd_quantities_are_refused_or_fit_nowhere(stowage: Stowage) -> None:
    for quantity in ("-1", "1e99", "9" * 400, "many", " ", "1Gi", "NaN", "Infinity", "0x10"):
        reply = json.loads(await stowage.filter(manifest(gpus=quantity), ["a"]))
        if not reply["Error"]:
            assert reply["NodeNames"] == []
            assert reply["FailedAndUnresolvableNodes"] == {"a": Reason.TOO_FEW_GPUS.text}
        scores = json.loads(await stowage.prioritize(manifest(gpus=quantity), ["a"]))
        assert scores == [{"Host": "a", "Score": 0}], quantity


async def test_absurd_cpu_and_memory(stowage: Stowage) -> None:
    for resource, quantity in product(("cpu", "memory"), ("-1", "1e99", "9" * 400, "many", "10Ei")):
        requests = {GPU: "1", resource: quantity}
        pod = manifest(spec={"containers": [{"resources": {"requests": requests}}]})
        reply = json.loads(await stowage.filter(pod, ["a"]))
        assert reply["Error"] or set(reply["FailedAndUnresolvableNodes"]) == {"a"}, requests


async def test_unknown_resources_and_nodes(stowage: Stowage) -> None:
    pod = manifest(spec={"containers": [{"resources": {"requests": {"example.com/widget": "3", GPU: "1"}}}]})
    reply = json.loads(await stowage.filter(pod, ["nowhere", "a"]))
    assert reply["NodeNames"] == ["a"]
    pod = manifest(resource="nvidia.com/mig-99g.1gb")
    reply = json.loads(await stowage.filter(pod, ["nowhere", "a"]))
    assert reply["FailedAndUnresolvableNodes"] == {
        "nowhere": Reason.UNKNOWN_NODE.text,
        "a": Reason.NO_SUCH_RESOURCE.text,
    }


async def test_an_internal_error_is_contained(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: object) -> None:
        raise KeyError("what the pod says")

    stowage = await start(make_node("a"))
    with monkeypatch.context() as broken:
        broken.setattr(stowage.service.engine.state.policy, "cost", fail)
        reply = json.loads(await stowage.filter(manifest(), ["a"]))
        assert reply["Error"] == "internal error (KeyError), see the log of Stowage"
        response = await stowage.post("prioritize", {"Pod": manifest(), "Nodes": None, "NodeNames": ["a"]})
        assert response.status_code == 500
        assert response.text == "internal error (KeyError), see the log of Stowage"
    assert await stowage.metric('stowage_verb_results_total{result="internal_error",verb="prioritize"}') == 1
    assert "filter failed" in caplog.text
    assert json.loads(await stowage.filter(manifest(), ["a"]))["NodeNames"] == ["a"]


async def test_unknown_methods_and_paths(stowage: Stowage) -> None:
    for method in ("GET", "PUT", "DELETE"):
        assert (await stowage.http.request(method, "/scheduler/filter")).status_code == 405
    assert (await stowage.http.get("/scheduler/reserve")).status_code == 404
