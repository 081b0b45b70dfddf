"""The network between one Stowage and kube-apiserver, with the faults of networks."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler

from ..faults import FaultyApi

_GONE = json.dumps(
    {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}
).encode()
_ENDED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n" + _GONE + b"\n"
_REFUSED = b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
BYTE_S = 0.05  # between two bytes of a trickle
FAILING = 0.5  # of the bindings fail during that fault


class Proxy(FaultyApi):
    """Listens while its ``with`` block runs. Without a fault it forwards everything unchanged.

    ``cut_off_since`` is when all traffic began to be dropped (monotonic seconds), None while it flows.
    """

    def __init__(self, upstream: str, certificate: str) -> None:
        self._open: dict[socket.socket, bool] = {}  # watches: whether their data still arrives
        self._watches = threading.Lock()
        self._connected = threading.Event()
        self._connected.set()
        self._gone = 0
        self._answers, self._trickles = threading.Event(), False  # watches
        self._answers.set()
        self.cut_off_since: float | None = None
        super().__init__(upstream, certificate, share=0.0)

    def cut_watches(self) -> int:
        """Closes all watches. Returns how many there were."""
        with self._watches:
            watches = list(self._open)
        for one in watches:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        return len(watches)

    def expire_watches(self) -> None:
        """Ends all watches, and answers as many new ones that their version is gone."""
        self._gone = self.cut_watches()

    @contextmanager
    def half_open(self) -> Iterator[None]:
        """Watches stay open, and nothing arrives on them any more. New connections work."""
        with self._watches:
            self._open = dict.fromkeys(self._open, False)
            dead = list(self._open)
        try:
            yield
        finally:
            for one in dead:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def headless(self) -> Iterator[None]:
        """All watches are cut, and nothing answers new ones. Everything else works."""
        self._answers.clear()
        self.cut_watches()
        try:
            yield
        finally:
            self._answers.set()

    @contextmanager
    def trickling(self) -> Iterator[None]:
        """What comes on watches comes byte by byte. Everything else works."""
        self._trickles = True
        try:
            yield
        finally:
            self._trickles = False

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """Drops all traffic, as if the cable was pulled. What was sent meanwhile never arrives."""
        self._connected.clear()
        self._flowing.clear()
        self.cut_off_since = time.monotonic()
        try:
            yield
        finally:
            self.cut_watches()
            self.cut_off_since = None
            self._connected.set()
            self._flowing.set()

    @contextmanager
    def failing_bindings(self) -> Iterator[None]:
        """Half of the bindings are refused, lost, or made without an answer."""
        self._share = FAILING
        try:
            yield
        finally:
            self._share = 0.0

    def _pass_on(self, request: bytes, client: socket.socket, *, watch: bool) -> None:
        if watch and self._gone > 0:
            self._gone -= 1
            with suppress(OSError):
                client.sendall(_ENDED if self._gone % 2 else _REFUSED)
            return
        if watch and not self._answers.is_set():
            self._answers.wait()
            return
        if not watch:
            super()._pass_on(request, client, watch=False)
            return
        with self._watches:
            self._open[client] = True
        try:
            super()._pass_on(request, _Client(client, self), watch=True)  # type: ignore[arg-type]
        finally:
            with self._watches:
                self._open.pop(client, None)

    def deliver(self, data: bytes, client: socket.socket) -> None:
        """Pass on what came on a watch, as the fault of the moment has it."""
        while data and self._trickles:
            client.sendall(data[:1])
            data = data[1:]
            time.sleep(BYTE_S)
        client.sendall(data)

    def arrives(self, client: socket.socket) -> bool:
        """Whether data for this watch arrives."""
        return self._open.get(client, False)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy, plain = self, super()._handler()

        class Handler(plain):  # type: ignore[misc,valid-type]
            def parse_request(self) -> bool:
                parsed: bool = super().parse_request()
                if proxy._connected.is_set():
                    return parsed
                proxy._connected.wait()
                self.close_connection = True
                return False

            def do_PATCH(self) -> None:
                super().do_POST()

            do_DELETE = do_PATCH

        return Handler


class _Client:
    """The client of a watch, as FaultyApi writes to it."""

    def __init__(self, client: socket.socket, proxy: Proxy) -> None:
        self._client, self._proxy = client, proxy

    def sendall(self, data: bytes) -> None:
        if self._proxy.arrives(self._client):
            self._proxy.deliver(data, self._client)
