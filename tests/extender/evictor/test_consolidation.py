"""Pods that move elsewhere so that a large job fits, against a real HTTP server."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from extender.evictor.decision import fits_on
from packing.plan.backfill import Reservation, Reservations
from tests.examples import examples, some
from tests.extender.apiserver import ApiServer
from tests.extender.apistore import Manifest
from tests.extender.evictor.replica import Replica, Start, log, node, nominated, pod

HOUR = 3600.0


def runs(name: str, on: str, *, gpus: int = 1, age: float = HOUR, restartable: bool = True) -> Manifest:
    """A pod of a Job of the same name, which has saved its work a moment ago."""
    manifest = pod(name, on, gpus=gpus, priority=0)
    owner = {"kind": "Job", "name": name, "uid": f"job-{name[0]}", "controller": True}
    started = datetime.now(UTC) - timedelta(seconds=age)
    manifest["metadata"] |= {
        "ownerReferences": [owner],
        "creationTimestamp": started.isoformat(),
        "annotations": {
            "stowage.dev/restartable": str(restartable).lower(),
            "stowage.dev/checkpointed-at": datetime.now(UTC).isoformat(),
        },
    }
    manifest["status"]["startTime"] = started.isoformat()
    return manifest


@pytest.fixture(autouse=True)
def pieces(api: ApiServer) -> None:
    """8 GPUs are free on two nodes, and p waits for 8 on one."""
    for name in ("n1", "n2"):
        api.put(node(name, gpus=8))
    for manifest in (runs("a", "n1"), runs("b", "n1"), runs("c", "n2", gpus=6)):
        api.put(manifest)
    api.put(pod("p", gpus=8, priority=0))


@pytest.fixture
def start(api: ApiServer, start: Start) -> Start:
    def starting(**settings: Any) -> Replica:
        api.evictions.ends = (datetime.now(UTC) + timedelta(seconds=1200)).isoformat()
        replica: Replica = start(**({"consolidation": "on", "nomination_seconds": 60} | settings))
        replica.now = time.time()
        return replica

    return partial(starting)


def moved(api: ApiServer) -> list[str]:
    return sorted(key for _, key, _ in log(api, "evict"))


async def test_hold_nominate_try_evict_and_see_the_replacements(api: ApiServer, start: Start) -> None:
    replica = start()
    await replica.rounds(30)
    assert log(api) == []  # five minutes have not passed
    await replica.rounds(3)
    assert [(what, key) for what, key, _ in log(api)] == [
        ("nominate", "ml/p"),
        ("dry-run", "ml/a"),
        ("dry-run", "ml/b"),
        ("evict", "ml/a"),
        ("event", "ml/a"),
        ("evict", "ml/b"),
        ("event", "ml/b"),
        ("event", "ml/p"),
    ]
    assert nominated(api) == "n1"
    assert api.evictions.events[0]["reason"] == "Moved"
    assert "room for its replacement is held on another node" in api.evictions.events[0]["note"]
    assert replica.metric("moves_total", result="moved") == 2
    for name in ("a", "b"):
        api.delete(f"ml/{name}")
        api.put(runs(f"{name}-again", "n2", age=1))
    api.put(pod("p", "n1", gpus=8, priority=0))
    await replica.rounds(30)
    assert replica.metric("moves_total", result="placed") == 2
    assert moved(api) == ["ml/a", "ml/b"]


def reserve(replica: Replica, key: str, reserved: str, seconds: float) -> None:
    """A node is reserved for this job until it starts in so many seconds."""
    now = replica.now
    held = Reservation(key, "ml", 0, (reserved,), 8.0, now, now + seconds, now + HOUR, now)
    replica.state.large_jobs.update(Reservations((held,)))


async def test_nothing_moves_onto_a_node_reserved_for_another_job(api: ApiServer, start: Start) -> None:
    replica = start()
    reserve(replica, "u-other", "n2", 2000.0)
    await replica.rounds(40)
    assert moved(api) == []
    replica.state.large_jobs.update(Reservations())
    await replica.rounds(40)
    assert moved(api) == ["ml/a", "ml/b"]


@pytest.mark.parametrize(("seconds", "pods"), [(350.0, []), (2000.0, ["ml/a", "ml/b"])])
async def test_nothing_moves_for_a_job_that_starts_on_its_reserved_nodes_sooner(
    api: ApiServer, start: Start, seconds: float, pods: list[str]
) -> None:
    replica = start()
    reserve(replica, "u-p", "n1", seconds)
    await replica.rounds(34)
    assert moved(api) == pods


async def test_the_room_is_for_the_replacements(api: ApiServer, start: Start) -> None:
    replica = start()
    await replica.rounds(33)
    for name in ("a", "b"):
        api.delete(f"ml/{name}")
    other = pod("other", priority=0)
    api.put(other)
    await replica.rounds(2)
    assert not fits(replica, "other", "n2")
    waiting = runs("a-again", "n2")
    waiting["spec"]["nodeName"] = ""
    waiting["status"] = other["status"]
    api.put(waiting)
    await replica.rounds(1)
    assert fits(replica, "a-again", "n2")
    assert not fits(replica, "a-again", "n1")  # p is nominated there
    await replica.rounds(8)
    assert replica.metric("moves_total", result="not_placed") == 2
    assert "MoveFailed" in {event["reason"] for event in api.evictions.events}
    assert fits(replica, "other", "n2")  # it is held no longer


def fits(replica: Replica, name: str, on: str) -> bool:
    return fits_on(replica.state, replica.state.pods[f"ml/{name}"], on)


@pytest.mark.parametrize(
    "change",
    [
        {"consolidation": "off"},
        {"consolidation_gpus": 9},
        {"consolidation_moves": 1},
        {"consolidation_price": 0.01},
        {"consolidation_after_seconds": 3000},
    ],
    ids=str,
)
async def test_what_the_settings_forbid(api: ApiServer, start: Start, change: dict[str, Any]) -> None:
    replica = start(**change)
    await replica.rounds(60)
    assert log(api) == []


@pytest.mark.parametrize(
    "stays",
    [
        lambda: runs("a", "n1", restartable=False),
        lambda: runs("a", "n1", age=HOUR) | {"metadata": pod("a")["metadata"]},
        lambda: runs("a", "n1", age=-200),
        lambda: runs("a", "n1") | {"spec": pod("a", "n1", priority=1)["spec"]},
    ],
    ids=["not restartable", "no controller", "too young", "a higher priority"],
)
async def test_who_does_not_move(api: ApiServer, start: Start, stays: Callable[[], Manifest]) -> None:
    api.put(stays())  # its age counts from here
    replica = start()
    await replica.rounds(33)
    assert log(api) == []


@pytest.mark.parametrize(
    "word", ["cluster-autoscaler.kubernetes.io/scale-down-disabled", "karpenter.sh/do-not-disrupt"]
)
@pytest.mark.parametrize("says", ["true", "false"])
async def test_nobody_moves_off_a_node_that_its_owner_keeps(
    api: ApiServer, start: Start, word: str, says: str
) -> None:
    kept = node("n1", gpus=8)
    kept["metadata"]["annotations"] = {word: says}
    api.put(kept)
    await start().rounds(33)
    assert moved(api) == ([] if says == "true" else ["ml/a", "ml/b"])


async def test_a_move_is_not_made_where_a_budget_refuses_it(api: ApiServer, start: Start) -> None:
    api.evictions.disruptions["b"] = 0
    replica = start()
    await replica.rounds(36)
    assert log(api, "evict") == []
    assert nominated(api) is None
    assert fits(replica, "p", "n1") is False


@pytest.mark.parametrize(("lost", "moves"), [(7000.0, []), (5000.0, ["ml/a", "ml/b"])])
async def test_what_moves_lose_in_an_hour_is_bounded_over_restarts(
    api: ApiServer, start: Start, lost: float, moves: list[str]
) -> None:
    """7,200 GPU-seconds in a small cluster, and these moves lose 2 x (about 330 + 300 s)."""
    replica = start()
    replica.state.disruptions.load({"moves": [[replica.now - 60, lost]]})
    await replica.rounds(33)
    assert moved(api) == moves
    spent = sum(lost for _, lost in replica.state.disruptions.dump()["moves"])
    assert spent == pytest.approx(lost + 1260 * bool(moves), abs=60)


@pytest.mark.parametrize(
    ("rounds", "on", "moves"), [(20, "n3", []), (5, "n3", ["ml/a", "ml/b"]), (33, "", ["ml/a", "ml/b"])]
)
async def test_nobody_moves_for_an_hour_after_a_small_job_had_to_wait(
    api: ApiServer, start: Start, rounds: int, on: str, moves: list[str]
) -> None:
    """One that starts nowhere holds up nobody."""
    api.put(node("n3", gpus=1))
    api.put(pod("s", gpus=1, priority=0))
    replica = start(consolidation_small_wait_seconds=100, consolidation_lost_percent=100)
    await replica.rounds(rounds)
    api.put(pod("s", on, gpus=1, priority=0))
    await replica.rounds(40 - rounds)
    assert moved(api) == moves
    await replica.rounds(370)
    assert moved(api)[:2] == ["ml/a", "ml/b"]


@pytest.mark.parametrize("writes", some(range(9)))
async def test_a_crash_loses_no_more_than_the_moves_made(api: ApiServer, start: Start, writes: int) -> None:
    first = start()
    first.leader.lose_after = writes
    await first.rounds(33)
    first.source.stop()
    second = start()
    second.now = first.now
    await second.rounds(5)
    for name in moved(api):
        api.delete(name)
    await second.rounds(45)
    assert moved(api) == ["ml/a", "ml/b"]
    assert nominated(api) == "n1"


@pytest.fixture
def nobody_waits(api: ApiServer) -> None:
    """And no large job ever came."""
    for name in ("p", "c"):
        api.delete(f"ml/{name}")
    for name in ("c", "d"):
        api.put(runs(name, "n2", gpus=3))


BACKGROUND = {"consolidation": "off", "consolidation_background": "on"}


@pytest.mark.usefixtures("nobody_waits")
async def test_a_node_is_emptied_before_anybody_waits(api: ApiServer, start: Start) -> None:
    replica = start(**BACKGROUND)
    await replica.rounds(2)
    assert moved(api) == ["ml/a", "ml/b"]
    assert {event["reason"] for event in api.evictions.events} == {"Moved"}
    assert "room for its replacement is held on another node" in api.evictions.events[0]["note"]
    assert log(api, "nominate") == []
    for name in ("a", "b"):
        api.delete(f"ml/{name}")
        api.put(runs(f"{name}-again", "n2", age=1))
    await replica.rounds(60)
    assert replica.metric("moves_total", result="placed") == 2
    assert moved(api) == ["ml/a", "ml/b"]


async def test_room_is_made_for_a_large_job_that_is_expected(api: ApiServer, start: Start) -> None:
    """n1 cannot be emptied, but a pod of 4 GPUs came once, and would fit if a left."""
    api.put(pod("p", gpus=4, priority=0))
    for manifest in (runs("b", "n1", restartable=False, gpus=4), runs("c", "n2", restartable=False, gpus=6)):
        api.put(manifest)
    replica = start(**BACKGROUND)
    await replica.rounds(2)
    assert moved(api) == []  # p waits
    api.delete("ml/p")
    await replica.rounds(10)
    assert moved(api) == ["ml/a"]


@pytest.mark.usefixtures("nobody_waits")
@pytest.mark.parametrize(
    "change",
    [
        {"consolidation_background": "off"},
        {"consolidation_moves": 1},
        {"consolidation_after_seconds": 50},
    ],
    ids=str,
)
async def test_what_the_settings_forbid_before_anybody_waits(
    api: ApiServer, start: Start, change: dict[str, Any]
) -> None:
    replica = start(**(BACKGROUND | change))
    await replica.rounds(60)
    assert log(api) == []


@pytest.mark.usefixtures("nobody_waits")
async def test_moves_before_anybody_waits_have_no_budget_of_their_own(api: ApiServer, start: Start) -> None:
    replica = start(**BACKGROUND)
    replica.state.disruptions.load({"moves": [[replica.now - 60, 7000.0]]})
    await replica.rounds(33)
    assert log(api) == []


@pytest.mark.usefixtures("nobody_waits")
async def test_nobody_moves_to_a_node_that_is_empty(api: ApiServer, start: Start) -> None:
    api.put(runs("f", "n2", gpus=2))
    api.put(node("n3", gpus=8))
    replica = start(**BACKGROUND)
    await replica.rounds(60)
    assert log(api) == []


@pytest.mark.usefixtures("nobody_waits")
async def test_moves_before_anybody_waits_can_be_recommended(
    api: ApiServer, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    replica = start(**(BACKGROUND | {"consolidation_background": "recommend"}))
    with caplog.at_level("INFO"):
        await replica.rounds(60)
    assert log(api) == []
    assert "no pending pod: 2 moves would make room on n1: ml/a to n2, ml/b to n2" in caplog.text
    assert replica.metric("moves_total", result="recommended") == 1


def window(opens: float, seconds: float = 3600.0) -> list[dict[str, Any]]:
    """A window that is open every day from this time (Unix seconds) on."""
    at = datetime.fromtimestamp(opens, UTC)
    return [{"cron": f"{at.minute} {at.hour} * * *", "duration": seconds}]


async def test_outside_of_windows_moves_are_announced_and_not_made(api: ApiServer, start: Start) -> None:
    opens = (time.time() // 60 + 20) * 60
    replica = start(windows=window(opens))
    await replica.rounds(60)
    at = datetime.fromtimestamp(opens, UTC).strftime("%H:%M UTC")
    assert {what for what, _, _ in log(api)} == {"event"}
    notes = {event["regarding"]["name"]: event["note"] for event in api.evictions.events}
    assert notes.keys() == {"p", "a", "b"}
    assert notes["p"].startswith("2 moves would make room; lost work: ")
    assert all(note.endswith(at) and "; not before the next window, " in note for note in notes.values())
    api.evictions.events.clear()
    replica.now = opens
    await replica.rounds(40)
    assert moved(api) == ["ml/a", "ml/b"]


async def test_no_move_is_tried_outside_of_windows(api: ApiServer, start: Start) -> None:
    """At random times, in order. Each try fails, so that the next one has as much reason."""
    for name in ("a", "b"):
        manifest = runs(name, "n1")
        del manifest["metadata"]["annotations"]["stowage.dev/checkpointed-at"]
        manifest["metadata"]["annotations"]["stowage.dev/checkpoint-interval"] = "60"
        api.put(manifest)
    draw, windows = random.Random(2), [{"cron": "30 2 * * *", "zone": "Europe/Berlin", "duration": "8h"}]
    free = {"consolidation_after_seconds": 0, "consolidation_price": 1e9, "consolidation_lost_percent": 100}
    replica, tries = start(windows=windows, **free), 0
    berlin = ZoneInfo("Europe/Berlin")

    def tried() -> float:
        done = log(api, "nominate", "evict", "dry-run")
        return len(done) + replica.metric("nominations_total", result="failed")

    for _ in range(examples(1000, least=60)):
        replica.now += draw.uniform(1, 34) * HOUR
        api.evictions.faults["nominate"].append("500")
        before = tried()
        await replica.rounds(1)
        after = tried()
        clock = datetime.fromtimestamp(replica.now, berlin)
        today = clock.replace(hour=2, minute=30, second=0, microsecond=0)
        assert after == before or today.timestamp() <= replica.now < today.timestamp() + 8 * HOUR
        tries += after > before
    assert tries > 10
    assert moved(api) == []
