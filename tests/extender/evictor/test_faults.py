"""Refusals, faults, crashes and lost leadership between the writes of a plan, against a real HTTP server."""

from __future__ import annotations

from typing import Any

import pytest

from extender.cluster.reservations import Reserved
from tests.extender.apiserver import ApiServer
from tests.extender.evictor import planner
from tests.extender.evictor.replica import Start, log, node, nominated, pod

pytestmark = pytest.mark.usefixtures("full_node")


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
    assert replica.state.reservations.by_reason(Reserved.EVICTOR) == {}
    await replica.rounds(20)
    assert len(log(api, "nominate")) < 8  # it backs off
    api.evictions.disruptions["w"] = 1
    await replica.rounds(30)
    assert {key for _, key, _ in log(api, "evict")} == {"ml/v", "ml/w"}


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


@pytest.mark.parametrize("writes", range(6))
async def test_a_replica_that_is_not_the_leader_any_more_writes_nothing(
    api: ApiServer, start: Start, writes: int
) -> None:
    replica = start()
    replica.leader.lose_after = writes
    await replica.rounds(5)
    assert len(log(api)) == min(writes, 5)
    if writes < 5:
        assert replica.state.reservations.by_reason(Reserved.EVICTOR) == {}


async def test_the_lead_is_lost_while_a_write_waits_for_its_thread(api: ApiServer, start: Start) -> None:
    """The thread that writes checks again."""
    replica = start()

    def lose(action: str) -> None:
        replica.leader.is_leader = action != "dry-run"

    api.evictions.before = lose
    await replica.rounds(3)
    assert [one[0] for one in log(api)] == ["nominate", "dry-run"]


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


async def test_events_that_cannot_be_read_evict_nobody(
    api: ApiServer, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    api.evictions.faults["events"].extend(["403"] * 100)
    await start(scale_up_wait_seconds=100).rounds(20)
    assert log(api) == []
    warnings = [record for record in caplog.records if "cannot be read" in record.getMessage()]
    assert 1 <= len(warnings) <= 6  # it backs off


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


@pytest.mark.parametrize("status", [403, 500])
async def test_a_victim_that_a_webhook_keeps_is_left_out_and_another_node_is_tried(
    api: ApiServer, start: Start, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    api.put(node("n2"))
    api.put(pod("w", "n2"))
    api.evictions.refused["ml/v"] = status
    replica = start()
    await replica.rounds(8, seconds=5)
    assert [key for _, key, _ in log(api, "evict")] == ["ml/w"]
    assert nominated(api) == "n2"
    assert "ml/v: dry run of an eviction failed" in caplog.text


async def test_a_victim_that_is_always_refused_is_tried_less_and_less(api: ApiServer, start: Start) -> None:
    api.evictions.several_budgets.add("ml/v")
    await start().rounds(40, seconds=20)
    assert 4 <= len(log(api, "dry-run")) <= 10
