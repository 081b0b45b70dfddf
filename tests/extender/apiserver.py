"""A small API server on loopback for tests: it lists in pages, watches, binds, and fails on request."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from extender.source.apiserver import KubeSource, from_kubeconfig
from extender.source.rest import Timeouts
from tests.extender.apistore import Manifest, Store, bookmark, error, line
from tests.extender.evictions import Evictions
from tests.extender.reviews import Reviews
from tests.extender.services import Services

LEASES = "/apis/coordination.k8s.io/v1/namespaces/gpu/leases"
DEVICES = "/apis/resource.k8s.io/v1/"
PATIENT = Timeouts(connect=1, bind=1, page=1, silence=60, stop=5)


def node(name: str) -> Manifest:
    """A node."""
    return {"metadata": {"name": name, "uid": f"u-{name}"}}


def pod(name: str, node_name: str = "", **more: Any) -> Manifest:
    """A pod in namespace ml."""
    return {
        "metadata": {"namespace": "ml", "name": name, "uid": f"u-{name}"},
        "spec": {"nodeName": node_name},
        **more,
    }


def source_of(
    api: ApiServer, directory: Path, user: dict[str, Any] | None = None, timeouts: Timeouts = PATIENT
) -> KubeSource:
    """A source that reads a kubeconfig in this directory."""
    config = {
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": api.url}}],
        "users": [{"name": "test", "user": user or {"token": "secret"}}],
    }
    path = directory / "kubeconfig"
    path.write_text(json.dumps(config))
    return from_kubeconfig(path, timeouts)


class ApiServer:
    """Nodes and pods over HTTP, and DRA devices once there is a store for them.

    ``requests`` are the paths with their queries, in order of arrival. ``script`` says by path what happens
    to the next requests: a status ("500", "410"), "hangup" (no answer), "silent" (an answer that stops half
    way), "cut" (half a line, then the end), "cut chunks" (the same, of a list in chunks), "gone" (a watch
    that ends with 410), "garbage" (no JSON), "close" (a watch that ends at once), "headless" (nothing),
    "slow head" and "trickle" (byte by byte), "lost" (the write is done, but not answered), "" (a normal
    answer). The script of ``LEASES`` applies to all methods.
    """

    def __init__(self) -> None:
        self.stores = {"/api/v1/nodes": Store(), "/api/v1/pods": Store()}
        self.nodes, self.pods = self.stores.values()
        self.without_devices = 404  # the status if there is no store for them
        self.leases = Store()
        self.evictions = Evictions(self)
        self.reviews = Reviews()
        self.services = Services()
        self.banned: set[str] = set()  # tokens without rights on Leases
        self.version: Manifest = {"major": "1", "minor": "36+"}
        self.refusal: tuple[int, str] | None = None  # of binds
        self.script: dict[str, deque[str]] = {path: deque() for path in (*self.stores, LEASES)}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.tokens: set[str | None] = set()
        self.connections = 0
        self.changed = threading.Condition()
        self.one_answer_each = False  # one request for each connection, as behind some proxies
        self.running = False
        self._sockets: set[socket.socket] = set()
        self._port = 0

    @property
    def url(self) -> str:
        """The address; a restart does not change it."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Listen, on the same port as before."""
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = _Server(("127.0.0.1", self._port), handler)
        self._port = self._server.server_address[1]
        self.running = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close all connections and stop listening."""
        with self.changed:
            self.running = False
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self.hang_up()

    def hang_up(self) -> None:
        """Close all connections."""
        for connection in list(self._sockets):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def put(self, manifest: Manifest) -> None:
        """Create or change a node or a pod, and send it to the watches."""
        with self.changed:
            (self.pods if "namespace" in manifest["metadata"] else self.nodes).put(manifest)
            self.changed.notify_all()

    def delete(self, key: str) -> None:
        """Delete a node or a pod, and send this to the watches."""
        with self.changed:
            (self.pods if "/" in key else self.nodes).delete(key)
            self.changed.notify_all()

    def bind(self, namespace: str, name: str, binding: Manifest) -> tuple[int, str]:
        """Handle a POST to pods/binding: status and message."""
        pod = self.pods.objects.get(f"{namespace}/{name}")
        metadata = binding["metadata"]
        if self.refusal:
            return self.refusal
        if pod is None:
            return 404, f'pods "{name}" not found'
        if metadata.get("uid", pod["metadata"]["uid"]) != pod["metadata"]["uid"]:
            return 409, "Precondition failed: UID in precondition differs"
        if pod["spec"].get("nodeName"):
            return 409, f"pod {name} is already assigned to node"
        annotations = pod["metadata"].get("annotations", {}) | (metadata.get("annotations") or {})
        bound_metadata = pod["metadata"] | {"annotations": annotations}
        self.put(
            pod | {"metadata": bound_metadata, "spec": pod["spec"] | {"nodeName": binding["target"]["name"]}}
        )
        return 201, "bound"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # every watch connects at once

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: the tests break connections on purpose."""


