"""Health, readiness, version and metrics."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import httpx
import pytest

from extender.k8s.objects import Listed
from extender.protocol.messages import VERBS
from extender.server.app import create_app
from extender.server.service import Service
from extender.settings import Settings
from extender.source.snapshot import Snapshot, SnapshotSource
from extender.source.watched_kinds import WATCHED_KINDS
from tests.contract.conftest import Start, manifest
from tests.extender.builders import make_node, make_pod
from tests.extender.engines import DEVICES


async def test_a_starting_service_is_alive_but_not_ready(start: Start) -> None:
    stowage = await start(make_node("a"), ready=False)
    for path in ("/healthz", "/livez", "/livez?verbose"):
        assert (await stowage.http.get(path)).status_code == 200
    ready = await stowage.http.get("/readyz")
    why = "[-]informer-sync failed: kernels are being compiled"
    expected = f"[+]ping ok\n[+]shutdown ok\n{why}\nreadyz check failed\n"
    assert (ready.status_code, ready.text) == (503, expected)


async def test_probes_answer_as_those_of_kubernetes(start: Start) -> None:
    stowage = await start(make_node("a"))
    for path, text in {
        "/livez": "ok",
        "/readyz": "ok",
        "/readyz?timeout=1s": "ok",
        "/livez?verbose": "[+]ping ok\nlivez check passed\n",
        "/readyz?verbose=true": "[+]ping ok\n[+]shutdown ok\n[+]informer-sync ok\nreadyz check passed\n",
    }.items():
        answer = await stowage.http.get(path)
        assert (answer.status_code, answer.text) == (200, text)
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"


async def test_status_and_settings_are_shown_as_by_the_components_of_kubernetes(start: Start) -> None:
    stowage = await start(make_node("a"), shortlist=7)
    assert re.fullmatch(
        r"\nstowage statusz\nWarning: This endpoint is not meant to be machine parseable, has no formatting "
        r"compatibility guarantees and is for debugging purposes only\.\n\n"
        r"Started: \w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d UTC \d{4}\nUp: 0 hr 00 min \d\d sec\n"
        r"Python version: 3\.\S+\nBinary version: 1\.2\.3\n"
        r"Paths: / /configz /healthz /livez /metrics /openapi\.json /readyz /statusz /version\n",
        (await stowage.http.get("/statusz")).text,
    )
    assert (await stowage.http.get("/configz")).json()["componentconfig"]["shortlist"] == 7


@pytest.mark.parametrize("verb", VERBS)
async def test_a_starting_service_refuses_verbs(start: Start, verb: str) -> None:
    stowage = await start(make_node("a"), ready=False)
    response = await stowage.post(verb, {"Pod": manifest(), "Nodes": None, "NodeNames": ["a"]})
    error = response.json()["Error"] if verb in ("filter", "bind") else response.text
    assert error == "Stowage is not ready: kernels are being compiled"
    assert response.status_code == (200 if verb in ("filter", "bind") else 503)
    assert await stowage.metric(f'stowage_verb_results_total{{result="not_ready",verb="{verb}"}}') == 1


async def test_ready_means_that_all_kinds_are_listed() -> None:
    class Silent(SnapshotSource):
        def start(self, apply: object, *others: object) -> None:
            """Delivers nothing, like an API server that does not answer."""

    service = Service(Settings(), Silent(Snapshot(), "away"), "1.2.3")
    engine = await service.start()
    assert service.waiting_for() == f"nodes, pods and {len(WATCHED_KINDS) - 2} more are not listed yet"
    engine.apply([Listed("Node", frozenset())])
    assert service.waiting_for().startswith("pods, resourceslices.resource.k8s.io and ")
    engine.apply([Listed("Pod", frozenset())])
    engine.apply([event for event in DEVICES if event.kind not in ("DeviceClass", "ResourceClaim")])
    classes, claims = "deviceclasses.resource.k8s.io", "resourceclaims.resource.k8s.io"
    assert service.waiting_for() == f"{claims}, {classes} are not listed yet"
    engine.apply([Listed("DeviceClass", frozenset())])
    assert service.waiting_for() == f"{claims} are not listed yet"
    engine.apply(DEVICES)
    assert service.waiting_for() == ""


async def test_a_draining_service_is_not_ready_but_answers(start: Start) -> None:
    stowage = await start(make_node("a"))
    assert (await stowage.http.get("/readyz")).text == "ok"
    stowage.service.draining = True
    ready = await stowage.http.get("/readyz")
    assert ready.status_code == 503
    assert "[-]shutdown failed: draining\n" in ready.text
    assert b'"NodeNames":["a"]' in await stowage.filter(manifest(), ["a"])


async def test_version(start: Start) -> None:
    stowage = await start(make_node("a"), make_node("b"))
    assert (await stowage.http.get("/version")).json() == {
        "version": "1.2.3",
        "source": "test (2 nodes, 0 pods)",
    }


async def test_metrics_count_verbs_and_reasons(start: Start) -> None:
    stowage = await start(make_node("a"), make_node("b", 4), make_pod("holds", 8, node_name="a"))
    await stowage.filter(manifest(gpus=1), ["a", "b"])
    await stowage.filter(manifest(gpus=8), ["a", "b"])
    await stowage.filter(manifest(gpus=-1), ["a", "b"])
    await stowage.prioritize(manifest(gpus=1), ["a", "b"])
    await stowage.preempt(manifest(gpus=1), {})
    await stowage.bind(manifest(), "a")
    filtered = [("filter", result) for result in ("fits", "nothing_fits", "refused")]
    others = [("prioritize", "scored"), ("preempt", "no_victims"), ("bind", "refused")]
    for verb, result in filtered + others:
        assert await stowage.metric(f'stowage_verb_results_total{{result="{result}",verb="{verb}"}}') == 1
    assert await stowage.metric('stowage_verb_seconds_count{verb="filter"}') == 3
    assert await stowage.metric('stowage_unschedulable_total{reason="not enough free GPUs"}') == 1


async def test_failures_are_counted_from_zero(start: Start) -> None:
    """rate() does not see the first failure of a series that begins with it."""
    stowage = await start(make_node("a"))
    text = (await stowage.http.get("/metrics")).text
    for verb in VERBS:
        for result in ("bad_message", "internal_error", "not_ready", "too_large"):
            assert f'stowage_verb_results_total{{result="{result}",verb="{verb}"}} 0.0' in text
    assert "_created" not in text


async def test_metrics_show_problems(start: Start) -> None:
    full = [make_node("full", 1), make_pod("one", 1, node_name="full"), make_pod("two", 1, node_name="full")]
    stowage = await start(*full, make_node("broken", **{"nvidia.com/gpu": "x"}))
    assert await stowage.metric("stowage_overcommitted_nodes") == 1
    assert await stowage.metric("stowage_problems") == 1
    assert await stowage.metric("stowage_contradictions_total") == 0


async def test_metrics_show_the_fleet_in_sums(start: Start) -> None:
    stowage = await start(make_node("a"), make_node("b", 4), make_pod("holds", 3, node_name="a"))
    assert await stowage.metric("stowage_nodes") == 2
    assert await stowage.metric("stowage_pods") == 1
    assert await stowage.metric('stowage_synced{resource="pods"}') == 1
    text = (await stowage.http.get("/metrics")).text
    model = re.search(r'stowage_gpus_installed\{model="(.*H100.*)"\}', text)
    assert model
    gauges = [
        await stowage.metric(f'stowage_gpus_{name}{{model="{model[1]}"}}')
        for name in ("installed", "free", "whole")
    ]
    assert gauges == [12, 9, 9]


async def test_metrics_have_our_prefix_and_none_names_a_node(start: Start) -> None:
    stowage = await start(*(make_node(f"node-{i}") for i in range(50)))
    response = await stowage.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = [line for line in response.text.splitlines() if not line.startswith("#")]
    assert all(sample.startswith("stowage_") for sample in samples)
    assert "node-" not in response.text


@pytest.mark.parametrize("guarded", [False, True])
async def test_with_a_debug_port_the_main_port_has_no_metrics(guarded: bool, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    settings = Settings(debug_token_file=str(tmp_path / "token")) if guarded else Settings()
    service = Service(settings, SnapshotSource(Snapshot(), "test"), "1.2.3")
    main, debug = (
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://stowage")
        for app in (create_app(service, debug=False), create_app(service, verbs=False))
    )
    async with main, debug:
        paths = ("/healthz", "/version", "/metrics", "/statusz", "/configz")
        assert [(await main.get(path)).status_code for path in paths] == [200, 200, 404, 404, 404]
        shown = [401, 401, 401] if guarded else [200, 200, 200]
        assert [(await debug.get(path)).status_code for path in paths] == [200, 200, *shown]
        assert (await debug.post("/scheduler/filter", content=b"{}")).status_code == 404


async def test_concurrent_requests_are_all_answered(start: Start) -> None:
    stowage = await start(make_node("a", 8), *(make_pod(f"p{i}") for i in range(12)), bind=True)
    replies = await asyncio.gather(*(stowage.bind(manifest(f"p{i}"), "a") for i in range(12)))
    assert sorted(replies) == [b'{"Error":""}'] * 8 + [b'{"Error":"not enough free GPUs"}'] * 4
