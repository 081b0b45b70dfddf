"""Requests that cost a log line each: thousands of them cost a few."""

from __future__ import annotations

import signal
import socket
from itertools import product

import httpx

from extender.data import CLUSTER
from extender.untrusted.limits import LOG_LINES
from tests.extender.server.test_run import Process

UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n"
)
REQUESTS = {
    "invalid": b"NONSENSE\r\n\r\n",
    "websocket": b"GET / HTTP/1.1\r\nHost: localhost\r\n" + UPGRADE + b"\r\n",
    "unknown hosts": b"GET / HTTP/1.1\r\nHost: a%d.example\r\nConnection: close\r\n\r\n",
}


def test_a_flood_of_requests_writes_a_few_lines() -> None:
    process = Process("--snapshot", str(CLUSTER), drain_seconds="0")
    try:
        process.wait_until_ready()
        url = httpx.URL(process.urls[0])
        for number, request in product(range(150), REQUESTS.values()):
            with socket.create_connection((url.host, url.port or 80), timeout=30) as connection:
                connection.sendall(request.replace(b"%d", b"%d" % number))
                connection.recv(1 << 16)
        process.signal(signal.SIGTERM)
        assert process.exit_code() == 0
        said = [line["msg"] for line in process.log()]
    finally:
        process.end()
    assert len(said) < 5 * LOG_LINES
    assert "stopping after SIGTERM" in said
