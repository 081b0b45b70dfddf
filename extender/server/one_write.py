"""Sends the head and the body of an answer together.

uvicorn writes each of them, and uvloop sends each at once. So the caller wakes up for a head alone, and on a
busy machine takes the CPU before the body is sent.
"""

from __future__ import annotations

import asyncio

_CONTINUE = b"HTTP/1.1 100 "


class OneWrite:
    """What a request's cycle needs of a transport. The head, its first write, waits for the second one. Not
    for HEAD, which has no second one."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = b""  # b"" before it is written, None after it is sent

    def write(self, data: bytes) -> None:
        """Keep a head, and send all else."""
        if self._head == b"" and not data.startswith(_CONTINUE):
            self._head = data
            return
        if self._head:
            data, self._head = self._head + data, None
        self._transport.write(data)

    def close(self) -> None:
        """Close, also where an application has failed after the head."""
        if self._head:
            self.write(b"")
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether the transport is closed or closes."""
        return self._transport.is_closing()
