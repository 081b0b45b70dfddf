"""The evictor against a real HTTP server: order of the writes, faults, crashes and takeovers."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from extender.settings import Queue
from extender.verbs.eviction.plan import plan_evictions
from packing.model.reasons import Reason
from tests.extender.apiserver import ApiServer
from tests.extender.builders import why
from tests.extender.evictor import planner
from tests.extender.evictor.replica import Replica, node, pod

Start = Callable[..., Replica]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    monkeypatch.setattr("extender.evictor.planner.plan_evictions", planner.plan_evictions)
    server = ApiServer()
    server.start()
    server.put(node("n1"))
    server.put(pod("v", "n1"))
    server.put(pod("p"))
    yield server
    server.stop()


@pytest.fixture
async def start(api: ApiServer, tmp_path: Path) -> AsyncIterator[Start]:
    replicas: list[Replica] = []

    def starting(queue: Queue | None = None, **settings: Any) -> Replica:
        replicas.append(Replica(api, tmp_path, queue or Queue(), **settings))
        return replicas[-1]

    yield starting
    for replica in replicas:
        replica.source.stop()


def log(api: ApiServer, *actions: str) -> list[tuple[str, str, object]]:
    return [one for one in api.evictions.log if not actions or one[0] in actions]


def nominated(api: ApiServer, name: str = "p") -> object:
    return api.pods.objects[f"ml/{name}"]["status"].get("nominatedNodeName")


def bind(api: ApiServer, name: str, node_name: str) -> None:
    api.put(pod(name, node_name, priority=100))


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
    assert on_pod["note"] == "Evicting 1 pod to make room on node n1 (cost 1)"
    assert replica.metric("evictions_total", result="evicted") == 1
    await replica.rounds(3)
    assert len(log(api, "evict")) == 1
    assert replica.metric("skipped", reason="nominated") == 1
    api.delete("ml/v")
    bind(api, "p", "n1")
    await replica.rounds(100)
    assert log(api)[5:] == []
    assert replica.evictor._book.holds == {}


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


async def test_recommendations_write_only_events(
    api: ApiServer, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    replica = start(evictor="recommend")
    with caplog.at_level(logging.INFO):
        await replica.rounds(50)
    assert log(api) == [("event", "ml/p", "EvictionRecommended")]
    assert api.evictions.events[0]["note"] == "Evicting 1 pod would make room on node n1 (cost 1)"
    messages = [record.getMessage() for record in caplog.records if "would get room" in record.getMessage()]
    assert messages == ["ml/p would get room on n1 without ml/v (cost 1)"]
    api.put(pod("v", "n1") | {"metadata": {"namespace": "ml", "name": "v", "uid": "another"}})
    await replica.rounds(60)
    assert len(log(api)) == 2  # the recommendation has changed
    assert replica.metric("recommendations_total") == 2


async def test_recommendations_do_not_share_victims(
    api: ApiServer, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of later pods and rounds count those before as carried out. Nothing is held meanwhile."""
    monkeypatch.setattr("extender.evictor.planner.plan_evictions", plan_evictions)
    api.put(node("n1", gpus=3))
    api.put(pod("v", "n1", gpus=2))
    api.put(pod("w", "n1", gpus=1))
    for number in range(4):
        api.put(pod(f"p{number}"))
    api.delete("ml/p")
    replica = start(evictor="recommend")
    await replica.rounds(40)
    assert sorted(log(api)) == [("event", f"ml/p{number}", "EvictionRecommended") for number in range(2)]
    known = replica.evictor._book.recommended
    # w goes for the first pod, and the two GPUs of v are for the others.
    assert {uid: sorted(one.victims) for uid, one in known.items()} == {
        "u-p0": ["u-w"],
        "u-p1": ["u-v"],
        "u-p2": [],
    }
    assert replica.state.pods.held == {}
    assert why(replica.state, replica.state.pods["ml/p3"], "n1") is not Reason.FITS


async def test_a_budget_stops_before_anybody_goes(api: ApiServer, start: Start) -> None:
    """The planner did not know about it."""
    for name in ("a", "b"):
        api.put(node(f"n-{name}", gpus=0))
    api.put(node("n1", gpus=2))
    api.put(pod("w", "n1"))
    api.put(pod("p", gpus=2))
    api.evictions.disruptions["w"] = 0
    replica = start()
    await replica.rounds(2)
    assert log(api, "evict") == []
    assert nominated(api) is None
    assert replica.metric("evictions_total", result="budget") == 1
    assert replica.state.pods.held == {}
    await replica.rounds(20)
    assert len(log(api, "nominate")) < 8  # it backs off
    api.evictions.disruptions["w"] = 1
    await replica.rounds(30)
    assert {key for _, key, _ in log(api, "evict")} == {"ml/v", "ml/w"}


