"""Checks of a request before its route: probes, hosts, and access to the debug endpoints.

Plain ASGI in front of FastAPI's own middleware, because that costs a twentieth of an answer, and Starlette's
``BaseHTTPMiddleware`` half of one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path

from pydantic_core import to_json
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from extender.background import with_turns
from extender.protocol.messages import TEXT, Reply
from extender.server.debug_auth import is_guarded
from extender.server.service import PROBES, Service
from extender.server.verb_route import VerbEndpoint
from extender.untrusted.limits import KNOWN_HOSTS, NAME, quoted

CLOSE = (b"connection", b"close")
_OF_NAMESPACE = re.compile(r"/namespaces/([a-z0-9-]{1,63})(/debug/(?:overview|explain/pods|pods|pods/\1/.+))")
"""What readers of one namespace may ask, with a right to this path."""
_POD = re.compile(rb"(?<![\w./-])([a-z0-9-]{1,63})/[a-z0-9][a-z0-9.-]*")
_LINES = 100
"""Lines of an answer that are searched for pods before other tasks run."""
_RESOLVER = Path("/etc/resolv.conf")
_log = logging.getLogger(__name__)


class Guard:
    """Answers probes, and refuses requests for unknown hosts and, if so configured, without a token.

    ``verbs`` answer POST requests, by path. The application has these routes, too, but matches one pattern
    after the other, below its exit stacks, dependencies and exception handlers: an eighth of an answer.
    """

    def __init__(
        self, app: ASGIApp, service: Service, verbs: Mapping[str, VerbEndpoint], debug: bool
    ) -> None:
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
            response = await verb(Request(scope, receive))
            await response(scope, receive, send)
        elif self._debug and (asked := _OF_NAMESPACE.fullmatch(path)):
            if not await self._is_refused(scope, send):
                query = scope["query_string"] + f"&namespace={asked[1]}".encode()  # the last one counts
                scope = {**scope, "path": asked[2], "query_string": query}
                await self._app(scope, receive, self._without_others(send, asked[1]))
        elif not (self._debug and is_guarded(path) and await self._is_refused(scope, send)):
            await self._app(scope, receive, send)

    def _probe(self, name: str, query: bytes) -> Reply:
        """In the format of Kubernetes components, except for status 503 and the reasons
        (k8s.io/apiserver, pkg/server/healthz/healthz.go)."""
        checks = {"ping": ""} | (self._service.checks() if name == "readyz" else {})
        failed, engine = any(checks.values()), self._service.engine
        unlisted = engine.state.unlisted_texts() if engine and name == "readyz" else []
        is_verbose = b"verbose" in (part.partition(b"=")[0] for part in query.split(b"&"))
        if not (failed or unlisted or is_verbose):
            return Reply(b"ok", 200, TEXT)
        lines = (f"[-]{check} failed: {why}" if why else f"[+]{check} ok" for check, why in checks.items())
        text = "\n".join([*lines, *unlisted, f"{name} check {'failed' if failed else 'passed'}\n"])
        return Reply(text.encode(), 503 if failed else 200, TEXT)

    def _without_others(self, send: Send, namespace: str) -> Send:
        """Sends an answer in which other namespaces' pods, claims and gangs are called ``another/one``."""
        pods = self._service.engine.state.pods.values() if self._service.engine else ()
        others = {pod.namespace.encode() for pod in pods} - {namespace.encode()}

        async def send_without(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [h for h in message["headers"] if h[0] != b"content-length"]
            else:
                lines = with_turns(message["body"].splitlines(keepends=True), _LINES)
                message["body"] = b"".join([_POD.sub(alias, line) async for line in lines])
            await send(message)

        def alias(named: re.Match[bytes]) -> bytes:
            return b"another/one" if named[1] in others else named[0]

        return send_without

    async def _is_refused(self, scope: Scope, send: Send) -> bool:
        """Whether the request was refused, with a reply to the caller."""
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


class SameOrigin:
    """Refuses requests that a browser sends on behalf of another site.

    An attacker's host name can resolve to any address (DNS rebinding), so that the browser treats the
    attacker's page as ours. So a request must name a host that only the cluster's own resolver knows, or
    that the operator allows: an address, ``localhost``, a name without a dot, a Service (``*.svc``, also
    below the domain of the cluster), or one of the ``allowed`` host names. And the ``Origin`` of a page must
    be that host.
    """

    def __init__(self, allowed: Iterable[str] = (), resolver: Path = _RESOLVER) -> None:
        self._names = {"localhost", *(name.lower() for name in allowed)}
        domains = ["svc", "svc.cluster.local", *_service_domains(resolver)]
        self._suffixes = tuple(f".{domain}" for domain in domains)
        self._known: set[bytes] = set()
        self._logged: set[str] = set()

    def problem(self, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """Why a request with these headers is refused, "" if it is not. Browsers always send ``Host``."""
        host = origin = None
        for name, value in headers:
            if name == b"host":
                if value not in self._known and (text := self._host_problem(value)):
                    return text
                host = value
            elif name == b"origin":
                origin = value
        if origin is not None and origin.lower().partition(b"://")[2] != (host or b"").lower():
            return "requests from pages of another site are refused"
        return ""

    def _host_problem(self, host: bytes) -> str:
        text = host.decode("latin-1").lower()
        before, _, port = text.rpartition(":")
        name = (before if port.isdecimal() else text).rstrip(".")
        if text.startswith("["):
            name = text[1:].partition("]")[0]
        if self._is_ours(name):
            if len(self._known) < KNOWN_HOSTS:
                self._known.add(host)
            return ""
        text = f"unknown host {quoted(name)}: use an address, or add the host to the setting allowed_hosts"
        if len(self._logged) < KNOWN_HOSTS and name not in self._logged:
            self._logged.add(name)
            _log.warning("requests are refused: %s", text)
        return text

    def _is_ours(self, name: str) -> bool:
        if len(name) > NAME:
            return False
        if name in self._names or name.endswith(self._suffixes) or "." not in name.replace(":", "."):
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


def _service_domains(resolver: Path) -> list[str]:
    """Search domains for Services that kubelet configured in the resolver, such as ``svc.cluster.local``."""
    try:
        lines = resolver.read_text(errors="replace").splitlines()
    except OSError:
        return []
    searched = [word for line in lines if line.startswith("search") for word in line.split()[1:]]
    return [domain.lower().rstrip(".") for domain in searched if domain.startswith("svc.")]
