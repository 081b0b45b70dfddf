"""A reader waits while too many events of its kind are not applied yet, and nothing else does."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from extender.background import Background
from extender.k8s.objects import Event, Kind, Upserted
from extender.source.apiserver import KubeSource
from extender.source.interface import RECENT, Backlog
from extender.source.list_watch import Request
from extender.source.reflector import Reflector
from extender.source.rest import Timeouts
from extender.source.watched_kinds import WATCHED_KINDS
from tests.extender.apiserver import ApiServer, node, pod, source_of
from tests.extender.apistore import line, page


class Room(Backlog):
    """Events are applied as they come; there is room for pods or not, as the test says."""

    def __init__(self) -> None:
        self.is_there = threading.Event()
        self.asked = threading.Event()
        self.keys: list[str] = []

    def apply(self, events: Sequence[Event]) -> None:
        self.keys += [event.obj.key for event in events if isinstance(event, Upserted)]

    def has_room(self, kind: Kind) -> bool:
        if kind == "Pod":
            self.asked.set()
        return kind != "Pod" or self.is_there.is_set()


@pytest.fixture
def room() -> Room:
    return Room()


@pytest.fixture
def source(api: ApiServer, tmp_path: Path, room: Room) -> Iterator[KubeSource]:
    for number in range(4):
        api.put(pod(f"p{number}"))
    source = source_of(api, tmp_path)
    source.start(room.apply, room)
    yield source
    source.stop()


def eventually(is_true: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.005)


def lists_of_pods(api: ApiServer) -> int:
    return sum(path == "/api/v1/pods" and "watch" not in query for path, query in list(api.requests))


def test_no_more_is_read_until_there_is_room(api: ApiServer, source: KubeSource, room: Room) -> None:
    assert room.asked.wait(60)
    api.put(node("n1"))  # another kind is not blocked
    eventually(lambda: "n1" in room.keys)
    assert lists_of_pods(api) == 1  # its second page waits
    room.is_there.set()
    eventually(lambda: {"ml/p0", "ml/p3"} <= {*room.keys})
    room.is_there.clear()
    api.put(pod("next"))
    eventually(lambda: "ml/next" in room.keys)
    api.put(pod("last"))
    api.put(node("n2"))
    eventually(lambda: "n2" in room.keys)
    assert "ml/last" not in room.keys
    room.is_there.set()
    eventually(lambda: "ml/last" in room.keys)


def test_a_reader_that_waits_ends_with_the_service(source: KubeSource, room: Room) -> None:
    assert room.asked.wait(60)
    source.stop()
    reader = source._reflectors["Pod"]._thread
    assert reader
    assert not reader.is_alive()


def test_a_reader_that_waits_lists_again_on_demand(api: ApiServer, source: KubeSource, room: Room) -> None:
    """As after a change of the leader."""
    room.is_there.set()
    eventually(lambda: "ml/p3" in room.keys and source._reflectors["Pod"].is_open)
    room.is_there.clear()
    room.asked.clear()
    api.put(pod("next"))
    assert room.asked.wait(60)
    lists = lists_of_pods(api)
    call = source._reflectors["Pod"].relist()
    eventually(lambda: lists_of_pods(api) > lists)
    room.is_there.set()
    eventually(lambda: source._reflectors["Pod"].has_listed(call))


def test_a_line_that_waits_for_room_is_not_late(room: Room) -> None:
    whole, cut = line("ADDED", pod("whole")), line("ADDED", pod("cut"))

    class Reads:
        each = deadline = math.inf

    class Answer:
        def __init__(self, *parts: bytes) -> None:
            self.reads, self._parts = Reads(), list(parts)

        def read(self) -> bytes:
            return self._parts.pop()

        def read1(self, most: int) -> bytes:
            if time.monotonic() > self.reads.deadline:
                raise TimeoutError
            return self._parts.pop(0) if self._parts else b""

        def shutdown(self) -> None:
            pass

        def close(self) -> None:
            pass

    def send(request: Request) -> Any:
        return Answer(whole + cut[:9], cut[9:]) if request.watch else Answer(page([]))

    reflector, began = Reflector(WATCHED_KINDS["Pod"], send, Timeouts(line=0.5)), time.monotonic()

    class Later(Backlog):
        def has_room(self, kind: Kind) -> bool:
            return time.monotonic() - began > 1.0 or not room.keys

    reflector.start(room.apply, Background(), Later())
    eventually(lambda: "ml/cut" in room.keys)
    assert reflector.status().ends.get("error", 0) == 0
    reflector.stop()
    reflector.join(20)


async def test_answers_that_are_final_wait_for_all_events_and_others_for_old_ones(
    api: ApiServer, tmp_path: Path
) -> None:
    class Old(Backlog):
        old, waits = 0.0, 0

        def age(self) -> float:
            return self.old

        async def applied(self, within: float = 0.0) -> bool:
            self.waits += 1
            return self.old <= RECENT

    backlog, source = Old(), source_of(api, tmp_path)
    source.start(lambda events: None, backlog)
    async with asyncio.timeout(60):
        while not all(
            reflector.is_open for reflector in map(source._reflectors.__getitem__, ("Node", "Pod"))
        ):
            await asyncio.sleep(0.01)
    assert await source.caught_up()
    before, backlog.old = backlog.waits, RECENT / 2
    assert await source.caught_up(RECENT)
    assert backlog.waits == before
    assert await source.caught_up()
    assert backlog.waits == before + 1
    backlog.old = 2 * RECENT
    assert not await source.caught_up(RECENT)
    assert not await source.caught_up()
    source.stop()