async def test_a_plan_that_violates_a_budget_is_not_tried(api: ApiServer, start: Start) -> None:
    blocked = pod("v", "n1")
    blocked["metadata"]["labels"] = {"budget": "none"}
    api.put(blocked)
    replica = start()
    await replica.rounds(2)
    assert log(api) == []
    assert replica.metric("skipped", reason="budget") == 1


async def test_after_a_refusal_half_way_a_new_plan_counts_what_is_leaving(
    api: ApiServer, start: Start
) -> None:
    """The dry runs of two pods of one budget both succeed."""
    api.put(node("n1", gpus=2))
    api.put(pod("p", gpus=2))
    second = pod("w", "n1")
    second["metadata"]["labels"] = {"app": "v"}
    api.put(second)
    api.evictions.disruptions["v"] = 1
    replica = start()
    await replica.rounds(2)
    evicted = [key for _, key, _ in log(api, "evict")]
    assert sorted(evicted) == ["ml/v", "ml/w"]
    assert nominated(api) == "n1"
    assert replica.metric("evictions_total", result="budget") == 1
    await replica.rounds(5)
    assert replica.metric("evictions_total", result="evicted") == 1
    api.evictions.disruptions["v"] = 1
    await replica.rounds(40)
    assert replica.metric("evictions_total", result="evicted") == 2
    assert all("deletionTimestamp" in api.pods.objects[f"ml/{name}"]["metadata"] for name in "vw")


@pytest.mark.parametrize("fault", ["500", "403", "409", "429", "hangup", "lost", "422"])
@pytest.mark.parametrize("action", ["nominate", "dry-run", "evict", "event"])
async def test_no_fault_ends_the_loop_or_evicts_twice(
    api: ApiServer, start: Start, action: str, fault: str
) -> None:
    api.evictions.faults[action].append(fault)
    replica = start()
    await replica.rounds(12)
    assert len(log(api, "evict")) == 1
    assert nominated(api) == "n1"
    assert replica.metric("errors_total") == 0


@pytest.mark.parametrize("action", ["dry-run", "evict"])
async def test_a_victim_that_ends_by_itself_is_not_told_that_it_was_preempted(
    api: ApiServer, start: Start, action: str
) -> None:
    replica = start()

    def end(now: str) -> None:
        if now == action:
            api.delete("ml/v")

    api.evictions.before = end
    await replica.rounds(2)
    api.evictions.before = lambda now: None
    assert log(api, "event")[:1] != [("event", "ml/v", "Preempted")]
    assert replica.metric("evictions_total", result="gone") == 1
    assert replica.metric("evictions_total", result="evicted") == 0


async def test_a_victim_that_is_gone_before_the_watch_shows_it_counts_once(
    api: ApiServer, start: Start
) -> None:
    """The dry run says so. Nobody is asked to evict it, and the pod is not told that pods were evicted."""
    api.evictions.faults["dry-run"].append("404")
    replica = start()
    await replica.rounds(2)
    assert log(api) == [("nominate", "ml/p", "n1")]
    assert replica.metric("evictions_total", result="gone") == 1


