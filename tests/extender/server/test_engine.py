from __future__ import annotations

import asyncio
import json
import re
import time
import tracemalloc
from dataclasses import replace

import pytest
from prometheus_client import generate_latest

from extender.cluster.census import CensusTaker, Installed
from extender.k8s.objects import Container, Deleted, Listed, Owner, PodSpec, Upserted
from extender.server import engine as engine_module
from extender.server.engine import Engine
from extender.server.metrics import Metrics
from extender.settings import Settings, SettingsError
from extender.source.errors import BEHIND
from extender.source.interface import Interruption
from extender.source.snapshot import Snapshot
from packing.model.reasons import Reason
from tests.extender.builders import GPU, make_node, make_pod, make_state
from tests.extender.engines import (
    DEVICES,
    SYNCED,
    BrokenSource,
    LiveSource,
    make_engine,
    nodes_for,
    victims_for,
)

PRODUCT = "nvidia.com/gpu.product"
SPOT = {"cloud.google.com/gke-spot": "true"}


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


@pytest.mark.parametrize(
    ("setting", "server", "helps"),
    [
        (None, "", False),
        (None, "1.37", False),
        (None, "1.38", True),
        (None, "2.0", True),
        ("1.36", "1.38", False),
        ("v1.38.0-alpha.1", "1.36", True),
        (None, "unknown", False),
    ],
)
def test_the_setting_wins_over_the_version_of_the_api_server(
    setting: str | None, server: str, helps: bool
) -> None:
    engine = make_engine(kubernetes_version=setting)
    engine.set_server_version(server)
    assert engine.state.eviction_helps_extenders is helps


@pytest.mark.parametrize(("server", "fractional"), [("1.36", False), ("1.37", True), ("unknown", True)])
def test_ranges_of_capacities_have_whole_steps_up_to_1_36(server: str, fractional: bool) -> None:
    engine = make_engine()
    engine.set_server_version(server)
    assert engine.state.devices.since_1_37 is fractional


async def test_the_first_answer_knows_what_pods_insist_on() -> None:
    """A Stowage that has just started must not give the A100 to pods that can go anywhere: others wait that
    need them, and the first plan takes a second."""
    labels = [{PRODUCT: "NVIDIA-H100-80GB-HBM3"}, {PRODUCT: "NVIDIA-A100-SXM4-80GB"}]
    nodes = [make_node(f"{n}{'ha'[kind]}", 1, labels=labels[kind]) for n in range(3) for kind in (0, 1)]
    insists = PodSpec((Container("main", ((GPU, "1"),)),), node_selector=(*labels[1].items(),))
    waiting = [make_pod(f"any{n}") for n in range(8)]
    waiting += [make_pod(f"picky{n}", spec=insists) for n in range(8)]
    engine = make_engine(shortlist=1)
    names = [one.name for one in nodes]
    listed = Listed("Node", frozenset(names)), Listed("Pod", frozenset(pod.key for pod in waiting))
    engine.apply([*map(Upserted, [*nodes, *waiting]), *listed, *DEVICES])
    (chosen,) = (await nodes_for(engine, "any0", gpus=1, names=names))[0] or ()
    assert chosen.endswith("h")


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


async def test_a_request_that_waits_sees_who_is_bound_by_then_and_clears_nothing_for_others() -> None:
    """Possible binds are computed at each check; they were a field that one request cleared while
    another one waited for it."""
    source = BrokenSource(Snapshot(), "test")
    engine = Engine(source, Settings(), Metrics(list))
    gone = make_pod("gone", 4)
    engine.apply([*SYNCED, Upserted(make_node("a", 12)), Upserted(gone)])
    assert await nodes_for(engine, "gone", gpus=4) == (["a"], "")
    source.broken = Interruption(time.monotonic(), None)
    waits = asyncio.create_task(nodes_for(engine, "large", gpus=12))  # refused, and waits for news
    await asyncio.sleep(0)
    assert await nodes_for(engine, "small", gpus=4) == (["a"], "")  # there is room beside
    assert await waits == (None, engine_module._POSSIBLY_TAKEN)
    waits = asyncio.create_task(nodes_for(engine, "larger", gpus=8))
    await asyncio.sleep(0)
    engine.apply([Upserted(replace(gone, node_name="elsewhere"))])
    assert await waits == (["a"], "")
    engine.apply([Upserted(replace(gone, node_name="a"))])
    assert await nodes_for(engine, "small", gpus=8) == (None, engine_module._POSSIBLY_TAKEN)
    engine.apply([Upserted(make_pod("larger", 4, node_name="a"))])  # as small as it is, it counts once
    assert await nodes_for(engine, "small", gpus=4) == (["a"], "")


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


