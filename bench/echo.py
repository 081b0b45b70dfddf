"""The minimum cost of an answer over HTTP: a bare ASGI application that reads a body and writes bytes.

It runs on the same server as Stowage (uvicorn with uvloop and httptools), parses nothing and decides nothing.
The path contains the size of the reply, so a client can make it read and write as many bytes as Stowage.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from bench.client import Client
from bench.service import free_port, running_process, until_ok

_REPLY = b" " * (1 << 20)
"""Replies are cut from these bytes, as a copy, like Stowage's replies."""


async def echo(scope: dict[str, Any], receive: Any, send: Any) -> None:  # noqa: ANN401  # ASGI's callables
    """Read the whole body, then reply with the number of bytes in the path."""
    more = True
    while more:
        message = await receive()
        more = message.get("more_body", False)
    reply = _REPLY[: int(scope["path"][1:])]
    length = str(len(reply)).encode()
    headers = [(b"content-length", length), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": reply})


@contextmanager
def running_echo() -> Iterator[tuple[int, int]]:
    """The echo as a separate process; yields its port and process id."""
    port = free_port()
    with running_process([sys.executable, "-m", "bench.echo", str(port)], {}) as process:
        until_ok(process, f"http://127.0.0.1:{port}/2")
        yield port, process.pid


def echoed(echo: Client, body: bytes, reply: bytes) -> float:
    """Seconds that the echo takes to read this body and to write as many bytes as this reply has."""
    echo.post(f"/{len(reply)}", body)
    return echo.seconds


def serve(application: Callable[..., Awaitable[None]], port: int) -> None:
    """Serve an ASGI application in the same way as Stowage."""
    uvicorn.run(
        application,
        port=port,
        access_log=False,
        lifespan="off",
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        ws="none",
        timeout_keep_alive=120,
    )


if __name__ == "__main__":
    serve(echo, int(sys.argv[1]))