class _Handler(BaseHTTPRequestHandler):
    api: ApiServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.api._sockets.add(self.connection)
        self.api.connections += 1

    def finish(self) -> None:
        self.api._sockets.discard(self.connection)
        super().finish()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        if self.api.services.handles(url.path):
            return self._answer(*self.api.services.handle("GET", self.path, b"", dict(self.headers)))
        if self.api.evictions.handles(url.path):
            return self._evictions("GET", None)
        self._get(url.path, query)

    def _get(self, path: str, query: dict[str, str]) -> None:
        is_optional = path.startswith("/apis/") and not path.startswith(LEASES)
        is_optional |= path.startswith(("/api/v1/limitranges", "/api/v1/persistentvolume"))
        if is_optional and path not in self.api.stores:
            return self._answer(self.api.without_devices, b'{"kind": "Status", "message": "no such thing"}')
        self.api.requests.append((path, query))
        self.api.tokens.add(self.headers["Authorization"])
        if path == "/version":
            return self._answer(200, json.dumps(self.api.version).encode())
        if path.startswith("/api/v1/namespaces/"):
            return self._answer_pod(path)
        if path.startswith(LEASES):
            return self._lease(lambda: self._read_lease(path))
        script = self.api.script.get(path)
        fault = script.popleft() if script else ""
        store = self.api.stores[path]
        if fault.isdigit():
            return self._answer(int(fault), b'{"kind": "Status", "message": "scripted"}')
        if fault == "hangup":
            return self._end()
        if fault == "headless":
            return self._stall()
        if fault == "slow head":
            return self._trickle_on(b"HTTP/1.1 200 OK\r\nServer: slow\r\n\r\n", self.wfile.write)
        if "watch" in query:
            return self._watch(store, int(query["resourceVersion"]), fault)
        with self.api.changed:
            status, body = store.list(query)
        self._list(status, body, fault)

    def _list(self, status: int, body: bytes, fault: str) -> None:
        if fault == "garbage":
            return self._answer(200, b"<html>not here</html>")
        if fault == "trickle":
            return self._trickle(status, body)
        if fault == "cut chunks":
            self.send_response(status)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self._chunk(body[: len(body) // 2])
            return self._end()
        self._answer(status, body, stall=fault == "silent", cut=fault == "cut")

    def _answer_pod(self, path: str) -> None:
        _, _, _, _, namespace, _, name = path.split("/")
        with self.api.changed:
            found = self.api.pods.objects.get(f"{namespace}/{name}")
        self._answer(200 if found else 404, json.dumps(found or {"kind": "Status"}).encode())

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        if self.api.services.handles(self.path):
            return self._answer(*self.api.services.handle("POST", self.path, raw, dict(self.headers)))
        body = json.loads(raw)
        if self.path.startswith(LEASES):
            return self._lease(lambda: self.api.leases.create(body))
        if self.api.evictions.handles(urlsplit(self.path).path):
            return self._evictions("POST", body)
        if self.api.reviews.handles(self.path):
            status, answer = self.api.reviews.handle(self.path, body)
            return self._answer(status, json.dumps(answer).encode())
        _, _, _, _, namespace, _, name, _ = self.path.split("/")
        status, message = self.api.bind(namespace, name, body)
        self._answer(status, json.dumps({"kind": "Status", "message": message}).encode())

    def do_PUT(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.api.evictions.handles(self.path):
            return self._evictions("PUT", body)
        self._lease(lambda: self.api.leases.replace(body))

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        kind = "merge" if isinstance(body, dict) else "json"
        assert self.headers["Content-Type"] == f"application/{kind}-patch+json"
        self._evictions("PATCH", body)

    def _evictions(self, method: str, body: Any) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        (status, answer), fault = self.api.evictions.handle(method, url.path, query, body)
        if fault in ("hangup", "lost"):
            return self._end()
        self._answer(status, json.dumps(answer).encode())

    def _read_lease(self, path: str) -> tuple[int, Manifest]:
        lease = self.api.leases.objects.get(f"gpu/{path.rpartition('/')[2]}")
        return (200, lease) if lease else (404, {"message": "not found"})

    def _lease(self, handle: Callable[[], tuple[int, Manifest]]) -> None:
        script = self.api.script[LEASES]
        fault = script.popleft() if script else ""
        if fault == "hangup":
            return self._end()
        with self.api.changed:
            banned = (self.headers["Authorization"] or "").removeprefix("Bearer ") in self.api.banned
            refused = "403" if banned else fault if fault.isdigit() else ""
            status, body = (int(refused), {"message": "scripted"}) if refused else handle()
        if fault == "lost":
            return self._end()
        self._answer(status, json.dumps(body).encode(), stall=fault == "silent")

    def _answer(self, status: int, body: bytes, *, stall: bool = False, cut: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut or stall else body)
        if stall:
            self._stall()
        if cut:
            self._end()

    def _watch(self, store: Store, version: int, fault: str) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        if self.api.one_answer_each:
            self.send_header("Connection", "close")
        self.end_headers()
        if fault == "silent":
            return self._stall()
        if fault == "trickle":
            return self._trickle_on(line("ADDED", {"metadata": {"name": "never"}}), self._chunk)
        if fault == "garbage":
            return self._chunk(b"<html>\n")
        with self.api.changed:
            while self.api.running:
                data = store.since(version)
                if fault == "gone" or data is None:
                    self._chunk(error(410))
                    break
                if fault == "cut":
                    self._chunk(line("ADDED", {"metadata": {"name": "never"}})[:20])
                    return self._end()
                if data:
                    self._chunk(data)
                    version = store.version
                self._chunk(bookmark(store.version))
                if fault == "close":
                    break
                self.api.changed.wait()
        self._chunk(b"")

    def _trickle(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self._trickle_on(body, self.wfile.write)

    def _trickle_on(self, data: bytes, write: Callable[[bytes], object]) -> None:
        """The first bytes quickly enough for every limit of one read, and never the last."""
        for byte in data[:-1] * 1000:
            write(bytes([byte]))
            if not self.api.running:
                break
            time.sleep(0.02)

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _stall(self) -> None:
        with self.api.changed:
            self.api.changed.wait_for(lambda: not self.api.running)
        self._end()

    def _end(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
