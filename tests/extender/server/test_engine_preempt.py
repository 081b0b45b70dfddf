from __future__ import annotations

import logging
import time
from types import SimpleNamespace

import pytest
from prometheus_client import generate_latest

from extender.k8s.objects import Deleted, Upserted
from extender.server import engine as engine_module
from extender.server.engine import Engine
from extender.verbs.preempt import (
    GO_FOR_ANOTHER,
    JUST_NOW,
    LONGEST_NAMED,
    STILL_THERE,
)
from tests.extender.builders import make_node, make_pod
from tests.extender.engines import SYNCED, make_engine, nodes_for, victims_for


async def test_an_answer_of_preempt_is_logged_counted_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    engine = make_engine()
    running = make_pod("running", 8, node_name="a", labels={"stowage.dev/queue": "backfill"})
    engine.apply([*SYNCED, Upserted(make_node("a")), Upserted(running)])
    with caplog.at_level(logging.INFO):
        assert await victims_for(engine, gpus=4) == {"a": ["uid-running"]}
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert line.startswith("1 of 1 candidates: a: default/running: ")
    assert "1 pod of queue backfill loses 0 GPU-hours" in line
    assert b'stowage_preemptions_total{preemptor="none",queue="backfill"} 1.0' in generate_latest(
        engine._metrics.registry
    )
    assert "default/running" in await answer_kept(engine, "v")


async def answer_kept(engine: Engine, pod: str) -> str:
    """The newest answer that the debug endpoint shows for the pod."""
    engine._decisions.flush()
    report = await engine.inspector.pod(f"default/{pod}")
    assert report is not None
    return report.decisions[0].answer


def clock_ahead_by(seconds: float) -> SimpleNamespace:
    """The module ``time`` for the engine alone: the event loop would wait for a clock that goes back."""
    return SimpleNamespace(**vars(time) | {"monotonic": lambda: time.monotonic() + seconds})


async def test_two_pods_do_not_count_on_the_same_victim() -> None:
    """kube-scheduler asks for the next pod before it has written the nomination of the one before."""
    engine = make_engine()
    nodes = {"a": "one", "b": "two"}
    victims = [make_pod(name, 4, node_name=node) for node, name in nodes.items()]
    waiting = [make_pod(name, 4, priority=10) for name in ("v", "w")]
    events = map(Upserted, [make_node("a", 4), make_node("b", 4), *victims, *waiting])
    engine.apply([*SYNCED, *events])
    [(first, _)] = (await victims_for(engine, gpus=4, nodes=nodes)).items()
    [(second, _)] = (await victims_for(engine, "w", gpus=4, nodes=nodes)).items()
    assert {first, second} == {"a", "b"}
    engine.apply([Upserted(waiting[0])])  # kube-scheduler did not follow
    assert await victims_for(engine, "x", gpus=4, nodes={first: nodes[first]})


async def test_while_the_end_of_its_victim_has_not_been_seen_no_other_is_named() -> None:
    """The watch is late: kube-scheduler has evicted the victim and asks again, Stowage still sees it."""
    engine = make_engine()
    victim = make_pod("one", 4, node_name="a")
    engine.apply([*SYNCED, Upserted(make_node("a", 4)), Upserted(victim)])
    assert (await nodes_for(engine, "v", gpus=4))[1] == ""  # refused: kube-scheduler looks for victims
    assert await victims_for(engine, gpus=4, nodes={"a": "one"})
    for _ in range(2):
        assert await nodes_for(engine, "v", gpus=4) == (None, STILL_THERE)  # a failed attempt is repeated
    assert (await nodes_for(engine, "other", gpus=4))[1] == ""
    engine.apply([Deleted("Pod", victim.key)])
    assert await nodes_for(engine, "v", gpus=4) == (["a"], "")


async def test_victims_that_are_not_evicted_are_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine()
    engine.apply([*SYNCED, Upserted(make_node("a", 4)), Upserted(make_pod("one", 4, node_name="a"))])
    assert await victims_for(engine, gpus=4, nodes={"a": "one"})
    monkeypatch.setattr(engine_module, "time", clock_ahead_by(LONGEST_NAMED + 1))
    assert (await nodes_for(engine, "v", gpus=4))[1] == ""


async def test_victims_that_go_for_another_pod_are_not_named_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first has room already. While the second one's victim is there, the second seems to take it."""
    engine = make_engine()
    first = make_pod("first", 4, priority=10, nominated_node="a")
    second, running = make_pod("second", 4, priority=10), make_pod("one", 4, node_name="a")
    engine.apply([*SYNCED, Upserted(make_node("a", 8)), *map(Upserted, [running, second, first])])
    proposed = {"a": "one"}
    assert await victims_for(engine, "second", gpus=4, nodes=proposed) == {"a": ["uid-one"]}
    assert await victims_for(engine, "second", gpus=4, nodes=proposed) == {"a": ["uid-one"]}  # its own
    assert await victims_for(engine, "first", gpus=4, nodes=proposed) == {}
    assert await answer_kept(engine, "first") == f"0 of 1 candidates: {GO_FOR_ANOTHER}"
    monkeypatch.setattr(engine_module, "time", clock_ahead_by(JUST_NOW + 1))
    assert await victims_for(engine, "first", gpus=4, nodes=proposed) == {"a": ["uid-one"]}
