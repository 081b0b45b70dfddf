"""A reverse proxy between kube-scheduler and Stowage that records their messages."""

import http.client
import json
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from .background import Served


@dataclass(slots=True, frozen=True)
class Exchange:
    """One call. `reply` is None if no answer with status 200 came: then kube-scheduler sees an error."""

    verb: str
    request: dict[str, Any]
    reply: Any

    @property
    def pod_uid(self) -> str:
        uid: str = self.request["Pod"]["metadata"]["uid"]
        return uid


@dataclass(slots=True)
class Attempt:
    """Stowage's answers in one attempt to schedule a pod: the nodes that fit, and their scores if asked."""

    left: list[str]
    scores: dict[str, int] | None = None

    @property
    def best(self) -> list[str]:
        """The nodes with the highest score; all nodes that fit if there is no answer with scores."""
        if self.scores is None:
            return self.left
        top = max(self.scores.values())
        return [node for node, score in self.scores.items() if score == top]


class Recorder(Served):
    """Listens on a free port while its `with` block runs, and forwards all requests to `upstream`."""

    def __init__(self, upstream: str) -> None:
        self._address = urlsplit(upstream).netloc
        self._calls: list[tuple[str, bytes, bytes | None]] = []
        super().__init__(ThreadingHTTPServer(("127.0.0.1", 0), self._handler()), "recorder")

    def exchanges(self) -> list[Exchange]:
        """All calls in the order of their answers."""
        return [
            Exchange(path.rpartition("/")[2], json.loads(body), None if reply is None else json.loads(reply))
            for path, body, reply in list(self._calls)
        ]

    def attempts(self) -> dict[str, list[Attempt]]:
        """By pod UID, the attempts with at least one node that fits, in order."""
        by_pod: dict[str, list[Attempt]] = {}
        for exchange in self.exchanges():
            if exchange.reply is None:
                continue
            if exchange.verb == "filter" and exchange.reply["NodeNames"]:
                by_pod.setdefault(exchange.pod_uid, []).append(Attempt(exchange.reply["NodeNames"]))
            elif exchange.verb == "prioritize":
                scores = {entry["Host"]: entry["Score"] for entry in exchange.reply}
                by_pod[exchange.pod_uid][-1].scores = scores
        return by_pod

    def _forward(self, path: str, body: bytes) -> bytes | None:
        """The body of an answer with status 200. Each call connects anew, to find a restarted Stowage."""
        connection = http.client.HTTPConnection(self._address, timeout=30)
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
            return content if answer.status == http.client.OK else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"  # kube-scheduler keeps its connections
            disable_nagle_algorithm = True  # without this and the next line a call would take 40 ms
            wbufsize = 1 << 20  # headers and body are sent in one write

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                reply = recorder._forward(self.path, body)
                recorder._calls.append((self.path, body, reply))
                self.send_response(502 if reply is None else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(reply or b"")))
                self.end_headers()
                self.wfile.write(reply or b"")

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing: the exchanges are the log."""

        return Handler
