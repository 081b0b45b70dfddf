"""Another extender beside Stowage: it allows some nodes, likes others, protects some from preemption."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .background import Served
from .controlplane.api import Object


@dataclass
class Opinions:
    """`allows` and `preempts`: the nodes that `filter` and `preempt` leave in, None for all. `likes` get a
    score of 10, others 0. With `fails` every call is answered with status 500."""

    allows: set[str] | None = None
    preempts: set[str] | None = None
    likes: set[str] = field(default_factory=set)
    fails: bool = False


class OtherExtender(Served):
    """Runs during its `with` block, at `url`. `asked` has the names of the nodes in each call of `filter`."""

    def __init__(self, opinions: Opinions) -> None:
        self.opinions = opinions
        self.asked: list[set[str]] = []
        super().__init__(ThreadingHTTPServer(("127.0.0.1", 0), self._handler()), "other-extender")

    def configured(self, **changes: object) -> Object:
        """Its part of a KubeSchedulerConfiguration. Without managed resources it is asked about every pod."""
        verbs = {f"{verb}Verb": verb for verb in ("filter", "prioritize", "preempt")}
        return {"urlPrefix": self.url, "weight": 1, "nodeCacheCapable": True} | verbs | changes

    def filter(self, request: Object) -> Any:
        names = request["NodeNames"]
        self.asked.append(set(names))
        allows = self.opinions.allows
        refused = {} if allows is None else dict.fromkeys(set(names) - allows, "refused by the other")
        return {"NodeNames": [name for name in names if name not in refused], "FailedNodes": refused}

    def prioritize(self, request: Object) -> Any:
        return [{"Host": name, "Score": 10 * (name in self.opinions.likes)} for name in request["NodeNames"]]

    def preempt(self, request: Object) -> Any:
        proposed, preempts = request["NodeNameToMetaVictims"], self.opinions.preempts
        return {
            "NodeNameToMetaVictims": {
                name: victims for name, victims in proposed.items() if preempts is None or name in preempts
            }
        }

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        extender = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = 1 << 20

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                verbs: dict[str, Callable[[Object], Any]] = {
                    "/filter": extender.filter,
                    "/prioritize": extender.prioritize,
                    "/preempt": extender.preempt,
                }
                content = b"" if extender.opinions.fails else json.dumps(verbs[self.path](request)).encode()
                self.send_response(500 if extender.opinions.fails else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing."""

        return Handler
