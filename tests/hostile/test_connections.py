"""Callers on real sockets that are slow or send nonsense, while kube-scheduler gets its answers.

No test measures time: the limits in seconds are shortened, and answers are counted.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product

import pytest

from extender import logs
from extender.server import body
from extender.server import port as ports
from extender.server import run as serve
from extender.server.app import create_app
from extender.server.service import Service
from extender.settings import Settings
from extender.source.snapshot import Snapshot, SnapshotSource
from extender.untrusted.limits import BODIES_IN_FLIGHT, CONNECTIONS, HEADERS, LOG_LINES, PIPELINED_REQUESTS
from tests.contract.conftest import manifest
from tests.extender.builders import make_node
from tests.extender.ports import serving

MIB = 1 << 20
FILTER = json.dumps({"Pod": manifest(), "Nodes": None, "NodeNames": ["a"]}).encode()
CHUNKED = b"POST /scheduler/filter HTTP/1.1\r\nHost: s\r\nTransfer-Encoding: chunked\r\n\r\n"
NEVER = 60.0


@dataclass
class Port:
    """A listening service with a body limit of 1 MiB, and the connections to it."""

    number: int
    server: ports.Port
    open: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)

    async def connect(self, address: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        pair = await asyncio.open_connection("127.0.0.1", self.number, local_addr=(address, 0))
        self.open.append(pair)
        return pair

    async def send(self, data: bytes, address: str = "127.0.0.1") -> asyncio.StreamReader:
        """Send on a new connection, as far as the service reads."""
        reader, writer = await self.connect(address)
        with suppress(ConnectionError):
            writer.write(data)
            await writer.drain()
        return reader

    async def filter(self, address: str = "127.0.0.1") -> list[str]:
        """The nodes that fit, as kube-scheduler would get them."""
        reader = await self.send(request("filter", FILTER), address)
        return json.loads((await answer(reader))[1])["NodeNames"]

    @property
    def connected(self) -> int:
        return len(self.server.server_state.connections)


def request(verb: str, content: bytes, declared: int | None = None) -> bytes:
    length = len(content) if declared is None else declared
    head = f"POST /scheduler/{verb} HTTP/1.1\r\nHost: stowage\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {length}\r\n\r\n".encode() + content


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of the next answer; status 0 if the connection ends without one."""
    async with asyncio.timeout(NEVER):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            return int(head.split()[1]), await reader.readexactly(int(length.partition(b":")[2]))
        except (asyncio.IncompleteReadError, ConnectionError):
            return 0, b""


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    service = Service(
        Settings(body_limit_mib=1), SnapshotSource(Snapshot({"a": make_node("a")}), "test"), "0"
    )
    await service.start()
    with serve.listen("127.0.0.1", 0) as sock:
        async with serving(create_app(service), sock) as server:
            running = Port(sock.getsockname()[1], server)
            yield running
            assert await running.filter("127.0.0.9") == ["a"]  # after whatever the test did
            for _, writer in running.open:
                writer.transport.abort()
            await asyncio.sleep(0)  # the transports close in the next turn of the event loop


async def until(port: Port, connected: int) -> None:
    async with asyncio.timeout(NEVER):
        while port.connected > connected:
            await asyncio.sleep(0.01)


async def test_slow_and_large_bodies_beside_normal_requests(port: Port) -> None:
    slow = [await port.send(request("filter", FILTER[:-1], len(FILTER))) for _ in range(12)]
    large = [await port.send(request("filter", b" " * (MIB - 1), MIB)) for _ in range(3 * BODIES_IN_FLIGHT)]
    assert [await port.filter() for _ in range(20)] == [["a"]] * 20
    for _, writer in port.open[:12]:
        writer.write(FILTER[-1:])
    assert [json.loads((await answer(reader))[1])["NodeNames"] for reader in slow] == [["a"]] * 12
    for _, writer in port.open[12 : 12 + len(large)]:
        with suppress(ConnectionError):
            writer.write(b" ")
    errors = [json.loads(text)["Error"] for status, text in [await answer(one) for one in large] if status]
    assert errors.count("too many large requests at once") >= len(large) - BODIES_IN_FLIGHT
    assert sum(error.startswith("not a valid filter request: ") for error in errors) <= BODIES_IN_FLIGHT


