"""A small HTTP/1.1 server for one ASGI application, with the limits of ``limits.py``.

Servers for ASGI bound neither the head of a request nor the time for it, keep an answer in memory that the
caller does not read, and let a caller with enough connections lock out all others. This one knows nothing
but HTTP/1.1, and costs a third of the CPU.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import unquote

import httptools

from extender.server.tls import ListenContext, names_of
from extender.untrusted.limits import (
    BODY_SECONDS,
    CONNECTIONS,
    HEADER_SECONDS,
    HEADERS,
    PIPELINED_REQUESTS,
    TLS_CONNECTION_SECONDS,
)

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

KEEP_ALIVE = 120
"""Seconds. Go's client keeps idle connections for 90 s, and does not retry a POST on a closing connection."""
_BUFFER = 64 << 10
"""Bytes of a body that wait for the application; then no more is read."""
_WITHOUT_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
_STATUS_LINES = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n".encode() for one in HTTPStatus}
_log = logging.getLogger(__name__)


class Server:
    """The connections to one socket."""

    def __init__(self, app: App, sock: socket.socket, tls: ListenContext | None = None) -> None:
        self.app, self.connections = app, set[Connection]()
        self.tasks: set[asyncio.Task[None]] = set()
        self._sock, self._tls = sock, tls

    async def start(self) -> None:
        """Accept connections from now on."""
        limit = HEADER_SECONDS if self._tls else None
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: Connection(self),
            sock=self._sock,
            ssl=self._tls,
            ssl_handshake_timeout=limit,
            ssl_shutdown_timeout=limit,
            backlog=2048,
        )

    async def stop(self, grace: float) -> None:
        """Accept no more connections, and close all: idle ones now, others after their answer, or after
        ``grace`` seconds."""
        self._listener.close()
        self.close_connections()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                while self.connections or self.tasks:
                    await asyncio.sleep(0.05)
        for task in self.tasks:
            task.cancel()
        for connection in self.connections:
            connection.transport.abort()

    def close_connections(self) -> None:
        """Close idle connections now, and others after their answer."""
        for connection in list(self.connections):
            connection.finish()

    def close_idlest(self) -> None:
        """Of the address with the most connections, close the one that has been idle for longest.

        kube-scheduler has a few connections. It loses one only if another client at its address opens
        hundreds.
        """
        by_address = Counter(connection.address for connection in self.connections)
        ((address, _),) = by_address.most_common(1)
        candidates = [one for one in self.connections if one.address == address]
        min(candidates, key=lambda one: one.idle_since).transport.abort()


class Request:
    """A request and its answer, as ASGI's ``receive`` and ``send``."""

    def __init__(self, connection: Connection) -> None:
        self.scope: Message = {}
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = bytearray()
        """What has arrived and was not received yet."""
        self.is_complete = self.is_over = self.is_late = False
        """Whether all of it has arrived; whether it was answered, or nobody waits for the answer; whether the
        time for the body is over."""
        self.keep_alive = True
        self._connection = connection
        self._arrived = asyncio.Event()
        self._expects_100 = self._is_chunked = False
        self._start: Message | None = None
        self.is_answering = False
        """Whether a part of the answer was written."""

    def add_header(self, name: bytes, value: bytes) -> None:
        """Add a header of the request."""
        name = name.lower()
        self.headers.append((name, value))
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects_100 = True

    def has_changed(self) -> None:
        """Wake the application up if it waits in ``receive``."""
        self._arrived.set()

    async def receive(self) -> Message:
        """The next part of the body, or that nobody waits for the answer any more.

        Raises ``TimeoutError`` if the body takes too long.
        """
        if self._expects_100 and not (self.is_answering or self.is_over):
            self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._expects_100 = False
        if not self.is_over:
            await self._arrived.wait()
            self._arrived.clear()
        if self.is_over:
            return {"type": "http.disconnect"}
        if self.is_late and not self.is_complete:
            raise TimeoutError(f"the body took longer than {BODY_SECONDS} s")
        body, self.body = bytes(self.body), bytearray()
        self._connection.regulate()
        return {"type": "http.request", "body": body, "more_body": not self.is_complete}

    async def send(self, message: Message) -> None:
        """Write a part of the answer.

        The head waits for the first part of the body: a caller that wakes up for the head alone takes the CPU
        on a busy machine before the body is sent.
        """
        if self.is_over or (transport := self._connection.transport).is_closing():
            return
        if message["type"] == "http.response.start":
            self._start = message
            return
        has_more = message.get("more_body", False)
        head = b"" if self.is_answering else self._head()
        transport.write(head + self._framed(message.get("body", b""), has_more=has_more))
        self.is_answering = True
        if has_more:
            await self._connection.may_write.wait()
            return
        self.is_over = True
        self.has_changed()
        if not self.keep_alive:
            transport.close()

    def _head(self) -> bytes:
        if self._start is None:
            raise RuntimeError("the body of an answer came before its head")
        status, lines = self._start["status"], []
        has_length = status in _WITHOUT_BODY
        for name, value in self._start.get("headers", ()):
            has_length = has_length or name == b"content-length"
            if name == b"connection":  # below
                self.keep_alive = self.keep_alive and value != b"close"
            else:
                lines.append(b"%b: %b\r\n" % (name, value))
        if not has_length and self.scope["http_version"] != "1.0":
            self._is_chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        return b"".join((_STATUS_LINES[status], _date_line(int(time.time())), *lines, b"\r\n"))

    def _framed(self, body: bytes, *, has_more: bool) -> bytes:
        if self.scope["method"] == "HEAD":
            return b""
        if not self._is_chunked:
            return body
        chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        return chunk if has_more else chunk + b"0\r\n\r\n"


