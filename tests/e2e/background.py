"""Servers and watches that run in a thread while a `with` block runs."""

import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from http.server import ThreadingHTTPServer
from types import TracebackType
from typing import Self

import httpx

from .controlplane.api import Api, Object

WINDOW_S = 2  # a watch ends after this time, and the end of the block is noticed


class Served:
    """A server on a free port of loopback, at `url`."""

    def __init__(self, server: ThreadingHTTPServer, name: str) -> None:
        self._server = server
        self._server.daemon_threads = True  # idle connections and watches do not end by themselves
        self._thread = threading.Thread(target=server.serve_forever, name=name)
        self.url = f"http://127.0.0.1:{server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class InThread(ABC):
    """Runs in a thread until `_over` is set."""

    def __init__(self, name: str) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    @abstractmethod
    def _run(self) -> None:
        """What the thread does."""


class PodWatch(InThread):
    """Lists and watches all pods of the API, across its restarts."""

    def __init__(self, api: Api, name: str) -> None:
        super().__init__(name)
        self._api = api

    @abstractmethod
    def _take_list(self, pods: list[Object]) -> None:
        """All pods as they are now."""

    @abstractmethod
    def _take(self, kind: str, pod: Object) -> None:
        """One pod that was ADDED, MODIFIED or DELETED."""

    def _run(self) -> None:
        while not self._over.is_set():
            # The API server is down, or (410) no longer has the version at which the watch continues.
            with suppress(httpx.TransportError, httpx.HTTPStatusError):
                self._follow()
            self._over.wait(0.1)

    def _follow(self) -> None:
        listed = self._api.list("Pod")
        self._take_list(listed["items"])
        version = listed["metadata"]["resourceVersion"]
        while not self._over.is_set():
            for kind, pod in self._api.watch("Pod", version, for_s=WINDOW_S):
                if kind == "ERROR":
                    return
                version = pod["metadata"]["resourceVersion"]
                self._take(kind, pod)
