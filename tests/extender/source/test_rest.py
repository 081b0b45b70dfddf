"""How long a write may take, and when a server that is gone is noticed."""

from __future__ import annotations

import math
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

from extender.source.errors import BindError, WriteError
from extender.source.list_watch import Request
from extender.source.rest import RestClient, Timeouts, client_of_kubeconfig, time_to_write

HOUR = 3600.0


def test_a_write_ends_before_both_limits() -> None:
    assert time_to_write(lambda: 5.0, time.monotonic() + HOUR, BindError) == 5.0
    assert 0 < time_to_write(lambda: math.inf, time.monotonic() + HOUR, BindError) <= HOUR


@pytest.mark.parametrize("error", [BindError, WriteError])
def test_a_write_that_cannot_end_in_time_is_not_sent(error: type[Exception]) -> None:
    with pytest.raises(error, match="no longer the leader"):
        time_to_write(lambda: 0.0, time.monotonic() + HOUR, error)
    with pytest.raises(error, match="too slow"):
        time_to_write(lambda: HOUR, time.monotonic() - 1.0, error)


class _Watched(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def test_the_end_of_a_silent_server_is_noticed_within_half_a_minute(tmp_path: Path) -> None:
    """Nothing says that a machine was switched off: only the probes of TCP show it. Half-open watches look
    current until then."""
    with HTTPServer(("127.0.0.1", 0), _Watched) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        file = tmp_path / "kubeconfig"
        file.write_text(yaml.safe_dump(_kubeconfig(f"http://127.0.0.1:{server.server_port}")))
        stream = RestClient(client_of_kubeconfig(file)).stream(Request("/watch", {}, watch=True))
        with socket.socket(fileno=socket.dup(stream.fileno())) as connection:
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle, pause, probes = (
                connection.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
        stream.close()
        thread.join()
    assert idle + pause * probes <= 30


def test_a_server_cannot_send_far_ahead_of_the_reader(tmp_path: Path) -> None:
    """Nobody knows how old the events are that the kernel keeps."""
    file = tmp_path / "kubeconfig"
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        file.write_text(yaml.safe_dump(_kubeconfig(f"http://127.0.0.1:{server.getsockname()[1]}")))
        client = RestClient(client_of_kubeconfig(file))
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(client.stream, Request("/watch", {}, watch=True))
            connection, _ = server.accept()
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            stream, part = asked.result(), bytes(1 << 16)
            reading = pool.submit(stream.read, 1 << 26)  # meanwhile the kernel enlarges its buffer
            for _ in range(1 << 10):
                connection.sendall(part)
            reading.result()
        sent = 0
        connection.settimeout(0.5)
        with connection, suppress(TimeoutError):
            while sent < 1 << 26:
                sent += connection.send(part)
        stream.close()
    assert sent < 2 << 20


def _kubeconfig(server: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


def test_the_page_for_operators_has_the_time_limits() -> None:
    page = (Path(__file__).parents[3] / "docs/operations.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", page, re.MULTILINE)
    assert {name: float(seconds) for name, seconds in rows} == asdict(Timeouts())
