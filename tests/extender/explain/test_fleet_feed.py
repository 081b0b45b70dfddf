"""What the page is told: everything once, and then only what changed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from extender.cluster.census import CensusTaker
from extender.cluster.state import State
from extender.explain.fleet_feed import FleetFeed
from extender.k8s.objects import Deleted, Upserted
from packing.plan.backfill import Reservation, Reservations
from tests.extender.builders import NOW, make_node, make_pod, make_state


def parsed(parts: list[bytes]) -> dict[str, Any]:
    return dict(json.loads(b"".join(parts)))


class Reader:
    """Reads a feed a minute apart, so that nothing is answered from before."""

    def __init__(self, state: State, step: float = 10.0) -> None:
        self.now, self._step = 0.0, step
        self.feed = FleetFeed(state, CensusTaker(state), lambda: self.now)
        self.version = ""

    async def read(self, version: str | None = None) -> dict[str, Any]:
        self.now += self._step
        answer = parsed(await self.feed.since(self.version if version is None else version))
        self.version = answer["version"]
        return dict(answer)


def names(answer: dict[str, Any]) -> list[str]:
    return sorted(node["name"] for node in answer["nodes"])


async def test_everything_first_and_then_only_changes() -> None:
    state = make_state(make_node("a"), make_node("b"), make_pod("w", 99))
    reader = Reader(state)
    first = await reader.read()
    assert first["all"]
    assert names(first) == ["a", "b"]
    assert [pod["pod"] for pod in first["waiting"]] == ["default/w"]
    unchanged = await reader.read()
    assert unchanged == first | {"all": False, "nodes": [], "waiting": None, "at": unchanged["at"]}
    state.apply([Upserted(make_pod("p", 3, node_name="b"))])
    changed = await reader.read()
    assert names(changed) == ["b"]
    assert changed["nodes"][0]["pods"][0][0] == "default/p"


async def test_a_reserved_node_says_for_which_job_until_it_is_not_reserved() -> None:
    state = make_state(make_node("a"), make_node("b"))
    reader = Reader(state)
    assert {node["reserved"] for node in (await reader.read())["nodes"]} == {""}
    held = Reservation("key", "ml", 0, ("b",), 8.0, NOW, NOW + 600, NOW + 900, NOW, 7200.0)
    state.large_jobs.update(Reservations((held,)))
    (node,) = (await reader.read())["nodes"]
    until = "until about 08:10 UTC (since 08:00 UTC, 2 GPU-hours idle on 1 node)"
    assert (node["name"], node["reserved"]) == ("b", f"reserved for a job {until}")
    state.large_jobs.update(Reservations())
    assert [(node["name"], node["reserved"]) for node in (await reader.read())["nodes"]] == [("b", "")]


async def test_a_removed_node_and_one_that_comes_back() -> None:
    state = make_state(make_node("a"), make_node("b"))
    reader = Reader(state)
    before = (await reader.read())["version"]
    state.apply([Deleted("Node", "b")])
    answer = await reader.read()
    assert (answer["all"], names(answer)) == (True, ["a"])
    state.apply([Upserted(make_node("b", 4))])
    assert names(await reader.read()) == ["b"]
    assert names(await reader.read(before)) == ["a", "b"]


async def test_many_readers_share_the_work() -> None:
    state = make_state(make_node("a"))
    reader = Reader(state, 0.0)
    first, second = await asyncio.gather(reader.feed.since(""), reader.feed.since(""))
    assert parsed(first)["version"] == parsed(second)["version"]
    state.apply([Upserted(make_pod("p", node_name="a"))])
    assert parsed(await reader.feed.since(""))["version"] == parsed(first)["version"]
    reader.now += 1.0
    assert parsed(await reader.feed.since(""))["version"] != parsed(first)["version"]


async def test_nothing_is_kept_for_nobody() -> None:
    reader = Reader(make_state(make_node("a")))
    await reader.read()
    reader.feed.forget_if_idle()
    assert not (await reader.read())["all"]
    reader.now += 601
    reader.feed.forget_if_idle()
    assert (await reader.read())["all"]
