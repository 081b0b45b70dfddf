"""The body of a request, as long as it is within its limit. Plain ASGI: no framework needed to read bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any


async def read_body(
    receive: Callable[[], Awaitable[MutableMapping[str, Any]]], declared: str, limit: int
) -> bytes | None:
    """The body, or None as soon as it turns out to be larger than ``limit`` bytes.

    ``declared`` is the Content-Length, "" where there is none. A client that goes away half-way leaves a
    truncated body, which nobody takes for a whole message.
    """
    if declared.isdecimal() and int(declared) > limit:
        return None
    chunks: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        chunk = message.get("body", b"")
        size, more = size + len(chunk), message.get("more_body", False)
        if size > limit:
            return None
        chunks.append(chunk)
    return b"".join(chunks)
