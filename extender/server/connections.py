"""One HTTP connection, within limits: how long it may take, how much it may send ahead, and which connection
is closed where there are too many.

uvicorn has none of these limits for httptools: a head may be endless and may never end, a caller that does
not take its answer keeps it in memory, and who holds enough connections shuts everybody else out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from extender.untrusted.limits import CONNECTIONS, HEADER_SECONDS, HEADERS, PIPELINED_REQUESTS


class _Refused(Exception):
    """The parser turns it into status 400 and the end of the connection."""


class Connection(HttpToolsProtocol):
    """uvicorn's protocol with the limits of ``limits.py``."""

    _in_head = False
    _head = 0
    """Bytes of the head that is being received."""
    _timer: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None
    _since = 0.0
    """When the caller last sent a request, in the loop's seconds."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by the transport. A caller may connect ahead of time, as Go does."""
        super().connection_made(transport)
        self._since = self.loop.time()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )
        if len(self.connections) > CONNECTIONS:
            _make_room([cast(Connection, one) for one in self.connections])

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the transport."""
        self._unset_keepalive_if_required()
        self._stop_timer()
        self._resumed()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Called by the transport."""
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_head:
            self._head += len(data)
            if self._head > HEADERS:
                self.send_400_response("The head of the request is too large.")
                return
        if not self.running and self._timer is None:
            self._timer = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def on_message_begin(self) -> None:
        """Called by the parser."""
        self._in_head, self._head = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > HEADERS or len(self.pipeline) >= PIPELINED_REQUESTS:
            raise _Refused
        self._in_head = False
        self._since = self.loop.time()
        self._stop_timer()
        super().on_headers_complete()

    def pause_writing(self) -> None:
        """Called by the transport: the caller does not take its answer."""
        super().pause_writing()
        self._stuck = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Called by the transport."""
        self._resumed()
        super().resume_writing()

    @property
    def running(self) -> bool:
        """Whether a request is being received after its head, or answered."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def idle_since(self) -> tuple[bool, float]:
        """What has done nothing for longest comes first."""
        return self.running, self._since

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _resumed(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None


def _make_room(connections: list[Connection]) -> None:
    """End one connection: of the caller that has most of them, the one that has been idle for longest.

    kube-scheduler has a few. It loses one only if it shares its address with who opens hundreds.
    """
    by_caller = Counter(one.client and one.client[0] for one in connections)
    ((most, _),) = by_caller.most_common(1)
    theirs = [one for one in connections if (one.client and one.client[0]) == most]
    min(theirs, key=lambda one: one.idle_since).transport.abort()
