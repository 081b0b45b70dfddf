"""HTTP connections with limits on time, size of the head, pipelined requests and number of connections.

uvicorn has none of these limits for httptools: the head of a request may be endless, an answer that the
caller does not read stays in memory, and a caller with enough connections locks out all others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from extender.server.one_write import OneWrite
from extender.server.tls import names_of
from extender.untrusted.limits import (
    CONNECTIONS,
    HEADER_SECONDS,
    HEADERS,
    PIPELINED_REQUESTS,
    TLS_CONNECTION_SECONDS,
)


class _Refused(Exception):
    """The parser answers it with status 400 and closes the connection."""


class Connection(HttpToolsProtocol):
    """uvicorn's protocol with the limits of ``limits.py``. The transport and the parser call the methods."""

    _in_head = False
    _head = 0  # bytes of the head that is being received
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _last_request_at = 0.0  # in the loop's seconds
    _renew_at = float("inf")  # in the loop's seconds
    _client_names: frozenset[str] = frozenset()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Go's client may connect before it has a request."""
        super().connection_made(transport)
        self._last_request_at = self.loop.time()
        if self.scheme == "https":
            self._renew_at = self._last_request_at + TLS_CONNECTION_SECONDS
            self._client_names = names_of(transport.get_extra_info("peercert") or {})
            if getattr(transport.get_extra_info("ssl_object").context, "retired", False):
                transport.abort()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )
        if len(self.connections) > CONNECTIONS:
            _close_idlest([cast(Connection, other) for other in self.connections])

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        self._unset_keepalive_if_required()
        _cancel(self._head_timer, self._write_timer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Limit size and time of the head."""
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_head:
            self._head += len(data)
            if self._head > HEADERS:
                self.send_400_response("The head of the request is too large.")
                return
        if not self.running and self._head_timer is None:
            self._head_timer = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def on_message_begin(self) -> None:
        """A head begins."""
        self._in_head, self._head = True, 0
        super().on_message_begin()
        self.scope["state"]["client_names"] = self._client_names

    def on_headers_complete(self) -> None:
        """A head is complete."""
        size = len(self.url)
        for name, value in self.headers:
            size += len(name) + len(value)
        if size > HEADERS or len(self.pipeline) >= PIPELINED_REQUESTS:
            raise _Refused
        self._in_head = False
        self._last_request_at = self.loop.time()
        _cancel(self._head_timer)
        self._head_timer = None
        super().on_headers_complete()
        if self.scope["method"] == "POST":
            self.cycle.transport = OneWrite(self.transport)  # type: ignore[assignment]
        if self._last_request_at >= self._renew_at:
            self.cycle.keep_alive = False

    def pause_writing(self) -> None:
        """The caller does not read its answer."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """The caller reads again."""
        _cancel(self._write_timer)
        super().resume_writing()

    @property
    def running(self) -> bool:
        """Whether a request is being answered, or its body received."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def idle_since(self) -> tuple[bool, float]:
        """A sort key: the connection that has been idle for longest comes first."""
        return self.running, self._last_request_at


def _cancel(*timers: asyncio.TimerHandle | None) -> None:
    for timer in timers:
        if timer is not None:
            timer.cancel()


def _close_idlest(connections: list[Connection]) -> None:
    """Of the address with the most connections, close the one that has been idle for longest.

    kube-scheduler has a few connections. It loses one only if another client at its address opens hundreds.
    """
    by_address = Counter(_address(connection) for connection in connections)
    ((address, _),) = by_address.most_common(1)
    candidates = [connection for connection in connections if _address(connection) == address]
    min(candidates, key=lambda connection: connection.idle_since).transport.abort()


def _address(connection: Connection) -> str | None:
    return connection.client[0] if connection.client else None
