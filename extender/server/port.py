"""uvicorn on one socket, with the limits of ``limits.py``.

uvicorn bounds neither the size of a request's head and trailers nor the time to send them, keeps unread
answers in memory, and lets a client with enough connections lock out all others. The overrides are based on
uvicorn 0.54 (``uvicorn/server.py``, ``protocols/http/httptools_impl.py``).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import chain
from ssl import SSLContext
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from extender.server.tls import names_of
from extender.untrusted.limits import (
    BODY_SECONDS,
    CONNECTIONS,
    CONNECTIONS_OF_ADDRESS,
    HEADER_SECONDS,
    HEADERS,
    PIPELINED_REQUESTS,
    TLS_CONNECTION_SECONDS,
    UNREAD_ANSWERS,
)

KEEP_ALIVE = 120
"""Seconds. Go's client keeps idle connections for 90 s, and does not retry a POST on a closing connection."""
_NEVER = float("inf")
_log = logging.getLogger(__name__)


class Port(uvicorn.Server):
    """Serves ``app`` on a listening socket until ``should_exit``; requests then have ``grace`` seconds.

    It accepts connections itself, because asyncio's servers hide a connection until its handshake is done.
    So handshakes count as connections of their address. ``tls`` returns the context for the next connection.
    """

    def __init__(
        self, app: ASGIApp, sock: socket.socket, tls: Callable[[], SSLContext] | None = None, grace: int = 20
    ) -> None:
        options: dict[str, Any] = {"http": Connection, "ws": "none", "lifespan": "off", "interface": "asgi3"}
        options |= {"log_config": None, "log_level": "error", "access_log": False}
        options |= {"proxy_headers": False, "server_header": False, "timeout_keep_alive": KEEP_ALIVE}
        super().__init__(uvicorn.Config(app, timeout_graceful_shutdown=grace, **options))
        self._sock, self._tls = sock, tls
        self.handshakes: dict[Connection, asyncio.Task[None]] = {}
        """Connections whose handshake is not done."""

    @property
    def connections(self) -> list[Connection]:
        """Connections whose handshake is done."""
        return [other for other in self.server_state.connections if isinstance(other, Connection)]

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        """Leave signals to ``run.py``."""
        return nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections from now on."""
        self._sock.setblocking(False)
        self.servers: list[asyncio.base_events.Server] = []
        self._accepting = asyncio.create_task(self._accept())
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, close idle connections now, and others after their answer."""
        for task in (self._accepting, *self.handshakes.values()):
            task.cancel()
        self._sock.close()
        await super().shutdown(sockets)
        for connection in self.connections:
            connection.transport.abort()

    async def on_tick(self, counter: int) -> bool:
        """Ten times per second: close connections that take too long. Raises what ended accepting."""
        if self._accepting.done():
            self._accepting.result()
        now = asyncio.get_running_loop().time()
        for connection in self.connections:
            connection.expire(now)
        return await super().on_tick(counter)

    def close_connections(self) -> None:
        """Close idle connections now, and others after their answer."""
        for connection in self.connections:
            connection.shutdown()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(self._sock)
            except OSError as error:  # the client disconnected, or no file descriptor is free
                _log.warning("a connection was not accepted: %s", error.strerror)
                await asyncio.sleep(0.1)
                continue
            self._begin(sock, address[0])

    def _begin(self, sock: socket.socket, address: str) -> None:
        if len(self.handshakes) + len(self.server_state.connections) >= CONNECTIONS:
            self._drop_connection()
        loop = asyncio.get_running_loop()
        connection = Connection(self, loop, address)
        self.handshakes[connection] = loop.create_task(self._connect(connection, sock))

    async def _connect(self, connection: Connection, sock: socket.socket) -> None:
        loop, limits = asyncio.get_running_loop(), {}
        if self._tls:
            limits = {"ssl_handshake_timeout": HEADER_SECONDS, "ssl_shutdown_timeout": HEADER_SECONDS}
        try:
            with suppress(OSError):  # ``tls.Handshake`` counts the failures
                tls = self._tls() if self._tls else None
                await loop.connect_accepted_socket(lambda: connection, sock, ssl=tls, **limits)
        finally:
            del self.handshakes[connection]

    def _drop_connection(self) -> None:
        """Close the least valuable connection to make room for a new one. kube-scheduler has a few, with
        constant requests; to displace one, a client needs as many requests, or few connections."""
        candidates = [*self.handshakes, *self.connections]
        ((address, most),) = Counter(candidate.address for candidate in candidates).most_common(1)
        if most > CONNECTIONS_OF_ADDRESS:
            candidates = [candidate for candidate in candidates if candidate.address == address]
        dropped = min(candidates, key=Connection.value)
        if dropped in self.handshakes:
            self.handshakes[dropped].cancel()
        else:
            dropped.transport.abort()


