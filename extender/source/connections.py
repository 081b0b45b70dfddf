"""Connections to the API server whose answers begin in time.

The timeout of a socket limits each read. A server that sends the head of an answer byte by byte keeps to it
for hours; and the head of a watch comes at once, while later the watch may be silent for minutes.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress

from urllib3 import HTTPConnectionPool, HTTPResponse, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection


class Heads:
    """The requests that wait for the head of their answer. Each may wait as long as its read timeout."""

    def __init__(self) -> None:
        self._due: dict[socket.socket, float] = {}  # monotonic seconds

    def pools(self, silence: float) -> dict[str, type[HTTPConnectionPool]]:
        """For ``PoolManager.pool_classes_by_scheme``. ``silence``: seconds for each read of a watch after its
        head."""
        due = self._due

        class Plain(HTTPConnection):
            _watches = False

            def putrequest(self, method: str, url: str, *headers: bool, **more: bool) -> None:
                self._watches = "watch=true" in url
                super().putrequest(method, url, *headers, **more)

            def getresponse(self) -> HTTPResponse:  # type: ignore[override]
                assert self.sock is not None
                sock = self.sock  # the response takes it over if the server closes the connection after it
                due[sock] = late_at = time.monotonic() + float(self.timeout or 0)
                try:
                    response = super().getresponse()
                finally:
                    del due[sock]
                if time.monotonic() >= late_at:  # the end of the connection counts as that of the head
                    raise TimeoutError("the head of the answer came too slowly")
                if self._watches:
                    sock.settimeout(silence)
                return response

        class Secure(Plain, HTTPSConnection):
            pass

        class PlainPool(HTTPConnectionPool):
            ConnectionCls = Plain

        class SecurePool(HTTPSConnectionPool):
            ConnectionCls = Secure

        return {"http": PlainPool, "https": SecurePool}

    def end_late(self) -> None:
        """End the requests whose time is over. For another thread, about once a second."""
        now = time.monotonic()
        for sock in [sock for sock, due in self._due.copy().items() if now >= due]:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
