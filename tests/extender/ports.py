"""A port that serves an application while a test runs."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from extender.server.port import Port


@asynccontextmanager
async def serving(
    app: Any, sock: socket.socket, tls: Callable[[], ssl.SSLContext] | None = None, grace: int = 60
) -> AsyncIterator[Port]:
    port = Port(app, sock, tls, grace)
    running = asyncio.create_task(port.serve())
    try:
        while not port.started:
            await asyncio.sleep(0)
        yield port
    finally:
        port.should_exit = True
        await running
