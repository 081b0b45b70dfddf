from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from dataclasses import replace

import pytest

from extender.k8s.objects import Deleted, Upserted
from extender.server import engine as engine_module
from extender.server.engine import Engine
from extender.server.metrics import Metrics
from extender.settings import Settings, SettingsError
from extender.source.errors import BEHIND
from extender.source.interface import Interruption
from extender.source.snapshot import Snapshot
from packing.model.reasons import Reason
from tests.extender.builders import make_node, make_pod
from tests.extender.engines import (
    SYNCED,
    BrokenSource,
    LiveSource,
    make_engine,
    nodes_for,
    victims_for,
)


def test_an_event_that_fails_does_not_lose_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine()
    whole = engine.state.allocations.put_node

    def fail_for_a(shape: object) -> None:
        if getattr(shape, "name", "") == "a":
            raise RuntimeError("secret")
        whole(shape)  # type: ignore[arg-type]

    monkeypatch.setattr(engine.state.allocations, "put_node", fail_for_a)
    engine.apply([Upserted(make_node("a")), Upserted(make_node("b")), *SYNCED])
    assert "b" in engine.state.fleet.rows
    assert engine.missing() == ""
    assert "could not apply an event (Upserted)" in caplog.text


async def test_the_number_of_remembered_pods_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_RECENT_PODS", 2)
    engine = make_engine(bind=True)
    for name in ("one", "two", "three", "two"):
        pod = {"metadata": {"name": name, "uid": name}, "spec": {"containers": [{}]}}
        await engine.verbs["filter"](json.dumps({"Pod": pod, "Nodes": None, "NodeNames": []}).encode())
        await asyncio.sleep(0)
    assert [pod.uid for pod in engine._recent_pods.values()] == ["three", "two"]


async def test_room_that_appears_a_moment_later_counts() -> None:
    engine = Engine(LiveSource(Snapshot(), "test"), Settings(), Metrics(list))
    engine.apply([Upserted(make_node("a", labels={"nvidia.com/mig.config.state": "pending"})), *SYNCED])
    asyncio.get_running_loop().call_soon(engine.apply, [Upserted(make_node("a"))])
    container = {"resources": {"requests": {"nvidia.com/gpu": "1"}}}
    pod = {"metadata": {"name": "p", "uid": "p"}, "spec": {"containers": [container]}}
    body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": ["a"]}).encode()
    reply, _ = await engine.verbs["filter"](body)
    assert json.loads(reply)["NodeNames"] == ["a"]


async def test_possibly_taken_room_is_reserved_for_a_while() -> None:
    source = BrokenSource(Snapshot(), "test")
    engine = Engine(source, Settings(), Metrics(list))
    first, second = (make_pod(name, 8) for name in ("first", "second"))
    engine.apply([*SYNCED, Upserted(make_node("a")), Upserted(first), Upserted(second)])
    assert await nodes_for(engine, "first") == (["a"], "")
    now = time.monotonic()
    for ended_at in (None, now):
        source.broken = Interruption(now, ended_at)
        assert await nodes_for(engine, "first") == (["a"], "")  # its own room it may have
        assert await nodes_for(engine, "second") == (None, engine_module._POSSIBLY_TAKEN)
    engine.apply([Upserted(replace(first, node_name="elsewhere"))])
    assert await nodes_for(engine, "second") == (["a"], "")
    source.broken = Interruption(now - 100, now - 90)
    assert await nodes_for(engine, "first") == (["a"], "")


async def test_without_any_free_room_the_usual_reasons_are_given() -> None:
    source = BrokenSource(Snapshot(), "test")
    engine = Engine(source, Settings(), Metrics(list))
    gone, large = make_pod("gone", 1), make_pod("large", 8)
    engine.apply([*SYNCED, Upserted(make_node("a", 4)), Upserted(gone), Upserted(large)])
    assert await nodes_for(engine, "gone", gpus=1) == (["a"], "")
    source.broken = Interruption(time.monotonic(), None)
    assert await nodes_for(engine, "large") == ([], "")
    assert await nodes_for(engine, "other", gpus=4) == (None, engine_module._POSSIBLY_TAKEN)
    source.broken = Interruption(source.broken.began_at, time.monotonic())
    engine.apply([Deleted("Pod", gone.key)])
    assert await nodes_for(engine, "other", gpus=4) == (["a"], "")


