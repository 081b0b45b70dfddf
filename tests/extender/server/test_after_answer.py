"""Work after an answer happens once, in order, and before anything that depends on it."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import cast

import pytest
import uvloop

from extender.k8s.objects import Listed, Upserted
from extender.server.between_answers import AfterAnswer
from extender.server.engine import Engine
from extender.server.metrics import Metrics
from extender.settings import Settings
from extender.source.snapshot import Snapshot, SnapshotSource
from tests.extender.builders import make_node


class Server(asyncio.Protocol):
    """Answers, and says when the work after the answer is done."""

    def __init__(self, after: AfterAnswer, done: asyncio.Event) -> None:
        self._after, self._done = after, done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        asyncio.get_running_loop().create_task(self._answer())

    async def _answer(self) -> None:
        self._after.add(self._work)
        self._transport.write(b"answer")

    def _work(self) -> None:
        self.unwritten = self._transport.get_write_buffer_size()
        self._done.set()


def test_the_answer_is_written_first() -> None:
    async def ask() -> int:
        done, loop = asyncio.Event(), asyncio.get_running_loop()
        protocol = Server(AfterAnswer(), done)
        server = await loop.create_server(lambda: protocol, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        writer.write(b"request")
        assert await reader.readexactly(6) == b"answer"
        await done.wait()
        writer.close()
        server.close()
        return protocol.unwritten

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(ask()) == 0


async def test_calls_are_made_once_and_in_order(caplog: pytest.LogCaptureFixture) -> None:
    after, made = AfterAnswer(), list[int]()
    after.add(lambda: made.append(1))
    after.add(lambda: made.append(1 // 0))
    after.add(lambda: made.append(2))
    assert made == []
    with caplog.at_level(logging.ERROR):
        await asyncio.sleep(0)
    assert made == [1, 2]
    assert "the work after an answer failed" in caplog.text
    after.add(lambda: made.append(3))
    after.run()
    await asyncio.sleep(0)
    assert made == [1, 2, 3]


async def test_decisions_show_the_state_before_the_next_event() -> None:
    engine = Engine(SnapshotSource(Snapshot(), "test"), Settings(decisions_kept=9), Metrics(list))
    synced = [Listed("Pod", frozenset()), Listed("Node", frozenset())]
    engine.apply([*synced, Upserted(make_node("a", 8)), Upserted(make_node("b", 2))])
    container = {"resources": {"requests": {"nvidia.com/gpu": "2"}}}
    pod = {"metadata": {"name": "p", "namespace": "default", "uid": "p"}, "spec": {"containers": [container]}}
    body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": ["a", "b"]}).encode()
    await engine.verbs["filter"](body)
    engine.apply([Upserted(make_node("b", 1))])  # in the same turn of the loop
    [decision] = engine.inspector._decisions.about("default/p")
    assert decision.answer == "2 of 2 nodes fit"
    assert decision.explanation is not None
    assert (decision.explanation.nodes, decision.explanation.fits) == (2, 2)
