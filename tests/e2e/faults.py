"""A proxy before kube-apiserver that makes bindings fail: it refuses some, and drops the answers of others.

It forwards all other requests unchanged, but can delay watches. If a binding fails "after", the API server
has made it and the client does not know.
"""

import http.client
import json
import random
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from urllib.parse import urlsplit

from .background import Served

FAULTS = tuple(product(("before", "after"), ("500", "409", "hang up")))


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: a killed client leaves broken connections."""


class FaultyApi(Served):
    """Listens on a free port while its `with` block runs, and fails this share of the bindings.

    `bindings` counts the faults; ("", "") is a binding without a fault.
    """

    def __init__(self, upstream: str, certificate: str, *, share: float, seed: int = 1) -> None:
        address = urlsplit(upstream)
        self._host, self._port = str(address.hostname), int(address.port or 443)
        self._tls = ssl.create_default_context(cafile=certificate)
        self._random = random.Random(seed)
        self._share = share
        self._lock = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()
        self.bindings: Counter[tuple[str, str]] = Counter()
        super().__init__(_Server(("127.0.0.1", 0), self._handler()), "faulty-api")

    @contextmanager
    def late(self) -> Iterator[None]:
        """Delays all watch events until the end of the block."""
        self._flowing.clear()
        try:
            yield
        finally:
            self._flowing.set()

    def _draw(self) -> tuple[str, str]:
        with self._lock:
            fault = self._random.choice(FAULTS) if self._random.random() < self._share else ("", "")
            self.bindings[fault] += 1
            return fault

    def _pass_on(self, request: bytes, client: socket.socket, *, watch: bool) -> None:
        """Forward the request, and the answer until its end."""
        with (
            suppress(OSError),
            self._tls.wrap_socket(
                socket.create_connection((self._host, self._port)), server_hostname=self._host
            ) as upstream,
        ):
            upstream.sendall(request)
            while data := upstream.recv(1 << 16):
                if watch:
                    self._flowing.wait()
                client.sendall(data)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = 1 << 20

            def setup(self) -> None:
                super().setup()
                self.upstream = http.client.HTTPSConnection(
                    proxy._host, proxy._port, context=proxy._tls, timeout=30
                )

            def finish(self) -> None:
                with suppress(OSError):
                    super().finish()
                self.upstream.close()

            def do_GET(self) -> None:
                kept = [f"{name}: {value}" for name, value in self.headers.items() if name != "Connection"]
                head = [f"GET {self.path} HTTP/1.1", *kept, "Connection: close", "", ""]
                self.close_connection = True  # the end of the answer is the end of the connection
                proxy._pass_on("\r\n".join(head).encode(), self.connection, watch="watch=true" in self.path)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                when, what = proxy._draw() if self.path.endswith("/binding") else ("", "")
                status, answer = (0, b"") if when == "before" else self._forward(body)
                if what == "hang up":
                    self.close_connection = True
                    return
                if what:
                    status, answer = int(what), json.dumps({"message": "failed by the test"}).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_PUT = do_POST  # for Leases

            def _forward(self, body: bytes) -> tuple[int, bytes]:
                self.upstream.request(self.command, self.path, body, dict(self.headers.items()))
                answer = self.upstream.getresponse()
                return answer.status, answer.read()

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing: `bindings` is the log."""

        return Handler
