"""For whom the evictor makes room, in which order and how fast, against a real HTTP server."""

from __future__ import annotations

import pytest

from extender.settings import Queue
from extender.verbs.eviction.plan import plan_evictions
from tests.extender.apiserver import ApiServer
from tests.extender.evictor.replica import Start, bind, log, node, nominated, pod

pytestmark = pytest.mark.usefixtures("full_node")


async def test_nominate_then_dry_run_then_evict_then_tell(api: ApiServer, start: Start) -> None:
    replica = start()
    await replica.rounds(2)
    assert log(api) == [
        ("nominate", "ml/p", "n1"),
        ("dry-run", "ml/v", None),
        ("evict", "ml/v", None),
        ("event", "ml/v", "Preempted"),
        ("event", "ml/p", "Preempting"),
    ]
    on_victim, on_pod = api.evictions.events
    assert on_victim["note"] == "Preempted by pod u-p on node n1: its priority 0 is lower than 100"
    assert on_victim["related"]["name"] == "p"
    assert on_pod["note"] == "Evicting 1 pod to make room (cost 1)"
    assert replica.metric("evictions_total", result="evicted") == 1
    await replica.rounds(3)
    assert len(log(api, "evict")) == 1
    assert replica.metric("skipped", reason="nominated") == 1
    api.delete("ml/v")
    bind(api, "p", "n1")
    await replica.rounds(100)
    assert log(api)[5:] == []
    assert replica.evictor.actions.book.holds == {}


async def test_a_pod_that_has_not_waited_long_is_left_to_kube_scheduler(api: ApiServer, start: Start) -> None:
    replica = start()
    await replica.rounds(4, seconds=1.0)
    assert log(api) == []
    assert replica.metric("skipped", reason="settling") == 1
    await replica.rounds(2, seconds=1.0)
    assert len(log(api, "evict")) == 1


async def test_the_grace_of_the_queue_is_passed_on(api: ApiServer, start: Start) -> None:
    api.put(pod("v", "n1", priorityClassName="low"))
    await start(Queue(grace=45)).rounds(2)
    assert log(api, "dry-run", "evict") == [("dry-run", "ml/v", 45), ("evict", "ml/v", 45)]


async def test_pods_that_cannot_be_helped_evict_nobody(api: ApiServer, start: Start) -> None:
    api.delete("ml/p")
    api.put(pod("too-large", gpus=2))
    api.put(pod("low", priority=0))
    api.put(pod("never", preemptionPolicy="Never"))
    api.put(pod("other", schedulerName="another"))
    replica = start()
    await replica.rounds(5)
    assert log(api) == []
    assert replica.metric("skipped", reason="backing_off") == 3


async def test_a_pod_that_fits_evicts_nobody(api: ApiServer, start: Start) -> None:
    api.put(node("n2"))
    replica = start()
    await replica.rounds(2)
    assert log(api) == []
    assert replica.metric("skipped", reason="fits") == 1


async def test_equals_take_over_after_the_maximum_duration(api: ApiServer, start: Start) -> None:
    started = {"phase": "Running", "startTime": "1970-01-01T00:00:01Z"}
    api.put(pod("v", "n1", priorityClassName="low") | {"status": started})
    api.put(pod("p", priority=0, priorityClassName="low"))
    replica = start(Queue(max_duration=1050.0))
    await replica.rounds(4)
    assert log(api) == []
    await replica.rounds(2, seconds=50.0)
    assert len(log(api, "evict")) == 1
    assert "maximum duration of queue low" in api.evictions.events[0]["note"]


async def test_a_plan_that_violates_a_budget_is_not_tried(api: ApiServer, start: Start) -> None:
    blocked = pod("v", "n1")
    blocked["metadata"]["labels"] = {"budget": "none"}
    api.put(blocked)
    replica = start()
    await replica.rounds(2)
    assert log(api) == []
    assert replica.metric("skipped", reason="budget") == 1


async def test_evictions_are_bounded_in_rate(api: ApiServer, start: Start) -> None:
    for number in range(20):
        api.put(node(f"m{number}"))
        api.put(pod(f"v{number}", f"m{number}"))
        api.put(pod(f"p{number}"))
    replica = start(evictions_per_minute=6)
    await replica.rounds(1, seconds=10.0)
    for minute in range(1, 4):
        await replica.rounds(60, seconds=1.0)
        assert len(log(api, "evict")) <= 6 * minute + 2
    assert len(log(api, "evict")) >= 12
    assert replica.metric("skipped", reason="rate") > 0
    keys = [key for _, key, _ in log(api, "evict")]
    assert len(set(keys)) == len(keys)


