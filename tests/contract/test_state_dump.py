"""``GET /debug/state``: a dump from which commands answer as the service does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from pydantic_core import to_json

from extender.cli import main as cli
from extender.cluster import factory
from extender.cluster.policy_refresh import plan_now
from extender.data import CLUSTER
from extender.explain.answers import Explanation, Overview, plain
from extender.k8s.objects import Node, Pod, Upserted
from extender.source.errors import Unavailable
from extender.source.snapshot import Snapshot, SnapshotSource, read
from tests.contract.conftest import GPU, Start, Stowage, manifest
from tests.extender.builders import make_node, make_pod

SETTINGS: dict[str, Any] = {
    "minimum_slice_milli": 100,
    "spot": "require",
    "demand": [{"resources": {"cpu": "4", GPU: "4"}, "weight": 5}],
    "queues": {"only": {"min_runtime": 60}},
}


def example() -> list[Node | Pod]:
    """The bundled example: MIG, shares and whole GPUs; one pod insists on nodes."""
    snapshot = read([CLUSTER])
    selective = make_pod("selective", 2)
    spec = replace(selective.spec, node_selector=(("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"),))
    return [*snapshot.nodes.values(), *snapshot.pods.values(), replace(selective, spec=spec)]


async def history(stowage: Stowage) -> None:
    """Pods that came and went, from which only the service has learned."""
    assert stowage.service.engine is not None
    state = stowage.service.engine.state
    for number in range(60):
        pod = make_pod(f"gone-{number}", 1 + number % 3, uid=f"gone-{number}")
        state.apply([Upserted(pod)])
        state.apply([Upserted(replace(pod, phase="Succeeded"))])
    plan_now(state)


async def dumped(stowage: Stowage, path: Path) -> Path:
    answer = await stowage.http.get("/debug/state")
    assert answer.status_code == 200, answer.text
    path.write_bytes(answer.content)
    return path


POD = """
kind: Pod
metadata: {name: new, namespace: team}
spec: {containers: [{name: main, resources: {limits: {cpu: 3, nvidia.com/gpu: %d}}}]}
"""


def as_printed(kind: type, answer: object) -> Any:
    """An answer of /debug, with the keys of the commands."""
    return json.loads(to_json(plain(TypeAdapter(kind).validate_python(answer))))


@pytest.mark.parametrize("gpus", [1, 3, 8, 9])
async def test_explain_from_the_dump_equals_explain_from_the_service(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str], gpus: int
) -> None:
    """Costs and scores, too: the dump has the settings and the learned demand."""
    stowage = await start(*example(), **SETTINGS)
    await history(stowage)
    (tmp_path / "pod.yaml").write_text(POD % gpus)
    live = as_printed(Explanation, (await stowage.http.post("/debug/explain", content=POD % gpus)).json())
    file = await dumped(stowage, tmp_path / "state.json")
    arguments = ["explain", str(tmp_path / "pod.yaml"), "--output", "json", "--snapshot"]
    assert await asyncio.to_thread(cli.main, [*arguments, str(file)]) == 0
    from_dump = json.loads(capsys.readouterr().out)
    for one in (live, from_dump):
        if one["evictions"]:
            one["evictions"].pop("evictor")  # of a dump it is not known
    assert from_dump == live
    assert await asyncio.to_thread(cli.main, [*arguments, str(CLUSTER)]) == 0
    without = json.loads(capsys.readouterr().out)
    assert without["best"] != live["best"] or not live["best"]  # so that the test can fail


async def test_top_and_replay_read_it(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stowage = await start(*example(), **SETTINGS)
    live = as_printed(Overview, (await stowage.http.get("/debug/overview")).json()["overview"])
    file = str(await dumped(stowage, tmp_path / "state.json"))
    assert await asyncio.to_thread(cli.main, ["top", "-o", "json", "--snapshot", file]) == 0
    assert json.loads(capsys.readouterr().out) == live
    assert await asyncio.to_thread(cli.main, ["replay", "--snapshot", file]) == 0


async def test_every_record_comes_back(start: Start, tmp_path: Path) -> None:
    stowage = await start(*example(), **SETTINGS)
    assert stowage.service.engine is not None
    again = read([await dumped(stowage, tmp_path / "state.json")])
    found = [*again.nodes.values(), *again.others.values(), *again.pods.values()]
    assert found == stowage.service.engine.state.records()
    assert again.problems == []


async def test_a_pod_that_was_just_bound_is_on_its_node(start: Start, tmp_path: Path) -> None:
    stowage = await start(make_node("a", 4), make_pod("new", 3), bind=True)
    source = stowage.service.source
    assert isinstance(source, SnapshotSource)
    source._apply = lambda events: None  # the watch shows nothing yet
    await stowage.bind(manifest("new", 3), "a")
    again = read([await dumped(stowage, tmp_path / "state.json")])
    assert again.pods["default/new"].node_name == "a"


async def test_a_dump_lets_other_tasks_run(start: Start) -> None:
    stowage = await start(*(make_node(f"n{number:04}") for number in range(500)))
    dumping = asyncio.create_task(stowage.http.get("/debug/state"))
    turns = 0
    while not dumping.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 500 // factory._DUMPED
    assert len((await dumping).content.splitlines()) == 502


async def test_there_is_one_dump_at_a_time(start: Start) -> None:
    stowage = await start(make_node("a"))
    sending, go_on = asyncio.Event(), asyncio.Event()

    async def receive() -> MutableMapping[str, Any]:
        await go_on.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message.get("body"):
            sending.set()
            await go_on.wait()

    scope = {"type": "http", "method": "GET", "path": "/debug/state", "headers": [], "query_string": b""}
    app = stowage.http._transport.app  # type: ignore[attr-defined]
    reading = asyncio.create_task(app(scope | {"asgi": {"spec_version": "2.4"}}, receive, send))
    async with asyncio.timeout(60):
        await sending.wait()
        refused = await stowage.http.get("/debug/state")
        assert (refused.status_code, refused.json()["detail"]) == (
            503,
            "another dump of the state is being read",
        )
        go_on.set()
        await reading
        assert (await stowage.http.get("/debug/state")).status_code == 200


async def test_a_dump_beyond_the_limit_is_refused_by_its_reader(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stowage = await start(*(make_node(f"n{number:04}") for number in range(100)))
    monkeypatch.setattr(factory, "STATE_DUMP", 20_000)
    file = await dumped(stowage, tmp_path / "state.json")
    assert len(file.read_bytes()) <= 20_000
    with pytest.raises(Unavailable, match=r"state\.json: is incomplete: the dump ended after \d+ records"):
        read([file])


async def test_it_has_only_what_the_service_keeps(start: Start, tmp_path: Path) -> None:
    """The parser has dropped the rest before: the dump has records, and no manifests."""
    secret = "hush-hush"
    pod = manifest("secretive", 1)
    pod["kind"] = "Pod"
    pod["metadata"]["annotations"] = {"vault.example.com/token": secret}
    container = {"env": [{"name": "TOKEN", "value": secret}], "args": [secret], "image": secret}
    pod["spec"]["containers"][0] |= container | {"command": [secret]}
    pod["spec"]["volumes"] = [{"name": "v", "secret": {"secretName": secret}}]
    (tmp_path / "cluster.json").write_text(json.dumps(pod))
    stowage = await start(*read([tmp_path / "cluster.json"]).pods.values(), debug_token_file=None)
    text = (await dumped(stowage, tmp_path / "state.json")).read_text()
    assert "secretive" in text
    assert secret not in text


async def test_settings_about_tokens_are_not_in_it(start: Start, tmp_path: Path) -> None:
    (tmp_path / "token-file").write_text("a-token")
    stowage = await start(make_node("a"), debug_token_file=str(tmp_path / "token-file"))
    answer = await stowage.http.get("/debug/state", headers={"authorization": "Bearer a-token"})
    assert answer.status_code == 200
    assert "token" not in answer.text


async def test_before_it_is_ready_there_is_no_dump(start: Start) -> None:
    stowage = await start(make_node("a"), ready=False)
    assert (await stowage.http.get("/debug/state")).status_code == 503


def test_a_snapshot_of_kubectl_has_no_dump() -> None:
    assert SnapshotSource(Snapshot(), "test").dump is None