class _WholeAnswers:
    """A transport that sends the head of an answer together with what is written next, in one system call.

    uvicorn writes both separately, so the client would be woken twice: a sixth of the CPU of an answer.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop, self._held = transport, loop, b""
        self.is_closing = transport.is_closing  # asked twice for each request

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # the transport's own attributes
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._held:
            self._transport.writelines((self._held, data))
            self._held = b""
        else:
            self._held = data
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._held:
            self._transport.write(self._held)
            self._held = b""


class Connection(HttpToolsProtocol):
    """A connection. The transport and the parser call its methods; an error in a method that the parser calls
    makes the request invalid."""

    def __init__(self, port: Port, loop: asyncio.AbstractEventLoop, address: str) -> None:
        super().__init__(port.config, port.server_state, {}, loop)
        self.address = address
        self._answered = self._due = 0  # requests that are answered, and that await an answer
        self._in_head = self._in_body = self._is_last = False
        self._trailers = self._unparsed = 0  # bytes of trailers; bytes of an incomplete element
        self._refusal = ""
        self._last_used = loop.time()
        self._deadline, self._is_idle = self._last_used + KEEP_ALIVE, True
        self._renew_at = self._paused_at = _NEVER  # like all times here, in seconds of the loop

    def value(self) -> tuple[bool, int, float]:
        """A sort key: the least valuable connection comes first."""
        return self._due > 0, self._answered, self._last_used

    def expire(self, now: float) -> None:
        """Close the connection if the client is too slow to send a head or to read an answer. If a body takes
        too long, ``is_late`` in the state of the request tells the application."""
        is_slow = now > self._deadline and not self.flow.read_paused
        if is_slow or now > self._paused_at + HEADER_SECONDS:
            self.transport.abort()
        elif self._in_body and self._due and now > self._last_used + BODY_SECONDS:
            self.cycle.scope["state"]["is_late"] = True
            self.cycle.message_event.set()

    # The transport calls these.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Put the names in the client's certificate into the state of its requests."""
        super().connection_made(_WholeAnswers(transport, self.loop))  # type: ignore[arg-type]
        if (tls := transport.get_extra_info("ssl_object")) is not None:
            self._renew_at = self.loop.time() + TLS_CONNECTION_SECONDS
            self.app_state = {"client_names": names_of(transport.get_extra_info("peercert") or {})}
            if getattr(tls.context, "retired", False):
                transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop all references to the connection: a reference cycle would outlive it."""
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        self.pipeline.clear()
        self.cycle = None  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Parse received data, unless the connection already ends."""
        if self._refusal or (self._is_last and not self._in_body) or self.transport.is_closing():
            return
        if self._is_idle:
            self._is_idle, self._deadline = False, self.loop.time() + HEADER_SECONDS
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > HEADERS and not self._refusal:
            self.send_400_response("A part of the request is too large.")

    def pause_writing(self) -> None:
        """The client does not read its answer. If unread answers are too large, the largest is dropped."""
        super().pause_writing()
        self._paused_at = self.loop.time()
        sizes = {other: other.transport.get_write_buffer_size() for other in self.connections}
        if sum(sizes.values()) > UNREAD_ANSWERS:
            max(sizes, key=sizes.__getitem__).transport.abort()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._paused_at = _NEVER

    # The parser calls these.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._trailers = True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle a header; trailers are only counted."""
        if self._in_head:
            super().on_header(name, value)
            return
        self._trailers += len(name) + len(value)
        if self._trailers > HEADERS:
            raise ValueError("too large")

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= PIPELINED_REQUESTS:
            raise ValueError("too many requests at once")
        if sum(map(len, chain.from_iterable(self.headers)), len(self.url)) > HEADERS:
            raise ValueError("too large")
        names = [name for name, _ in self.headers]
        if self.parser.get_http_version() == "1.0":
            self.expect_100_continue = False
        elif names.count(b"host") != 1:
            raise ValueError("no host, or several")
        is_upgrade = self.parser.should_upgrade()
        if is_upgrade and (b"content-length" in names or b"transfer-encoding" in names):
            raise ValueError("httptools would skip the body")
        super().on_headers_complete()
        self._in_head, self._in_body, self._unparsed = False, True, 0
        self._due += 1
        self._last_used, self._deadline = self.loop.time(), _NEVER
        if self._last_used >= self._renew_at or is_upgrade:
            self.cycle.keep_alive = False
        self._is_last = not self.cycle.keep_alive

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_body, self._unparsed = False, 0
        self._wait()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._answered += 1
        self._due -= 1
        self._wait()
        if self._refusal and not self._due:
            super().send_400_response(self._refusal)

    def send_400_response(self, msg: str) -> None:
        """Refuse the last request, after the answers that are due, and close."""
        if self._in_body and self.cycle.response_started:
            self.transport.close()
            return
        self._refusal = msg
        if self._in_body:  # the request in question is one of those that are due
            self._due -= 1
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.pipeline and self.pipeline[0][0] is self.cycle:
                self.pipeline.popleft()
        if not self._due:
            super().send_400_response(msg)

    def _wait(self) -> None:
        """Start the deadline for the client's next data."""
        self._is_idle = not (self._due or self._in_head or self._in_body)
        seconds = _NEVER if self._due else KEEP_ALIVE if self._is_idle else HEADER_SECONDS
        self._deadline = self.loop.time() + seconds