async def test_less_urgent_pods_do_not_use_up_the_rate_that_a_large_one_waits_for(
    api: ApiServer, start: Start
) -> None:
    api.put(node("n1", gpus=2))
    api.put(pod("w", "n1"))
    api.put(pod("p", gpus=2, priority=200))
    for number in range(5):
        api.put(node(f"m{number}"))
        api.put(pod(f"v{number}", f"m{number}"))
        api.put(pod(f"p{number}"))
    replica = start(evictions_per_minute=8)  # two at once
    replica.evictor.actions.bucket.take(2, replica.now + 10)
    await replica.rounds(40, seconds=1.0)
    keys = [key for _, key, _ in log(api, "evict")]
    assert set(keys[:2]) == {"ml/v", "ml/w"}
    assert len(keys) > 2


async def test_two_pods_do_not_share_a_victim(api: ApiServer, start: Start) -> None:
    api.put(pod("q"))
    replica = start()
    await replica.rounds(10)
    assert len(log(api, "evict")) == 1
    api.put(node("n2"))
    api.put(pod("w", "n2"))
    await replica.rounds(10)
    assert [key for _, key, _ in log(api, "evict")] == ["ml/v", "ml/w"]
    assert {nominated(api, "p"), nominated(api, "q")} == {"n1", "n2"}


async def test_an_announced_scale_up_is_waited_for(api: ApiServer, start: Start) -> None:
    event = {
        "metadata": {"creationTimestamp": "1970-01-01T00:16:40Z"},  # 1000 s
        "reason": "TriggeredScaleUp",
        "note": "pod triggered scale-up: [{pool 1->2}]",
        "regarding": {"uid": "u-p"},
    }
    api.evictions.events.append(event)
    replica = start(scale_up_wait_seconds=100)
    await replica.rounds(9)
    assert log(api) == []
    await replica.rounds(2)
    assert len(log(api, "evict")) == 1


async def test_a_pod_with_volumes_is_placed_only_where_kube_scheduler_asked(
    api: ApiServer, start: Start
) -> None:
    api.put(pod("p", volumes=[{"persistentVolumeClaim": {"claimName": "data"}}]))
    api.put(node("n2"))
    api.put(pod("w", "n2"))
    replica = start()
    await replica.rounds(3)
    assert log(api) == []
    replica.asked = ["n2"]
    await replica.rounds(5)
    assert [key for _, key, _ in log(api, "evict")] == ["ml/w"]


async def test_with_the_planner_of_the_service(
    api: ApiServer, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes: the victim of lower priority goes, and whatever remains of it the pod waits for."""
    monkeypatch.setattr("extender.evictor.planner.plan_evictions", plan_evictions)
    api.put(node("n2"))
    api.put(pod("w", "n2", priority=50))
    api.put(pod("q", priority=60))
    replica = start()
    await replica.rounds(3)
    assert log(api)[:3] == [("nominate", "ml/p", "n1"), ("dry-run", "ml/v", None), ("evict", "ml/v", None)]
    await replica.rounds(10)
    assert [key for _, key, _ in log(api, "evict")] == ["ml/v", "ml/w"]
    assert (nominated(api, "p"), nominated(api, "q")) == ("n1", "n2")
    api.delete("ml/v")
    bind(api, "p", "n1")
    await replica.rounds(2)
    assert len(log(api, "evict")) == 2
    assert replica.metric("errors_total") == 0


async def test_a_plan_that_fails_stops_no_other_and_is_named(
    api: ApiServer, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    replica, rounds = start(), 0

    async def fails(waiting: object) -> None:
        raise ValueError

    async def counts(waiting: object) -> None:
        nonlocal rounds
        rounds += 1

    moves, layouts = replica.evictor.plans
    monkeypatch.setattr(moves, "round", fails)
    monkeypatch.setattr(layouts, "round", counts)
    await replica.rounds(2)
    assert (rounds, replica.metric("errors_total"), len(log(api, "evict"))) == (2, 2, 1)
    assert "Consolidation: no room could be made" in caplog.text


async def test_a_write_without_an_answer_ends_that_round_only(api: ApiServer, start: Start) -> None:
    api.put(pod("huge", gpus=2, priority=200))
    replica = start()
    await replica.rounds(1)
    replica.evictor.actions.unanswered = True
    await replica.rounds(1)
    assert len(log(api, "evict")) == 1
