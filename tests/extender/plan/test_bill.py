"""The bill of a day: replayed arrivals start when the simulator of the benchmarks starts them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from bench.packing.worlds import World, play
from extender.plan.bill import COMPARED, DAY, Bill, daily_bill
from tests.extender.plan.clusters import GPU, Manifest, node, pod, source_of

BEGAN = 1_790_000_000.0
NOW = BEGAN + DAY


def ran(name: str, gpus: int, created: float, started: float, seconds: float, **more: Any) -> Manifest:
    """A pod that arrived, started and ended so many seconds after the day began, or runs at its end."""
    item = pod(name, "node-0" if started < DAY else "", gpus, **more)
    ended = started + seconds if started + seconds <= DAY else None
    item["metadata"]["creationTimestamp"] = stamp(created)
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": stamp(ended or 0)}
    if started < DAY:
        phase = "Running" if ended is None else "Succeeded"
        item["status"] = {"phase": phase, "startTime": stamp(started), "conditions": [ready]}
    return item


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(BEGAN + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def bill_of(*items: Manifest) -> Bill:
    return daily_bill(source_of(*items), NOW, lambda what, part: None)


def world(seed: int) -> dict[str, Any]:
    """Six nodes of eight GPUs under a load at which pods wait, all of which end within the day."""
    rng, sizes = random.Random(seed), (1, 2, 4, 8)
    templates = [
        {"name": str(n), "pod": pod(str(n), gpus=n), "gpus": n, "gang": 1, "domain": False, "big": n == 8}
        for n in sizes
    ]
    times = sorted(rng.randrange(50_000) for _ in range(160))
    arrivals = [[time, rng.randrange(600, 14_000), rng.choice([0, 0, 0, 1, 1, 2, 3])] for time in times]
    nodes = [node(f"node-{n}", 8) for n in range(6)]
    return {
        "load": 1.0, "life": 1.0, "warm": 0, "gpus": 48, "nodes": nodes, "templates": templates,
        "arrivals": arrivals,
    }  # fmt: skip


def started_in(text: Mapping[str, Any], policy: str) -> dict[int, float]:
    began = dict[int, float]()
    play(World(text, policy), lambda number, now, held: began.__setitem__(number, now), queue=True)
    return began


@pytest.mark.parametrize("seed", range(3))
def test_the_bill_says_what_the_simulator_of_the_benchmarks_says(seed: int) -> None:
    text = world(seed)
    jobs = [(time, seconds, 2**kind) for time, seconds, kind in text["arrivals"]]
    starts = {policy: started_in(text, policy) for policy in COMPARED}
    actual = starts["least-allocated"]
    pods = [ran(f"job-{n}", g, t, actual[n], s, owner="") for n, (t, s, g) in enumerate(jobs)]
    lines = {line.policy: line for line in bill_of(*text["nodes"], *pods).lines}
    hours = sum(seconds * gpus for _, seconds, gpus in jobs) / 3600
    for policy, began in starts.items():
        waited = sum((began[n] - time) * gpus for n, (time, _, gpus) in enumerate(jobs)) / 3600
        assert lines[policy].used == pytest.approx(hours, rel=0.01)
        assert lines[policy].waited == pytest.approx(waited, rel=0.05, abs=0.2)
        earlier = sum(began[n] < actual[n] - 60 for n in began)
        assert lines[policy].earlier == pytest.approx(earlier, abs=2)
    assert lines[""].waited == pytest.approx(lines["least-allocated"].waited, abs=0.2)


def test_pods_that_ran_before_hold_their_gpus_until_they_ended() -> None:
    old, next_one = ran("old", 8, -9_000, -9_000, 12_600), ran("next", 8, 0, 3_600, 7_200)
    lines = bill_of(node("node-0", 8), old, next_one).lines
    assert {(line.used, line.waited) for line in lines} == {(16, 8)}


def test_what_runs_until_now_and_what_waits_count_until_now() -> None:
    runs, waits = ran("runs", 8, DAY - 7_200, DAY - 7_200, 2 * DAY), ran("waits", 4, DAY - 3_600, 9 * DAY, 1)
    bill = bill_of(node("node-0", 8), runs, waits)
    assert {(line.used, line.waited) for line in bill.lines} == {(16, 4)}
    assert bill.jobs == 2


def test_a_gang_starts_when_all_of_its_pods_fit() -> None:
    gang = {"annotations": {"stowage.dev/gang": "g", "stowage.dev/gang-min": "2"}}
    first = ran("first", 8, 0, 0, 3_600)
    pods = [ran(f"gang-{n}", 8, 60, 9_000, 3_600, **gang) for n in range(2)]
    bill = bill_of(node("node-0", 8), node("node-1", 8), first, *pods)
    happened, *others = bill.lines
    assert happened.waited == pytest.approx(16 * 8_940 / 3600, abs=0.1)
    assert {line.waited for line in others} == {round(16 * 3_540 / 3600, 1)}
    assert bill.jobs == 2


def test_what_is_not_replayed_is_said() -> None:
    claim = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]}
    pods = [ran("claims", 0, 60, 60, 60, **claim), ran("agent", 1, 60, 60, 2 * DAY, owner="DaemonSet")]
    unknown = ran("unknown", 1, 60, 60, 600)
    unknown["status"]["conditions"] = []
    gated = ran("gated", 1, 60, 9 * DAY, 1, schedulingGates=[{"name": "team/quota"}])
    bill = bill_of(node("node-0", 8, devices={GPU: "8"}), *pods, unknown, gated)
    assert bill.jobs == 0
    assert len(bill.notes) == 4
