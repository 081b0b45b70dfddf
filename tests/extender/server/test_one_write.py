"""The head and the body of an answer, on a real server whose writes are counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from extender.server import run as serve

BODY = b'{"answer": 42}'
HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(BODY))]}


class Counting:
    """A real transport, and what is written to it."""

    def __init__(self, transport: asyncio.Transport, writes: list[bytes]) -> None:
        self._transport, self._writes = transport, writes

    def write(self, data: bytes) -> None:
        self._writes.append(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def writes_for(
    monkeypatch: pytest.MonkeyPatch, app: Callable[..., Awaitable[None]], request: bytes
) -> tuple[list[bytes], bytes]:
    """What the server writes for a request, piece by piece, and what arrives until it closes."""
    writes: list[bytes] = []

    class Connection(serve.Connection):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.transport = Counting(transport, writes)  # type: ignore[assignment]

    monkeypatch.setattr(serve, "Connection", Connection)
    with serve.listen("127.0.0.1", 0) as sock:
        server = serve._Server(app)
        serving = asyncio.create_task(server.serve([sock]))
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        writer.write(request)
        async with asyncio.timeout(60):
            arrived = await reader.read()
        writer.close()
        server.should_exit = True
        await serving
    return writes, arrived


def post(*headers: str, method: str = "POST", content: bytes = b"{}") -> bytes:
    lines = (f"{method} / HTTP/1.1", "Host: a", f"Content-Length: {len(content)}", "Connection: close")
    return "\r\n".join([*lines, *headers, "", ""]).encode() + content


async def read_body(receive: Callable[[], Awaitable[dict[str, Any]]]) -> None:
    while (await receive()).get("more_body"):
        pass


async def test_an_answer_is_one_write(monkeypatch):
    async def app(scope, receive, send):
        await read_body(receive)
        await send(HEAD)
        await send({"type": "http.response.body", "body": BODY})

    writes, arrived = await writes_for(monkeypatch, app, post())
    assert writes == [arrived]
    assert arrived.startswith(b"HTTP/1.1 200 OK\r\n")
    assert arrived.endswith(b"\r\n\r\n" + BODY)


async def test_the_parts_of_a_long_answer_are_sent_as_they_come(monkeypatch):
    async def app(scope, receive, send):
        await read_body(receive)
        await send(HEAD)
        await send({"type": "http.response.body", "body": BODY[:3], "more_body": True})
        await send({"type": "http.response.body", "body": BODY[3:]})

    writes, arrived = await writes_for(monkeypatch, app, post())
    assert [write.rpartition(b"\r\n\r\n")[2] for write in writes] == [BODY[:3], BODY[3:]]
    assert arrived == b"".join(writes)


async def test_an_answer_without_a_body_arrives(monkeypatch):
    async def app(scope, receive, send):
        await read_body(receive)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    writes, arrived = await writes_for(monkeypatch, app, post())
    assert writes == [arrived]
    assert arrived.endswith(b"\r\n\r\n")


async def test_a_caller_that_waits_for_100_gets_it_before_the_answer(monkeypatch):
    async def app(scope, receive, send):
        await read_body(receive)
        await send(HEAD)
        await send({"type": "http.response.body", "body": BODY})

    writes, arrived = await writes_for(monkeypatch, app, post("Expect: 100-continue"))
    assert writes[0] == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert len(writes) == 2
    assert arrived == b"".join(writes)


async def test_an_application_that_fails_after_the_head_sends_what_it_had(monkeypatch, caplog):
    async def app(scope, receive, send):
        await read_body(receive)
        await send(HEAD)
        raise RuntimeError("injected")

    writes, arrived = await writes_for(monkeypatch, app, post())
    assert writes == [arrived]
    assert arrived.startswith(b"HTTP/1.1 200 OK\r\n")
    assert arrived.endswith(b"\r\n\r\n")
    assert "injected" in caplog.text


async def test_head_has_no_body_to_wait_for(monkeypatch):
    async def app(scope, receive, send):
        await send(HEAD)
        await send({"type": "http.response.body", "body": BODY})

    _, arrived = await writes_for(monkeypatch, app, post(method="HEAD", content=b""))
    assert arrived.startswith(b"HTTP/1.1 200 OK\r\n")
    assert BODY not in arrived