async def test_explain_bind_and_preempt_see_what_filter_sees() -> None:
    source = BrokenSource(Snapshot(), "test")
    engine = Engine(source, Settings(bind=True), Metrics(list))
    first = make_pod("first", 4)
    running = make_pod("running", 4, node_name="a")
    engine.apply([*SYNCED, Upserted(make_node("a")), Upserted(first), Upserted(running)])
    assert await nodes_for(engine, "first", gpus=4) == (["a"], "")
    resources = {"limits": {"nvidia.com/gpu": 4}}
    manifest = json.dumps(
        {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"resources": resources}]}}
    )
    assert (await engine.inspector.explain(manifest)).fits == 1
    assert await victims_for(engine, gpus=8) == {"a": ["uid-running"]}
    source.broken = Interruption(time.monotonic(), None)
    assert await nodes_for(engine, "p", gpus=4) == (None, engine_module._POSSIBLY_TAKEN)
    assert (await engine.inspector.explain(manifest)).fits == 0
    assert await victims_for(engine, gpus=8) == {}
    assert await victims_for(engine, gpus=4) == {"a": ["uid-running"]}
    binding = {"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "a"}
    reply, _ = await engine.verbs["bind"](json.dumps(binding).encode())
    assert json.loads(reply)["Error"] == Reason.NO_FREE_GPUS.text
    engine.apply([Upserted(replace(first, node_name="elsewhere"))])
    assert (await engine.inspector.explain(manifest)).fits == 1


async def test_after_an_interruption_pods_of_higher_priority_are_tried_first() -> None:
    source = BrokenSource(Snapshot(), "test")
    engine = Engine(source, Settings(), Metrics(list))
    failed = make_pod("high", 4, priority=10, unscheduled="SchedulerError")
    engine.apply([*SYNCED, Upserted(make_node("a")), Upserted(failed)])
    assert await nodes_for(engine, "low", gpus=4) == (None, engine_module._OTHERS_FIRST)
    assert await nodes_for(engine, "high", gpus=4, priority=10) == (["a"], "")
    assert await nodes_for(engine, "low", gpus=4) == (["a"], "")
    source.behind = True
    assert await nodes_for(engine, "high", gpus=4, priority=10) == (None, BEHIND)
    source.behind = False
    assert await nodes_for(engine, "low", gpus=4) == (None, engine_module._OTHERS_FIRST)


async def test_large_pods_leave_little_memory_behind() -> None:
    engine = make_engine(bind=True)
    engine.apply([*SYNCED, Upserted(make_node("a"))])

    async def ask(number: int) -> None:
        large = {f"stowage.dev/large-{part}": f"{number:06}" * 1700 for part in range(3)}
        meta = {"name": f"p{number}", "namespace": "default", "uid": f"u{number}", "annotations": large}
        spec = {"containers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}]}
        body = {"Pod": {"metadata": meta, "spec": spec}, "Nodes": None, "NodeNames": ["a"]}
        await engine.verbs["filter"](json.dumps(body).encode())
        await asyncio.sleep(0)
        engine._decisions.flush()

    for number in range(20):
        await ask(number)
    tracemalloc.start()
    try:
        for number in range(20, 620):
            await ask(number)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 12 << 20  # 600 pods have 18 MiB
    for number in (619, 590):
        assert engine._recent_pods.get(f"u{number}") is not None
    assert engine._recent_pods.get("u100") is None


def test_an_unknown_policy_is_an_invalid_setting() -> None:
    with pytest.raises(SettingsError, match=r"policy: invalid value 'tetris'; expected one of .*best-fit"):
        make_engine(policy="tetris")