class Connection(asyncio.Protocol):
    """One connection. The transport and the parser call its methods; requests are answered one by one."""

    transport: asyncio.Transport
    address: str | None = None
    _client_names: frozenset[str] = frozenset()

    def __init__(self, server: Server) -> None:
        self._server, self._loop = server, asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        # A caller that has said that a request is the last one may have sent more; it is not answered.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._latest = Request(self)
        """The request that arrives, or was the last one to arrive."""
        self._requests: deque[Request] = deque()
        """Those whose head is complete and whose answer is not; the first one is being answered."""
        self._in_head = self._is_paused = self._is_upgraded = False
        self._head_size = 0
        self._stage = ""
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._renew_at = float("inf")  # in the loop's seconds
        self._last_request_at = self._loop.time()
        self.may_write = asyncio.Event()
        self.may_write.set()

    @property
    def idle_since(self) -> tuple[bool, float]:
        """A sort key: the connection that has been idle for longest comes first."""
        return bool(self._requests), self._last_request_at

    def finish(self) -> None:
        """Close now, or after the answer that is due."""
        if self._requests:
            self._requests[-1].keep_alive = False
        else:
            self.transport.close()

    # Of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Go's client may connect before it has a request."""
        self.transport = transport  # type: ignore[assignment]  # uvloop's is no subclass
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if peer else None
        if (tls := transport.get_extra_info("ssl_object")) is not None:
            self._renew_at = self._last_request_at + TLS_CONNECTION_SECONDS
            self._client_names = names_of(transport.get_extra_info("peercert") or {})
            if getattr(tls.context, "retired", False):
                self.transport.abort()
        self._enter("idle")
        self._server.connections.add(self)
        if len(self._server.connections) > CONNECTIONS:
            self._server.close_idlest()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody waits for answers any more."""
        self._server.connections.discard(self)
        _cancel(self._timer, self._write_timer)
        self.may_write.set()
        for request in self._requests:
            request.is_over = True
            request.has_changed()

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived."""
        if self._is_upgraded or self.transport.is_closing():
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # answered as if it had not asked, and nothing else is
            self._is_upgraded, self._latest.keep_alive = True, False
        except httptools.HttpParserError:
            self._refuse("Invalid HTTP request received.")
            return
        if self._in_head:
            self._head_size += len(data)
            if self._head_size > HEADERS:
                self._refuse("The head of the request is too large.")
                return
        self.regulate()
        if not self._requests:
            self._enter("head")
        else:
            self._enter("answer" if self._latest.is_complete else "body")

    def pause_writing(self) -> None:
        """The caller does not read its answer."""
        self.may_write.clear()
        self._write_timer = self._loop.call_later(HEADER_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """The caller reads again."""
        _cancel(self._write_timer)
        self.may_write.set()

    # Of the parser. An error in one of these is an invalid request.

    def on_message_begin(self) -> None:
        """A head begins."""
        self._latest = Request(self)
        self._in_head, self._head_size = True, 0

    def on_url(self, url: bytes) -> None:
        """A part of the URL."""
        self._latest.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        self._latest.add_header(name, value)

    def on_headers_complete(self) -> None:
        """A head is complete."""
        request, version = self._latest, self._parser.get_http_version()
        size = len(request.url) + sum(len(name) + len(value) for name, value in request.headers)
        if size > HEADERS or len(self._requests) > PIPELINED_REQUESTS:
            raise ValueError("beyond a limit")
        self._in_head = False
        self._last_request_at = self._loop.time()
        is_last = version == "1.0" or self._last_request_at >= self._renew_at
        request.keep_alive = not is_last and self._parser.should_keep_alive()
        request.scope = self._scope(request, version)
        self._requests.append(request)
        if len(self._requests) == 1:
            task = self._loop.create_task(self._answer_all())
            self._server.tasks.add(task)
            task.add_done_callback(self._server.tasks.discard)

    def on_body(self, body: bytes) -> None:
        """A part of a body. Nobody wants that of a request that was answered before."""
        if not self._latest.is_over:
            self._latest.body += body
            self._latest.has_changed()

    def on_message_complete(self) -> None:
        """A request is complete."""
        self._latest.is_complete = True
        self._latest.has_changed()

    def regulate(self) -> None:
        """Read nothing while a request waits for the one before it, or too much of a body has arrived."""
        pause = len(self._requests) > 1 or len(self._latest.body) > _BUFFER
        if pause == self._is_paused or self.transport.is_closing():
            return
        self._is_paused = pause
        if pause:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def _scope(self, request: Request, version: str) -> Message:
        """What ASGI passes on of a request (asgi.readthedocs.io, HTTP & WebSocket ASGI Message Format)."""
        url = httptools.parse_url(request.url)
        path = (url.path or b"").decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "method": self._parser.get_method().decode("ascii"),
            "scheme": "http",
            "path": unquote(path) if "%" in path else path,
            "raw_path": url.path,
            "query_string": url.query or b"",
            "root_path": "",
            "headers": request.headers,
            "state": {"client_names": self._client_names},
        }

    async def _answer_all(self) -> None:
        """Answer the requests that have arrived, one after the other."""
        while self._requests and not self.transport.is_closing():
            await self._answer(self._requests[0])
            self._requests.popleft()
            self.regulate()
        self._enter("idle" if self._latest.is_complete else "head")

    async def _answer(self, request: Request) -> None:
        try:
            await self._server.app(request.scope, request.receive, request.send)
        except Exception:
            _log.exception("a request was not answered")
        if request.is_over:
            return
        if request.is_answering:
            self.transport.close()
            return
        await request.send({"type": "http.response.start", "status": 500, "headers": [_NO_BODY, CLOSE]})
        await request.send({"type": "http.response.body"})

    def _refuse(self, text: str) -> None:
        """Close, with status 400 unless another answer is due, for which it would be taken."""
        if not self._requests or not self._requests[0].is_complete:
            head = f"content-type: text/plain; charset=utf-8\r\ncontent-length: {len(text)}\r\n"
            answer = f"{head}connection: close\r\n\r\n{text}".encode()
            self.transport.write(_STATUS_LINES[400] + answer)
        self.transport.close()

    def _enter(self, stage: str) -> None:
        """Begin the time for a stage: ``idle`` before a request, ``head``, ``body``, or ``answer``, which
        has no limit here."""
        if stage == self._stage:
            return
        self._stage = stage
        _cancel(self._timer)
        if stage == "idle":
            self._timer = self._loop.call_later(KEEP_ALIVE, self.transport.close)
        elif stage == "head":
            self._timer = self._loop.call_later(HEADER_SECONDS, self.transport.abort)
        elif stage == "body":
            self._timer = self._loop.call_later(BODY_SECONDS, self._end_body)

    def _end_body(self) -> None:
        self._latest.is_late = True
        self._latest.has_changed()


CLOSE = (b"connection", b"close")
_NO_BODY = (b"content-length", b"0")


def _cancel(*timers: asyncio.TimerHandle | None) -> None:
    for timer in timers:
        if timer is not None:
            timer.cancel()


@lru_cache(maxsize=1)
def _date_line(second: int) -> bytes:
    return f"date: {formatdate(second, usegmt=True)}\r\n".encode()
