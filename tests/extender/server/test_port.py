"""The port's own part of HTTP, on a real socket. What uvicorn does by itself is tested there."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from extender.server import port as ports
from extender.server.run import listen
from tests.extender.ports import serving

App = Callable[..., Awaitable[None]]
BODY = b'{"answer": 42}'
LENGTH = (b"content-length", b"%d" % len(BODY))


async def exchanged(app: App, *parts: bytes) -> bytes:
    """What arrives until the port closes, for requests that are sent in parts."""
    with listen("127.0.0.1", 0) as sock:
        async with serving(app, sock) as port:
            reader, writer = await asyncio.open_connection(*sock.getsockname())
            for part in parts:
                writer.write(part)
                await asyncio.sleep(0.05)
            arrived = b""
            async with asyncio.timeout(60):
                with suppress(ConnectionError):  # the port closed it while more was on its way
                    arrived = await reader.read()
            writer.close()
            await until_empty(port)
            assert not port.server_state.tasks
    return arrived


async def until_empty(port: ports.Port) -> None:
    async with asyncio.timeout(60):
        while port.server_state.connections or port.handshakes or port.server_state.tasks:
            await asyncio.sleep(0.01)


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

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read_body(receive)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for part in parts[:-1]:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": parts[-1]})

    return app


async def test_an_old_caller_gets_neither_chunks_nor_100_continue() -> None:
    old = b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}"
    arrived = await exchanged(answering(BODY[:3], BODY[3:]), old)
    assert arrived.startswith(b"HTTP/1.1 200 OK")
    assert arrived.endswith(b"connection: close\r\n\r\n" + BODY)


async def test_a_caller_that_waits_for_100_gets_it_before_the_answer() -> None:
    arrived = await exchanged(answering(BODY), request("Expect: 100-continue", LAST)[:-2], b"{}")
    assert arrived.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200")


async def test_an_application_that_fails_is_500_or_ends_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def failing(*parts: bytes) -> App:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            if parts:
                await send({"type": "http.response.start", "status": 200, "headers": [LENGTH]})
            for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            raise RuntimeError("injected")

        return app

    arrived = await exchanged(failing(), request())
    assert arrived.startswith(b"HTTP/1.1 500 ")
    assert b"connection: close" in arrived
    arrived = await exchanged(failing(BODY[:3]), request())
    assert arrived.startswith(b"HTTP/1.1 200 ")
    assert arrived.endswith(b"\r\n\r\n" + BODY[:3])
    assert caplog.text.count("RuntimeError: injected") == 2


async def test_requests_of_one_connection_are_answered_in_their_order() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = await read_body(receive)
        await asyncio.sleep(0.05 if scope["path"] == "/a" else 0)
        text = b"%b %b?%b;" % (body, scope["path"].encode(), scope["query_string"])
        headers = [(b"content-length", b"%d" % len(text))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text})

    chunked = b"POST /b%20c?d=%20 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n2\r\n"
    together = request(content=b"1", path="/a") + chunked
    rest = b"2\r\n34\r\n0\r\n\r\n" + request(LAST, content=b"5", path="/e") + request()
    arrived = await exchanged(app, together, rest)
    assert [text.rpartition(b"\n")[2] for text in arrived.split(b";")] == [
        b"1 /a?",
        b"234 /b c?d=%20",
        b"5 /e?",
        b"",
    ]


async def test_a_large_body_waits_for_the_application() -> None:
    content, taken = b"x" * (1 << 20), []

    async def app(scope: Any, receive: Any, send: Any) -> None:
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

    arrived = await exchanged(app, request(LAST, content=content))
    assert arrived.endswith(BODY)
    assert max(taken) < 1 << 19


async def test_a_caller_that_leaves_is_noticed() -> None:
    left = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read_body(receive)
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"nobody reads it"})
        left.set()

    with listen("127.0.0.1", 0) as sock:
        async with serving(app, sock):
            _, writer = await asyncio.open_connection(*sock.getsockname())
            writer.write(request())
            await asyncio.sleep(0.05)
            writer.transport.abort()
            async with asyncio.timeout(60):
                await left.wait()


async def test_a_stop_ends_what_takes_too_long(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(60)

    caplog.set_level(logging.CRITICAL)
    with listen("127.0.0.1", 0) as sock:
        async with serving(app, sock, grace=0):
            reader, writer = await asyncio.open_connection(*sock.getsockname())
            writer.write(request())
            await asyncio.sleep(0.05)
        async with asyncio.timeout(60):
            assert b"200" not in await reader.read()
        writer.close()


GARBAGE = b"\x00\r\n\r\n"


CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("behind", [GARBAGE, request() * 20 + GARBAGE, CHUNKED + b"no size\r\n"])
async def test_what_is_invalid_behind_a_request_takes_nothing_of_its_answer(behind: bytes) -> None:
    arrived = await exchanged(answering(BODY), request() + behind)
    answers = arrived.split(b"HTTP/1.1 ")[1:]
    assert 2 <= len(answers) <= 2 + ports.PIPELINED_REQUESTS
    assert [answer[:3] for answer in answers] == [b"200"] * (len(answers) - 1) + [b"400"]
    assert all(answer.endswith(BODY) for answer in answers[:-1])


async def test_an_invalid_body_is_refused_at_once() -> None:
    arrived = await exchanged(answering(BODY), CHUNKED, b"not a size\r\n")
    assert arrived.startswith(b"HTTP/1.1 400 ")
    assert arrived.count(b"HTTP/1.1") == 1


async def test_trailers_are_bounded_and_no_headers() -> None:
    headers: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read_body(receive)
        headers.extend(scope["headers"])
        await answering(BODY)(scope, complete, send)

    chunked = CHUNKED[:-2] + b"Connection: close\r\n\r\n2\r\n{}\r\n0\r\n"
    arrived = await exchanged(app, chunked + b"Authorization: Bearer x\r\n\r\n")
    assert arrived.endswith(BODY)
    assert b"authorization" not in dict(headers)
    endless = b"X: " + b"x" * 1000 + b"\r\n"
    for trailers in (endless * (ports.HEADERS // 1000 + 9), b"X: " + b"x" * (8 * ports.HEADERS)):
        arrived = await exchanged(answering(BODY), chunked + trailers)
        assert arrived.startswith(b"HTTP/1.1 400") or not arrived


async def test_an_upgrade_is_ignored_and_one_with_a_body_refused() -> None:
    """httptools skips such a body, so its request cannot be answered as if no upgrade had been asked for."""
    upgrade = ("Connection: Upgrade", "Upgrade: h2c")
    lines = "\r\n".join(["GET / HTTP/1.1", "Host: a", *upgrade, "", ""]).encode()
    arrived = await exchanged(answering(BODY), lines + request())
    assert arrived.count(b"HTTP/1.1") == 1
    assert arrived.endswith(BODY)
    assert (await exchanged(answering(BODY), request(*upgrade))).startswith(b"HTTP/1.1 400")


async def test_a_large_body_that_nobody_reads_holds_up_no_answer() -> None:
    content = b"x" * (1 << 20)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answering(BODY)(scope, complete, send)

    with listen("127.0.0.1", 0) as sock:
        async with serving(app, sock):
            reader, writer = await asyncio.open_connection(*sock.getsockname())
            writer.write(request(content=content) + request(LAST))
            async with asyncio.timeout(60):
                arrived = await reader.read()
            writer.close()
    assert arrived.count(BODY) == 2


async def complete() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


async def test_of_answers_that_nobody_reads_the_largest_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "UNREAD_ANSWERS", 70 << 20)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        size = int(scope["path"][1:]) << 20
        headers = [(b"content-length", b"%d" % size)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": bytes(size)})

    with listen("127.0.0.1", 0) as sock:
        async with serving(app, sock) as port:
            streams = []
            for size in (30, 29, 28):
                reader, writer = await asyncio.open_connection(*sock.getsockname())
                writer.transport.pause_reading()
                writer.write(request(path=f"/{size}"))
                streams.append((reader, writer))
                await asyncio.sleep(0.1)
            assert len(port.server_state.connections) == 2
            for (reader, writer), size in zip(streams[1:], (29, 28), strict=True):
                writer.transport.resume_reading()
                await reader.readuntil(b"\r\n\r\n")
                assert len(await reader.readexactly(size << 20)) == size << 20
            for _, writer in streams:
                writer.close()


async def test_kube_scheduler_keeps_its_connection_whatever_others_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From many addresses with a connection each, or from one with many."""
    monkeypatch.setattr(ports, "CONNECTIONS", 20)
    monkeypatch.setattr(ports, "CONNECTIONS_OF_ADDRESS", 4)
    with listen("127.0.0.1", 0) as sock:
        async with serving(answering(BODY), sock) as port:

            async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                return await asyncio.open_connection(*sock.getsockname(), local_addr=(address, 0))

            async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write(request())
                assert (await reader.readuntil(BODY)).startswith(b"HTTP/1.1 200")

            scheduler = [await connect("127.0.1.1") for _ in range(3)]
            for stream in scheduler * 2:
                await ask(*stream)
            addresses = [f"127.0.2.{number}" for number in range(1, 41)] + ["127.0.3.1"] * 40
            others = []
            for address in addresses:
                others.append(await connect(address))
                others[-1][1].write(request()[:-1] if address < "127.0.2.2" else b"")
                await asyncio.sleep(0)
            for stream in scheduler:
                await ask(*stream)
            assert len(port.server_state.connections) <= 21
            for _, writer in scheduler + others:
                writer.transport.abort()


@pytest.mark.parametrize(
    "sent",
    [
        (request(),),
        (request(LAST),),
        (request(content=b"x" * 9)[:-5],),
        (request()[:30],),
        (GARBAGE,),
        (request() + GARBAGE,),
        (request("X: " + "x" * ports.HEADERS),),
        (request() * 30,),
    ],
    ids=["kept", "closed", "body", "head", "garbage", "behind", "large", "many"],
)
async def test_nothing_of_a_connection_outlives_it(sent: tuple[bytes, ...]) -> None:
    """The garbage collector may never look at it again: see ``between_answers.collect_forever``."""
    gc.collect()
    gc.disable()
    try:
        with listen("127.0.0.1", 0) as sock:
            async with serving(answering(BODY), sock) as port:
                alive = []
                for _ in range(3):
                    _, writer = await asyncio.open_connection(*sock.getsockname())
                    for part in sent:
                        writer.write(part)
                    await asyncio.sleep(0.1)
                    alive += [weakref.ref(connection) for connection in port.server_state.connections]
                    writer.transport.abort()
                await until_empty(port)
                await asyncio.sleep(0.1)
                assert [reference() for reference in alive if reference() is not None] == []
    finally:
        gc.enable()