async def test_a_dead_api_server_is_survived(
    api: ApiServer, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    replica = start()
    await replica.rounds(1)
    api.stop()
    await replica.rounds(3)
    api.start()
    await replica.rounds(20)
    assert len(log(api, "evict")) == 1
    assert replica.metric("errors_total") == 0


async def test_a_crash_after_the_nomination(api: ApiServer, start: Start) -> None:
    """Nobody has gone yet. The nomination of the dead replica expires, and the next plan is made."""
    first = start()
    first.leader.lose_after = 1
    await first.rounds(2)
    assert log(api) == [("nominate", "ml/p", "n1")]
    second = start(nomination_seconds=60)
    await second.rounds(5)
    assert log(api, "evict", "clear") == []
    await second.rounds(3)
    assert len(log(api, "evict")) == 1
    assert nominated(api) == "n1"


async def test_a_crash_after_the_first_eviction(api: ApiServer, start: Start) -> None:
    """Two must go, and one has: the next replica evicts only the other."""
    api.put(node("n1", gpus=2))
    api.put(pod("p", gpus=2))
    api.put(pod("w", "n1"))
    first = start()
    first.leader.lose_after = 4  # nominate, two dry runs, one eviction
    await first.rounds(2)
    assert len(log(api, "evict")) == 1
    assert first.state.pods.held == {} or await first.rounds() is None
    second = start(nomination_seconds=5)
    await second.rounds(2)
    api.put(pod("p", gpus=2))  # kube-scheduler clears the nomination
    await second.rounds(4)
    assert sorted(key for _, key, _ in log(api, "evict")) == ["ml/v", "ml/w"]
    assert nominated(api) == "n1"
    await second.rounds(10)
    assert len(log(api, "evict")) == 2


async def test_a_crash_after_the_last_eviction_evicts_nobody_more(api: ApiServer, start: Start) -> None:
    first = start()
    await first.rounds(2)
    second = start()
    api.put(pod("p"))  # kube-scheduler has cleared the nomination meanwhile
    await second.rounds(5)
    assert len(log(api, "evict")) == 1
    assert nominated(api) == "n1"  # the room that comes is held again
    api.delete("ml/v")
    await second.rounds(3)
    assert len(log(api, "evict")) == 1


@pytest.mark.parametrize("writes", range(6))
async def test_a_replica_that_is_not_the_leader_any_more_writes_nothing(
    api: ApiServer, start: Start, writes: int
) -> None:
    replica = start()
    replica.leader.lose_after = writes
    await replica.rounds(5)
    assert len(log(api)) == min(writes, 5)
    if writes < 5:
        assert replica.state.pods.held == {}


async def test_the_lead_is_lost_while_a_write_waits_for_its_thread(api: ApiServer, start: Start) -> None:
    """The thread that writes checks again."""
    replica = start()

    def lose(action: str) -> None:
        replica.leader.is_leader = action != "dry-run"

    api.evictions.before = lose
    await replica.rounds(3)
    assert [one[0] for one in log(api)] == ["nominate", "dry-run"]


async def test_cleared_nominations_are_renewed_while_the_room_comes(api: ApiServer, start: Start) -> None:
    replica = start()
    await replica.rounds(2)
    for _ in range(3):
        api.put(pod("p"))
        await replica.rounds(1)
        assert nominated(api) == "n1"
    assert len(log(api, "evict")) == 1


async def test_room_is_given_up_after_a_time_and_planned_anew(
    api: ApiServer, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    replica = start(nomination_seconds=30)
    await replica.rounds(2)
    api.delete("ml/v")
    api.put(pod("w", "n1"))  # somebody was faster
    await replica.rounds(3)
    assert len(log(api, "evict")) == 1
    await replica.rounds(2)
    assert log(api, "clear") == [("clear", "ml/p", None)]
    assert "was not bound to n1 in time" in caplog.text
    await replica.rounds(3)
    assert [key for _, key, _ in log(api, "evict")] == ["ml/v", "ml/w"]


async def test_a_nomination_of_others_is_never_cleared(api: ApiServer, start: Start) -> None:
    mine = pod("p")
    mine["status"]["nominatedNodeName"] = "n1"
    api.put(mine)
    replica = start(nomination_seconds=30, evictor="on")
    await replica.rounds(3)
    assert log(api) == []
    await replica.rounds(4)
    assert log(api, "clear") == []
    assert len(log(api, "evict")) == 1  # it led to nothing


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
    replica.evictor._bucket.take(2, replica.now + 10)
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


async def test_room_that_comes_anyway_is_held_and_nobody_is_evicted(api: ApiServer, start: Start) -> None:
    ending = pod("v", "n1")
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    api.put(ending)
    await start().rounds(5)
    assert log(api) == [("nominate", "ml/p", "n1")]


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


async def test_events_that_cannot_be_read_evict_nobody(
    api: ApiServer, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    api.evictions.faults["events"].extend(["403"] * 100)
    await start(scale_up_wait_seconds=100).rounds(20)
    assert log(api) == []
    warnings = [record for record in caplog.records if "cannot be read" in record.getMessage()]
    assert 1 <= len(warnings) <= 6  # it backs off


async def test_a_pod_that_breaks_the_planner_does_not_cost_others_their_turn(
    api: ApiServer, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def plan(state: Any, one: Any, *args: Any, **more: Any) -> Any:
        if one.name == "bad":
            raise RuntimeError("a bug")
        return planner.plan_evictions(state, one, *args, **more)

    monkeypatch.setattr("extender.evictor.planner.plan_evictions", plan)
    api.put(pod("bad", priority=1000))
    replica = start()
    await replica.rounds(2)
    assert len(log(api, "evict")) == 1
    assert replica.metric("errors_total") == 1
    assert "ml/bad: no room could be made" in caplog.text


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
