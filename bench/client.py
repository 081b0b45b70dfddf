"""The client side of a connection from kube-scheduler: one keep-alive socket, as cheap as possible.

The measured time is from the first byte sent to the last byte received. Requests are rendered before, and
replies are parsed afterwards. On a shared machine part of that time is spent waiting for a CPU; Linux counts
this for each thread, so it is reported separately.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter, sleep
from types import TracebackType
from typing import Any, Self

_LARGEST_REPLY = 32 << 20  # bytes
_LONGEST_WORK = 0.1  # seconds after an answer
_POLL = 0.0002  # seconds


class Refused(RuntimeError):
    """An answer with a status other than 200."""

    def __init__(self, status: int, reply: bytes) -> None:
        super().__init__(f"status {status}: {reply[:200].decode(errors='replace')}")
        self.status = status


class Client:
    """One connection to Stowage, or to another extender.

    Seconds of the last exchange: ``seconds`` in total, ``cpu`` of Stowage's event loop until the answer (more
    work follows: ``settled``), and ``starved``, in which that loop or this client was runnable but had no
    CPU.
    """

    def __init__(
        self, port: int, pid: int, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
    ) -> None:
        """``pid``: the process on this machine whose first thread answers; 0 if unknown, then ``cpu`` and
        ``starved`` are meaningless."""
        tasks = (pid or os.getpid(), os.getpid())
        self._state = Path(f"/proc/{pid}/task/{pid}/stat") if pid else None
        self._schedstats = [Path(f"/proc/{task}/task/{task}/schedstat") for task in tasks]
        self._cpu_at_start = self._read_schedstats()[0]
        self._socket = socket.create_connection((host, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname="127.0.0.1")
        self._buffer = bytearray(_LARGEST_REPLY)
        self.seconds = self.cpu = self.starved = 0.0

    def connected(self) -> float:
        """The loop's seconds of CPU for this connection and a first short request."""
        self._exchange(b"GET /healthz HTTP/1.1\r\nHost: stowage\r\n\r\n")
        return self._read_schedstats()[0] - self._cpu_at_start

    def settled(self) -> float:
        """The loop's seconds of CPU so far, once it sleeps: including all work that follows an answer."""
        deadline = perf_counter() + _LONGEST_WORK
        while self._state and self._state.read_bytes().rpartition(b") ")[2][:1] != b"S":
            if perf_counter() > deadline:
                break
            sleep(_POLL)
        return self._read_schedstats()[0]

    def post(self, path: str, body: bytes) -> bytes:
        """The body of the reply. Raises ``Refused`` on a status other than 200."""
        head = f"POST {path} HTTP/1.1\r\nHost: stowage\r\nContent-Type: application/json\r\n"
        return self._exchange(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def _exchange(self, request: bytes) -> bytes:
        view = memoryview(self._buffer)
        (cpu, waited), started = self._read_schedstats(), perf_counter()
        self._socket.sendall(request)
        size, end = 0, -1
        while end < 0 or size < end:
            received = self._socket.recv_into(view[size:])
            if not received:
                raise ConnectionError("Stowage closed the connection")
            size += received
            if end < 0 and (head := self._buffer.find(b"\r\n\r\n", 0, size)) >= 0:
                end = head + 4 + _content_length(bytes(self._buffer[:head]))
        self.seconds = perf_counter() - started
        (cpu_now, waited_now) = self._read_schedstats()
        self.cpu, self.starved = cpu_now - cpu, waited_now - waited
        status, reply = bytes(self._buffer[9:12]), bytes(self._buffer[head + 4 : end])
        if status != b"200":
            raise Refused(int(status), reply)
        return reply

    def _read_schedstats(self) -> tuple[float, float]:
        """Seconds so far: on a CPU (the loop), waiting for one (loop and client); see sched-stats.rst of
        Linux."""
        loop, own = ([int(field) for field in path.read_bytes().split()] for path in self._schedstats)
        return loop[0] / 1e9, (loop[1] + own[1]) / 1e9

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()


def extender_args(pod: dict[str, Any], names: Iterable[str]) -> bytes:
    """The body of filter and prioritize, as kube-scheduler writes it with ``nodeCacheCapable: true``."""
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": list(names)}, separators=(",", ":")).encode()


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    raise RuntimeError("reply has no Content-Length")
