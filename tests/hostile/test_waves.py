"""Waves of connections of all sorts leave no memory behind in ``stowage serve``."""

from __future__ import annotations

import asyncio
import re
import signal
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from extender.data import CLUSTER
from extender.untrusted.limits import CONNECTIONS, HEADERS
from tests.certificates import Authority, Secret
from tests.extender.server.test_run import Process, Start, start

__all__ = ["start"]  # a fixture

WAVES, LEFT_MIB = 3, 20
SIZE = CONNECTIONS - 10
GET = b"GET /healthz HTTP/1.1\r\nHost: s\r\n"
LARGE = GET + b"X: " + b"x" * (HEADERS - 1000) + b"\r\n\r\n"
BODY = (
    b"POST /scheduler/filter HTTP/1.1\r\nHost: s\r\nContent-Type: application/json\r\nContent-Length: 50000"
)
SORTS = {
    "held": GET + b"\r\n",
    "closed": GET + b"Connection: close\r\n\r\n",
    "large": LARGE,
    "slow head": LARGE[:-2],
    "slow body": BODY + b"\r\n\r\n" + b" " * 40_000,
    "refused": b"nonsense\r\n\r\n",
}


def resident_mib(process: Process) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


async def connection(port: int, sent: bytes, tls: ssl.SSLContext | None) -> asyncio.StreamWriter | None:
    with suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        writer.write(sent)
        await writer.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await reader.read(1)
        return writer
    return None


async def wave(port: int, sent: bytes, tls: ssl.SSLContext | None) -> None:
    """As many connections as a port takes, all open at the same time, for longer than a collection."""
    writers = await asyncio.gather(*(connection(port, sent, tls) for _ in range(SIZE)))
    await asyncio.sleep(0.5)
    for writer in writers:
        if writer is not None:
            writer.transport.abort()
    await asyncio.sleep(0.5)


async def grows_by(process: Process, port: int, send: Callable[[], Awaitable[None]]) -> float:
    """MiB that are left after the waves, once the last connections are closed: that may take seconds."""
    await send()  # what the first wave loads and reserves stays
    before = resident_mib(process)
    for _ in range(WAVES):
        await send()
    for _ in range(20):
        if (grown := resident_mib(process) - before) < LEFT_MIB:
            break
        await asyncio.sleep(0.5)
    return grown


@pytest.mark.nightly
@pytest.mark.parametrize("sort", SORTS)
async def test_the_memory_of_connections_is_given_back(start: Start, sort: str) -> None:
    process = start("--snapshot", str(CLUSTER))
    await asyncio.to_thread(process.wait_until_ready)
    port = int(process.urls[0].rpartition(":")[2])
    assert await grows_by(process, port, lambda: wave(port, SORTS[sort], None)) < LEFT_MIB
    process.signal(signal.SIGINT)
    assert await asyncio.to_thread(process.exit_code) == 0


@pytest.mark.nightly
async def test_the_memory_of_tls_is_given_back(start: Start, tmp_path: Path) -> None:
    ca, secret = Authority(), Secret(tmp_path)
    secret.certify(ca.server(), ca.pem)
    files = ("--tls-cert", str(secret.path("tls_crt")), "--tls-key", str(secret.path("tls_key")))
    process = start("--snapshot", str(CLUSTER), *files)
    context = ssl.create_default_context(cadata=ca.pem.decode())
    await asyncio.to_thread(process.wait_until_ready, context)
    port = int(process.urls[0].rpartition(":")[2])
    strict = ssl.create_default_context()  # it does not trust the CA

    async def send() -> None:
        await wave(port, SORTS["held"], context)
        await wave(port, b"", strict)
        await wave(port, SORTS["refused"], None)

    assert await grows_by(process, port, send) < LEFT_MIB