@pytest.mark.parametrize(("verb", "status"), [("filter", 200), ("prioritize", 408), ("preempt", 408)])
async def test_a_body_that_takes_too_long(
    port: Port, monkeypatch: pytest.MonkeyPatch, verb: str, status: int
) -> None:
    monkeypatch.setattr(ports, "BODY_SECONDS", 0.1)
    monkeypatch.setattr(body, "BODY_SECONDS", 0.1)
    got, text = await answer(await port.send(request(verb, FILTER[:-1], len(FILTER))))
    assert got == status
    assert b"the body took longer than 0.1 s" in text


async def test_a_body_for_an_explanation_that_takes_too_long(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "BODY_SECONDS", 0.1)
    monkeypatch.setattr(body, "BODY_SECONDS", 0.1)
    reader = await port.send(b"POST /debug/explain HTTP/1.1\r\nHost: s\r\nContent-Length: 9\r\n\r\nkind")
    assert (await answer(reader))[0] == 408


@pytest.mark.parametrize(
    "beginning",
    [
        b"P",
        b"\r\n" * 9,
        b"GET /healthz HTTP/1.1\r\nHost: s",
        b"POST /nothing HTTP/1.1\r\nHost: s\r\nContent-Length: 99\r\n\r\nx",
    ],
)
async def test_a_head_or_an_unread_body_that_never_ends(
    port: Port, monkeypatch: pytest.MonkeyPatch, beginning: bytes
) -> None:
    monkeypatch.setattr(ports, "HEADER_SECONDS", 0.1)
    reader = await port.send(beginning)
    if beginning.startswith(b"POST"):
        assert (await answer(reader))[0] == 404
        port.open[0][1].write(b"x")
    await until(port, 0)


async def test_a_connection_that_never_speaks(port: Port) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ports, "KEEP_ALIVE", 0.1)
        await port.send(b"")
        await until(port, 0)


async def test_an_answer_that_is_not_read(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "HEADER_SECONDS", 0.1)
    _, writer = await port.connect()
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    with suppress(ConnectionError):
        while port.connected:
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: s\r\n\r\n" * 8)
            await asyncio.sleep(0.001)
    assert port.connected == 0


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nHost: s\r\nX: " + b"x" * (HEADERS + 9),
        b"GET /healthz HTTP/1.1\r\nHost: s\r\n" + b"X: x\r\n" * HEADERS,
        b"GET /" + b"x" * (HEADERS + 9),
        b"GET /healthz HTTP/1.1\r\nHost: s\r\nX: " + b"x" * (HEADERS + 9) + b"\r\n\r\n",
    ],
    ids=["value", "many", "path", "at once"],
)
async def test_a_head_that_is_too_large(port: Port, head: bytes) -> None:
    status, text = await answer(await port.send(head))
    assert status in (400, 0)  # 0: the service closed the connection before all was sent
    assert len(text) < 100
    await until(port, 0)


async def test_many_requests_at_once_on_one_connection(port: Port) -> None:
    reader = await port.send(b"GET /healthz HTTP/1.1\r\nHost: s\r\n\r\n" * 5000)
    statuses = [(await answer(reader))[0] for _ in range(PIPELINED_REQUESTS + 2)]
    assert statuses[0] == 200  # 0: the port has closed the connection while more was on its way
    assert set(statuses) <= {200, 400, 0}
    await until(port, 0)
    reader = await port.send(b"GET /healthz HTTP/1.1\r\nHost: s\r\n\r\n" * 10)
    assert [(await answer(reader))[0] for _ in range(10)] == [200] * 10


