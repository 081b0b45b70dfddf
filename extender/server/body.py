"""Receives request bodies within limits of size, time and total memory. Plain ASGI, without a framework.

Anyone who reaches the port can send bodies, slowly and many at once. If all bodies together are too large, we
drop the largest that is still arriving: requests of kube-scheduler are small, so they get through.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from extender.untrusted.limits import BODY_SECONDS

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]


class Reducer(Protocol):
    """Reduces a body while it arrives."""

    def feed(self, chunk: bytes) -> bytes:
        """What is kept of the body so far and was not returned before."""

    def end(self) -> bytes:
        """The rest of what is kept."""


def reduced(receive: Receive, reducer: Reducer) -> Receive:
    """``receive`` of a request whose body is what ``reducer`` keeps of it."""

    async def receive_reduced() -> MutableMapping[str, Any]:
        message = await receive()
        if message["type"] == "http.disconnect":
            return message
        more = message.get("more_body", False)
        body = reducer.feed(message.get("body", b""))
        return {**message, "body": body if more else body + reducer.end()}

    return receive_reduced


class BodyRefused(Exception):
    """A body that was not received; the text says why. ``result`` is the label for the metric."""

    def __init__(self, status: int, result: str, text: str) -> None:
        super().__init__(text)
        self.status, self.result = status, result


@dataclass(slots=True, eq=False)
class _Body:
    chunks: list[bytes] = field(default_factory=list)
    size: int = 0
    dropped: bool = False


class BodyBudget:
    """At most ``limit`` bytes for the bodies of all running requests of one port."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0  # bytes
        self._arriving: set[_Body] = set()

    @asynccontextmanager
    async def read(self, receive: Receive, headers: Mapping[str, str], limit: int) -> AsyncIterator[bytes]:
        """``take`` for the time of the block."""
        body = await self.take(receive, headers.get("content-length", ""), limit)
        try:
            yield body
        finally:
            self.release(body)

    async def take(self, receive: Receive, declared: str, limit: int) -> bytes:
        """The body, which counts until ``release``. Raises ``BodyRefused``.

        ``declared``: its length in the head, "" without one. ``limit``: the most bytes of this body.
        """
        if declared.isdecimal() and (len(declared) > 20 or int(declared) > limit):
            raise _too_large(limit)
        first = _available(receive)
        if first is not None and not first.get("more_body", False) and first["type"] == "http.request":
            # As nearly always: the whole body has arrived. A timer would cost more than all the rest.
            chunk: bytes = first.get("body", b"")
            if len(chunk) <= limit and self.held + len(chunk) <= self._limit:
                self.held += len(chunk)
                return chunk
        body = _Body()
        self._arriving.add(body)
        try:
            async with asyncio.timeout(BODY_SECONDS):
                await self._receive(body, receive, first, limit)
        except TimeoutError:
            self._drop(body)
            raise _too_slow() from None
        except BaseException:
            self._drop(body)
            raise
        self._arriving.discard(body)
        return b"".join(body.chunks)

    def release(self, body: bytes) -> None:
        """A body that was taken is no longer needed."""
        self.held -= len(body)

    async def discard(self, receive: Receive) -> bytes:
        """Receive a body of any size without keeping it. Raises ``BodyRefused`` if it takes too long."""
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while (message := await receive())["type"] != "http.disconnect":
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise _too_slow() from None
        return b""

    async def _receive(self, body: _Body, receive: Receive, message: Message | None, limit: int) -> None:
        """Add what arrives to the body; ``message`` has arrived already."""
        more = True
        while more:
            message = message or await receive()
            if message["type"] == "http.disconnect":
                raise BodyRefused(499, "hung_up", "the caller has hung up")
            chunk, more = message.get("body", b""), message.get("more_body", False)
            if body.size + len(chunk) > limit:
                raise _too_large(limit)
            self._take(body, chunk)
            message = None

    def _take(self, body: _Body, chunk: bytes) -> None:
        if not body.dropped:
            body.chunks.append(chunk)
            body.size += len(chunk)
            self.held += len(chunk)
            while self.held > self._limit and self._arriving:
                self._drop(max(self._arriving, key=lambda arriving: arriving.size))
        if body.dropped:
            raise BodyRefused(503, "overloaded", "too many large requests at once")

    def _drop(self, body: _Body) -> None:
        """Free the memory of a body at once. Its task notices with the next chunk."""
        self._arriving.discard(body)
        self.held -= body.size
        body.chunks.clear()
        body.size, body.dropped = 0, True


def _available(receive: Receive) -> Message | None:
    """The next message if it has arrived, None if ``receive`` would wait for it."""
    receiving = receive().__await__()
    try:
        next(receiving)
    except StopIteration as done:
        message: Message = done.value
        return message
    receiving.close()  # as if the call had been cancelled
    return None


def _too_slow() -> BodyRefused:
    return BodyRefused(408, "too_slow", f"the body took longer than {BODY_SECONDS} s")


def _too_large(limit: int) -> BodyRefused:
    return BodyRefused(413, "too_large", f"the body is larger than {limit >> 20} MiB")
