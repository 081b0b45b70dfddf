"""The HTTP server, on a real socket whose writes are counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from extender.server import http_server
from extender.server.run import listen

App = Callable[..., Awaitable[None]]
BODY = b'{"answer": 42}'
LENGTH = (b"content-length", b"%d" % len(BODY))


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
    monkeypatch: pytest.MonkeyPatch, app: App, request: bytes, *more: bytes
) -> tuple[list[bytes], bytes]:
    """What the server writes, piece by piece, for a request that is sent in parts, and what arrives until it
    closes."""
    writes: list[bytes] = []

    class Connection(http_server.Connection):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.transport = Counting(self.transport, writes)  # type: ignore[assignment]

    monkeypatch.setattr(http_server, "Connection", Connection)
    with listen("127.0.0.1", 0) as sock:
        server = http_server.Server(app, sock)
        await server.start()
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        for part in (request, *more):
            writer.write(part)
            await asyncio.sleep(0.05)
        async with asyncio.timeout(60):
            arrived = await reader.read()
        writer.close()
        await server.stop(60)
        assert not server.connections
        assert not server.tasks
    return writes, arrived


def request(*headers: str, method: str = "POST", content: bytes = b"{}", path: str = "/") -> bytes:
    lines = (f"{method} {path} HTTP/1.1", "Host: a", f"Content-Length: {len(content)}")
    return "\r\n".join([*lines, *headers, "", ""]).encode() + content


LAST = "Connection: close"


async def read_body(receive: Callable[[], Awaitable[dict[str, Any]]]) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    return body


def answering(*parts: bytes, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = (LENGTH,)) -> App:
    """An application that reads the body, and answers in these parts."""

    async def app(scope, receive, send):
        await read_body(receive)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for part in parts[:-1]:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": parts[-1]})

    return app


async def test_an_answer_is_one_write(monkeypatch):
    writes, arrived = await writes_for(monkeypatch, answering(BODY), request(LAST))
    assert writes == [arrived]
    head, body = arrived.split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\ndate: ")
    assert body == BODY


@pytest.mark.parametrize("headers", [(LENGTH,), ()])
async def test_the_parts_of_a_long_answer_are_sent_as_they_come(monkeypatch, headers):
    app = answering(BODY[:3], BODY[3:], headers=headers)
    writes, arrived = await writes_for(monkeypatch, app, request(LAST))
    parts = [BODY[:3], BODY[3:]] if headers else [b"3\r\n" + BODY[:3] + b"\r\n", b"b\r\n" + BODY[3:]]
    assert b"\r\n\r\n" + parts[0] in writes[0]
    assert writes[1].startswith(parts[1])
    assert len(writes) == 2
    assert (b"chunked" in writes[0]) == (not headers)
    assert arrived == b"".join(writes)
    assert arrived.endswith(BODY[3:] if headers else b"\r\n0\r\n\r\n")


async def test_an_old_caller_gets_no_chunks(monkeypatch):
    old = b"GET / HTTP/1.0\r\n\r\n"
    _, arrived = await writes_for(monkeypatch, answering(BODY[:3], BODY[3:], headers=()), old)
    assert arrived.endswith(b"connection: close\r\n\r\n" + BODY)


async def test_an_answer_without_a_body_arrives(monkeypatch):
    app = answering(b"", headers=((b"content-length", b"0"),))
    writes, arrived = await writes_for(monkeypatch, app, request(LAST))
    assert writes == [arrived]
    assert arrived.endswith(b"\r\n\r\n")
    _, arrived = await writes_for(monkeypatch, answering(b"", status=304, headers=()), request(LAST))
    assert b"chunked" not in arrived


async def test_head_has_no_body(monkeypatch):
    _, arrived = await writes_for(monkeypatch, answering(BODY), request(LAST, method="HEAD", content=b""))
    assert arrived.startswith(b"HTTP/1.1 200 OK\r\n")
    assert BODY not in arrived


async def test_a_caller_that_waits_for_100_gets_it_before_the_answer(monkeypatch):
    writes, arrived = await writes_for(
        monkeypatch, answering(BODY), request("Expect: 100-continue", LAST)[:-2], b"{}"
    )
    assert writes[0] == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert len(writes) == 2
    assert arrived == b"".join(writes)


async def test_an_application_that_fails_is_500_or_ends_the_connection(monkeypatch, caplog):
    def failing(*parts: bytes) -> App:
        async def app(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": [LENGTH]})
            for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            raise RuntimeError("injected")

        return app

    _, arrived = await writes_for(monkeypatch, failing(), request())
    assert arrived.startswith(b"HTTP/1.1 500 ")
    assert b"connection: close" in arrived
    _, arrived = await writes_for(monkeypatch, failing(BODY[:3]), request())
    assert arrived.startswith(b"HTTP/1.1 200 ")
    assert arrived.endswith(b"\r\n\r\n" + BODY[:3])
    assert caplog.text.count("a request was not answered") == 2


async def test_requests_of_one_connection_are_answered_in_their_order(monkeypatch):
    async def app(scope, receive, send):
        body = await read_body(receive)
        await asyncio.sleep(0.05 if scope["path"] == "/a" else 0)
        text = b"%b %b?%b;" % (body, scope["path"].encode(), scope["query_string"])
        headers = [(b"content-length", b"%d" % len(text))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text})

    chunked = b"POST /b%20c?d=%20 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n2\r\n"
    together = request(content=b"1", path="/a") + chunked
    rest = b"2\r\n34\r\n0\r\n\r\n" + request(LAST, content=b"5", path="/e") + request()
    writes, _ = await writes_for(monkeypatch, app, together, rest)
    assert [write.rpartition(b"\n")[2] for write in writes] == [b"1 /a?;", b"234 /b c?d=%20;", b"5 /e?;"]


async def test_a_large_body_waits_for_the_application(monkeypatch):
    content, taken = b"x" * (1 << 20), []

    async def app(scope, receive, send):
        await asyncio.sleep(0.05)
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
            taken.append(len(message["body"]))
        assert body == content
        await answering(BODY)(scope, complete, send)

    async def complete():
        return {"type": "http.request", "body": b"", "more_body": False}

    _, arrived = await writes_for(monkeypatch, app, request(LAST, content=content))
    assert arrived.endswith(BODY)
    assert max(taken) < 1 << 19


async def test_a_caller_that_leaves_is_noticed(monkeypatch):
    left = asyncio.Event()

    async def app(scope, receive, send):
        await read_body(receive)
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"nobody reads it"})
        left.set()

    with listen("127.0.0.1", 0) as sock:
        server = http_server.Server(app, sock)
        await server.start()
        _, writer = await asyncio.open_connection(*sock.getsockname())
        writer.write(request())
        await asyncio.sleep(0.05)
        writer.transport.abort()
        async with asyncio.timeout(60):
            await left.wait()
        await server.stop(60)


async def test_a_stop_ends_what_takes_too_long(monkeypatch):
    async def app(scope, receive, send):
        await asyncio.sleep(60)

    with listen("127.0.0.1", 0) as sock:
        server = http_server.Server(app, sock)
        await server.start()
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        writer.write(request())
        await asyncio.sleep(0.05)
        await server.stop(0.05)
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        assert not server.tasks
        writer.close()
