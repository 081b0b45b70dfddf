"""Services of the API server for tests, and its proxy to one address."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import urllib3

_NUMBERS = itertools.count()
LABEL = {"stowage.dev/debug": "true"}


def service(name: str = "stowage-debug", namespace: str = "stowage-system") -> dict[str, Any]:
    """A Service as in deploy/."""
    metadata = {"name": name, "namespace": namespace, "labels": LABEL}
    return {"metadata": metadata, "spec": {"ports": [{"name": "debug", "port": 8081}]}}


class Services:
    """``items`` are all Services; ``target`` is the URL behind each. ``forbidden``: namespaces ("" for all)
    whose Services may not be listed. ``seen``: method and path of each request. ``host``: the name by which
    clients reach the API server, which its proxy passes on. ``viewers``: the service accounts whose tokens
    the user may create; ``tokens``: these, and ``sent``: all that Services got."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.forbidden: set[str] = set()
        self.target = self.host = ""
        self.seen: list[tuple[str, str]] = []
        self.viewers: set[str] = set()
        self.tokens: list[str] = []
        self.sent: list[tuple[str, str]] = []

    def handles(self, path: str) -> bool:
        return path.startswith("/api/v1/services") or (
            path.startswith("/api/v1/namespaces/")
            and path.split("/")[5].partition("?")[0] in ("services", "serviceaccounts")
        )

    def handle(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        self.seen.append((method, path))
        if "/proxy/" in path:
            return self._proxy(method, path, body, headers)
        namespace = path.split("/")[4] if path.startswith("/api/v1/namespaces/") else ""
        if "/serviceaccounts/" in path:
            return self._token(namespace, path, json.loads(body))
        if namespace in self.forbidden:
            return 403, b'{"kind": "Status", "message": "services is forbidden"}'
        items = [one for one in self.items if namespace in ("", one["metadata"]["namespace"])]
        assert parse_qs(urlsplit(path).query)["labelSelector"] == ["stowage.dev/debug=true"]
        return 200, json.dumps({"items": items}).encode()

    def _token(self, namespace: str, path: str, request: dict[str, Any]) -> tuple[int, bytes]:
        name = path.split("/")[6]
        assert (path.split("/")[7], request["spec"]["audiences"]) == ("token", ["stowage"])
        assert request["spec"]["expirationSeconds"] >= 600  # or the API server refuses it
        if f"{namespace}/{name}" not in self.viewers:
            message = f'serviceaccounts "{name}" is forbidden: User "test" cannot create resource "x"'
            return 403, json.dumps({"kind": "Status", "message": message}).encode()
        self.tokens.append(f"secret-{next(_NUMBERS)}")
        return 201, json.dumps({"status": {"token": self.tokens[-1]}}).encode()

    def _proxy(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """As the real one: without ``Authorization``."""
        place, _, rest = path.partition("/proxy")
        known = {
            f"/api/v1/namespaces/{one['metadata']['namespace']}/services/"
            f"{one['spec']['ports'][0].get('appProtocol', 'http')}:{one['metadata']['name']}:debug"
            for one in self.items
        }
        if place not in known:
            return 404, b'{"kind": "Status", "message": "services \\"stowage-debug\\" not found"}'
        if not self.target:
            return 503, b'{"kind": "Status", "message": "no endpoints available for service"}'
        sent = {name: value for name, value in headers.items() if name.lower().startswith("x-stowage")}
        self.sent += [(place, value.removeprefix("Bearer ")) for value in sent.values()]
        asked = next(value for name, value in headers.items() if name.lower() == "host")
        sent["Host"] = self.host if self.host and asked.startswith("127.") else asked
        with urllib3.PoolManager() as pool:
            answer = pool.request(method, self.target + rest, body=body or None, headers=sent)
        return answer.status, answer.data
