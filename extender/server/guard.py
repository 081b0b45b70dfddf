"""What is decided about a request before its route: probes, hosts, and who may read what Stowage knows.

Plain ASGI middleware, because Starlette's ``BaseHTTPMiddleware`` costs half as much as an answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic_core import to_json
from starlette.types import ASGIApp, Receive, Scope, Send

from extender.protocol.messages import TEXT, Reply
from extender.server.debug_auth import is_guarded
from extender.server.same_origin import SameOrigin
from extender.server.service import PROBES, Service

CLOSE = (b"connection", b"close")


class Guard:
    """Answers probes, and refuses requests for another host or, with a setting, without a token.

    ``verbs`` are the routes of POST requests by their path: the application would find them, too, but only
    by trying one pattern after the other, below its exit stack and its handling of exceptions.
    """

    def __init__(self, app: ASGIApp, service: Service, verbs: Mapping[str, ASGIApp], debug: bool) -> None:
        self._app, self._service, self._verbs, self._debug = app, service, verbs, debug
        self._same_origin = SameOrigin(service.settings.allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let the application do it."""
        method, path, headers = scope["method"], scope["path"], scope["headers"]
        if path in PROBES and method in ("GET", "HEAD"):
            await _send(send, self._probe(path[1:], scope["query_string"]))
        elif problem := self._same_origin.problem(headers):
            await _send(send, Reply(f"{problem}\n".encode(), 421, TEXT))
        elif method == "POST" and (verb := self._verbs.get(path)) is not None:
            await verb(scope, receive, send)
        elif not (self._debug and is_guarded(path) and await self._is_refused(scope, send)):
            await self._app(scope, receive, send)

    def _probe(self, name: str, query: bytes) -> Reply:
        """As the components of Kubernetes answer, but for the status 503 and the reasons
        (k8s.io/apiserver, pkg/server/healthz/healthz.go)."""
        checks = {"ping": ""} | (self._service.checks() if name == "readyz" else {})
        failed = any(checks.values())
        if not failed and b"verbose" not in (part.partition(b"=")[0] for part in query.split(b"&")):
            return Reply(b"ok", 200, TEXT)
        lines = (f"[-]{check} failed: {why}" if why else f"[+]{check} ok" for check, why in checks.items())
        text = "\n".join([*lines, f"{name} check {'failed' if failed else 'passed'}\n"])
        return Reply(text.encode(), 503 if failed else 200, TEXT)

    async def _is_refused(self, scope: Scope, send: Send) -> bool:
        """Whether the caller may not ask this, and was told so."""
        auth = self._service.debug_auth
        refusal = await auth.refusal(scope["method"], scope["path"], scope["headers"]) if auth else None
        if refusal is None:
            return False
        more = [(b"www-authenticate", b'Bearer realm="stowage"')] if refusal.status == 401 else []
        reply = Reply(to_json({"detail": refusal.text}) + b"\n", refusal.status)
        await _send(send, reply, CLOSE, *more)
        return True


async def _send(send: Send, reply: Reply, *headers: tuple[bytes, bytes]) -> None:
    length, kind = b"%d" % len(reply.body), reply.content_type.encode()
    first = [(b"content-length", length), (b"content-type", kind), *headers]
    await send({"type": "http.response.start", "status": reply.status, "headers": first})
    await send({"type": "http.response.body", "body": reply.body})