async def test_bind_finds_the_pod_of_the_last_filter_even_if_it_is_large() -> None:
    engine = make_engine(bind=True)
    for name in ("huge", "huger"):
        pod = make_pod(name, annotations={"stowage.dev/large": "x" * (2 << 20)})
        engine._remember(pod)
        engine.state.reservations.answered(pod, "a")
        assert engine._recent_pods.get(pod.uid) is pod
    engine.state.reservations.interruption = lambda: Interruption(time.monotonic(), None)
    found = engine.state.reservations.possibly_bound().values()
    assert [pod.name for pod, _ in found] == ["huge", "huger"]


def test_an_unknown_policy_is_an_invalid_setting() -> None:
    with pytest.raises(SettingsError, match=r"policy: invalid value 'tetris'; expected one of .*best-fit"):
        make_engine(policy="tetris")


async def test_gpus_are_summed_by_model() -> None:
    state = make_state(
        make_node("a"),
        make_node("b", 4),
        make_node(
            "unnamed", 2, labels={"nvidia.com/gpu.product": "Brand-New", "nvidia.com/gpu.memory": "1000"}
        ),
        make_node("none", 0),
        make_pod("p", 3, node_name="a"),
    )
    census = await CensusTaker(state).take()
    assert census.installed == {"unknown": Installed(2, 0.0, 1), "H100 SXM5 80GB": Installed(12, 3.0, 2)}


def test_an_unknown_age_is_not_shown() -> None:
    assert b"stowage_state_age_seconds{" not in generate_latest(
        Metrics(make_engine().gauges.collect).registry
    )


async def test_spot_gpus_and_preempted_pods_are_metrics() -> None:
    engine = make_engine(queues={"batch": {"restartable": True}})
    metrics = Metrics(engine.gauges.collect)
    assert 'stowage_preempted_gpu_hours_lost_total{queue="batch",reason="PreemptionByScheduler"} 0.0' in (
        generate_latest(metrics.registry).decode()
    )
    pod = make_pod(
        "a",
        3,
        node_name="s",
        phase="Running",
        started=time.time() - 7200,
        labels={"stowage.dev/queue": "batch"},
        owner=Owner("Job", "train", "u"),
    )
    engine.apply([Upserted(make_node("s", 4, labels=SPOT)), Upserted(make_node("d")), Upserted(pod)])
    engine.apply([Listed("Node", frozenset({"s", "d"})), Listed("Pod", frozenset({pod.key}))])
    await engine.gauges.update()
    shown = generate_latest(metrics.registry).decode()
    assert 'stowage_spot_gpus{state="installed"} 4.0' in shown
    assert 'stowage_spot_gpus{state="used"} 3.0' in shown
    engine.apply([Upserted(replace(pod, disruption="PreemptionByScheduler", deleting=True))])
    shown = generate_latest(metrics.registry).decode()
    labels = 'queue="batch",reason="PreemptionByScheduler"'
    assert f'stowage_preempted_pods_total{{owner="Job",{labels}}} 1.0' in shown
    lost = re.search(rf"stowage_preempted_gpu_hours_lost_total{{{labels}}} (\S+)", shown)
    assert lost is not None
    assert float(lost[1]) == pytest.approx(6, abs=0.1)


async def test_metrics_rendered_in_parts_are_the_same() -> None:
    engine = make_engine()
    engine.apply([Upserted(make_node("a")), *SYNCED])
    metrics = Metrics(engine.gauges.collect)
    metrics.answered("filter", "fits", 0.001)

    def fixed(text: bytes) -> list[str]:
        return [line for line in text.decode().splitlines() if not line.startswith("stowage_process_")]

    turns = asyncio.create_task(metrics.render_in_parts())
    await asyncio.sleep(0)
    assert not turns.done()
    assert fixed(await turns) == fixed(generate_latest(metrics.registry))
