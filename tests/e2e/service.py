"""A small Kubernetes Service: one address for several replicas, of which it uses the ready ones.

It directs connections, not requests: an open connection stays when its replica is no longer ready.
"""

import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar
from urllib.parse import urlsplit


class Replica(Protocol):
    """A Stowage that may be behind the Service."""

    @property
    def verbs_url(self) -> str: ...

    def status(self, path: str) -> int:
        """The status of a GET of the debug port, 0 if nothing listens."""


R = TypeVar("R", bound=Replica)


class Service(Generic[R]):
    """Listens on a free port while its `with` block runs.

    `replicas` may change meanwhile. They are probed every `probe_s` seconds (kubelet: 1 at least).
    `leaders` are those that were ready, in order. `rivals` counts how often two were ready at once.
    """

    def __init__(self, replicas: Sequence[R], *, probe_s: float = 0.1) -> None:
        self._replicas = replicas
        self._probe_s = probe_s
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._over = threading.Event()
        self._threads = [threading.Thread(target=run) for run in (self._probe, self._accept)]
        self._connections: list[tuple[threading.Thread, socket.socket]] = []
        self._ready: R | None = None
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.leaders: list[R] = []
        self.rivals = 0

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for thread in self._threads:
            thread.join()
        for thread, caller in self._connections:
            with suppress(OSError):  # it is closed already
                caller.shutdown(socket.SHUT_RDWR)
            thread.join()

    def _probe(self) -> None:
        while not self._over.wait(self._probe_s):
            ready = [one for one in tuple(self._replicas) if one.status("/readyz") == 200]
            # The probes run one after another. Two are ready at once only if the first is still ready after
            # the last.
            self.rivals += len(ready) > 1 and ready[0].status("/readyz") == 200
            self._ready = ready[-1] if ready else None
            if self._ready and self._ready not in self.leaders[-1:]:
                self.leaders.append(self._ready)

    def _accept(self) -> None:
        with suppress(OSError):  # closed, at the end
            while True:
                caller, _ = self._socket.accept()
                thread = threading.Thread(target=_connect, args=(caller, self._ready))
                thread.start()
                self._connections.append((thread, caller))


def _connect(caller: socket.socket, replica: Replica | None) -> None:
    """Forwards data in both directions until one side closes."""
    with caller, suppress(OSError):
        if replica is None:
            return
        with socket.create_connection(("127.0.0.1", urlsplit(replica.verbs_url).port or 0)) as callee:
            back = threading.Thread(target=_pump, args=(callee, caller))
            back.start()
            _pump(caller, callee)
            back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