async def test_more_connections_than_the_limit(port: Port) -> None:
    """Who opens them loses them; kube-scheduler, from elsewhere, keeps its own."""
    reader, writer = await port.connect("127.0.0.2")
    for _ in range(CONNECTIONS + 20):
        await port.connect("127.0.0.3")
    assert await port.filter("127.0.0.2") == ["a"]
    assert port.connected <= CONNECTIONS
    writer.write(request("filter", FILTER))
    assert json.loads((await answer(reader))[1])["NodeNames"] == ["a"]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),  # TLS
        (b"GET /healthz HTTP/9.9\r\n\r\n", 400),
        (b"GET /\x00 HTTP/1.1\r\nHost: s\r\n\r\n", 400),
        (b"GET /\xff\xfe HTTP/1.1\r\nHost: s\r\n\r\n", 400),
        (b"GET /%00%ff%zz/../..//debug/nodes HTTP/1.1\r\nHost: s\r\n\r\n", 404),
        (b"GET /debug/nodes/%00%0d%0aX:%20y HTTP/1.1\r\nHost: s\r\n\r\n", 404),
        (b"GET /debug/nodes/" + b"n" * 60_000 + b" HTTP/1.1\r\nHost: s\r\n\r\n", 404),
        (b"GET http://elsewhere/healthz HTTP/1.1\r\nHost: s\r\n\r\n", 200),
        (b"GET /version HTTP/1.1\r\nHost: s\r\nHost: t\r\nConnection: close, close\r\n\r\n", 400),
        (b"GET /version HTTP/1.1\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 200),
        (request("filter", FILTER).replace(b"Host", b"Content-Length: 5\r\nHost"), 400),
        (request("filter", FILTER).replace(b"Host", b"Transfer-Encoding: chunked\r\nHost"), 400),
        (request("filter", FILTER, -5), 400),
        (request("prioritize", b"", 1 << 70), 400),
        (request("prioritize", FILTER, 1 << 40), 413),
        (
            request("filter", FILTER).replace(
                b"Content-Length: ", b"Expect: 100-continue\r\nContent-Length: "
            ),
            100,
        ),
        (
            CHUNKED + b"ffffffffffffffffff\r\n",
            400,
        ),
        (
            CHUNKED + b"3\r\n{\n\n\r\n0\r\n\r\n",
            200,
        ),
        (b"TRACE /metrics HTTP/1.1\r\nHost: s\r\n\r\n", 405),
        (b"BREW /healthz HTTP/1.1\r\nHost: s\r\n\r\n", 400),
    ],
    ids=range(21),
)
async def test_nonsense_on_the_wire(port: Port, data: bytes, status: int) -> None:
    reader = await port.send(data)
    async with asyncio.timeout(NEVER):
        head = await reader.readuntil(b"\r\n\r\n")
    assert int(head.split()[1]) == status
    assert len(head) < 400


async def test_a_caller_that_hangs_up_leaves_nothing_behind(port: Port) -> None:
    for _ in range(3 * BODIES_IN_FLIGHT):
        _, writer = await port.connect()
        writer.write(request("filter", b" " * (MIB - 1), MIB))
        await writer.drain()
        writer.transport.abort()
    await until(port, 0)
    large = FILTER.ljust(MIB)
    readers = [await port.send(request("filter", large)) for _ in range(BODIES_IN_FLIGHT)]
    assert [json.loads((await answer(one))[1])["NodeNames"] for one in readers] == [["a"]] * BODIES_IN_FLIGHT


UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n\r\n"
)
LOGGED = [
    b"NONSENSE\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n" + UPGRADE,
    b"GET / HTTP/1.1\r\nHost: a%d.example\r\nConnection: close\r\n\r\n",
]
"""Requests that could cost a log line each."""


async def test_a_flood_of_requests_writes_a_few_lines(port: Port) -> None:
    logs.configure("info", written := io.StringIO())
    for number, sent in product(range(150), LOGGED):
        reader, writer = await port.connect()
        writer.write(sent.replace(b"%d", b"%d" % number))
        with suppress(ConnectionError):
            await reader.read(1 << 16)
        writer.transport.abort()
    assert LOG_LINES <= written.getvalue().count("\n") < 5 * LOG_LINES
