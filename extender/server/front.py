"""What a port answers: probes and the verbs by itself, all else by FastAPI.

FastAPI's middleware and routing cost more than a decision. It also takes 0.2 s to import, while the first
lists need the interpreter. So its routes are made when somebody first asks for one of them, or when the
service is ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from importlib import import_module
from typing import Any

from pydantic_core import to_json

from extender.protocol.messages import TEXT, VERBS, Reply, Verb
from extender.protocol.volcano import WITHOUT_BODY, NamesOnly, VolcanoVerb
from extender.server.body import BodyBudget, BodyRefused, Nothing
from extender.server.debug_auth import is_guarded
from extender.server.http_server import CLOSE, App, Message, Receive, Send
from extender.server.same_origin import SameOrigin
from extender.server.service import PROBES, Service
from extender.server.tls import why_not
from extender.untrusted.limits import QUOTED, shorten

_JSON = "application/json"
"""Go's clients send it; a browser asks before it sends it for a page of another site."""
_Headers = Iterable[tuple[bytes, bytes]]


class Front:
    """One port, as ASGI: ``verbs``, and for ``debug`` metrics, ``/debug`` and the page at ``/``.

    ``clients`` are the names in TLS certificates that may call the verbs; empty for all.
    """

    def __init__(
        self,
        service: Service,
        *,
        verbs: bool = True,
        debug: bool = True,
        clients: frozenset[str] = frozenset(),
    ) -> None:
        self._service, self._debug, self._clients = service, debug, clients
        self._bodies = BodyBudget(service.settings.body_limit_mib << 20)
        self._verbs: dict[str, Verb | VolcanoVerb] = {}
        if verbs:
            paths = (f"/scheduler/{one}" if one in VERBS else f"/{one}" for one in service.verbs)
            self._verbs = dict(zip(paths, service.verbs, strict=True))
        self._same_origin = SameOrigin(service.settings.allowed_hosts)
        self._making: asyncio.Future[App] | None = None
        self._app: App | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        method, path, headers = scope["method"], scope["path"], scope["headers"]
        if path in PROBES and method in ("GET", "HEAD"):
            await _send(send, self._probe(path[1:], scope["query_string"]))
        elif problem := self._same_origin.problem(headers):
            await _send(send, Reply(f"{problem}\n".encode(), 421, TEXT))
        elif (verb := self._verbs.get(path)) is not None:
            if method == "POST":
                await self.answer(verb, scope, receive, send)
            else:
                await _send(send, _detail(405, "Method Not Allowed"), (b"allow", b"POST"))
        elif not (self._debug and await self._is_refused(method, path, headers, send)):
            app = self._app or await self.made()
            await app(scope, receive, send)

    def _probe(self, name: str, query: bytes) -> Reply:
        """As the components of Kubernetes answer, but for the status 503 and the reasons
        (k8s.io/apiserver, pkg/server/healthz/healthz.go)."""
        checks = {"ping": ""} | (self._service.checks() if name == "readyz" else {})
        failed = any(checks.values())
        if not failed and b"verbose" not in (part.partition(b"=")[0] for part in query.split(b"&")):
            return Reply(b"ok", 200, TEXT)
        lines = (f"[-]{one} failed: {why}" if why else f"[+]{one} ok" for one, why in checks.items())
        text = "\n".join([*lines, f"{name} check {'failed' if failed else 'passed'}\n"])
        return Reply(text.encode(), 503 if failed else 200, TEXT)

    async def answer(self, verb: Verb | VolcanoVerb, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a verb: the route that kube-scheduler calls twice for each pod."""
        service, kind_and_length = self._service, _content(scope["headers"])
        if self._clients and (text := why_not(scope["state"]["client_names"], self._clients)):
            await _send(send, service.refuse(verb, "forbidden", text, 403), CLOSE)
            return
        try:
            body = await self._body(verb, *kind_and_length, receive)
        except BodyRefused as refused:
            reply = service.refuse(verb, refused.result, str(refused), refused.status)
            await _send(send, reply, CLOSE)
            return
        try:
            answer = service.answer(verb, body)
            if verb == "bind":
                answer = _while_connected(receive, service, answer)
            if service.tracing:
                answer = service.tracing.traced(verb, scope["headers"], answer)
            reply = await answer
        finally:
            self._bodies.release(body)
        # Behind a Service, a caller would keep its connection to a replica that is no longer ready.
        await _send(send, reply, *([CLOSE] if service.waiting_for() else ()))

    async def _body(self, verb: Verb | VolcanoVerb, kind: str, declared: str, receive: Receive) -> bytes:
        """What is kept of the body, to be released. What is not kept of it has no limit of size. Raises
        ``BodyRefused``."""
        if kind != _JSON:
            problem = f"content type {shorten(kind, QUOTED) or 'missing'}, expected {_JSON}"
            raise BodyRefused(400, "bad_message", f"not a valid {verb} request: {problem}")
        bodies = self._bodies
        if verb in WITHOUT_BODY:
            return await bodies.take(receive, "", bodies.limit, Nothing())
        if verb == "volcano/prioritize":
            return await bodies.take(receive, "", bodies.limit, NamesOnly())
        try:
            return await bodies.take(receive, declared, bodies.limit)
        except BodyRefused as refused:
            setting = " (setting body_limit_mib)" if refused.status == 413 else ""
            raise BodyRefused(refused.status, refused.result, f"{refused}{setting}") from None

    async def _is_refused(self, method: str, path: str, headers: _Headers, send: Send) -> bool:
        """Whether the caller may not ask this, and was told so."""
        auth = self._service.debug_auth
        if auth is None or not is_guarded(path):
            return False
        refusal = await auth.refusal(method, path, headers)
        if refusal is None:
            return False
        more = [(b"www-authenticate", b'Bearer realm="stowage"')] if refusal.status == 401 else []
        await _send(send, _detail(refusal.status, refusal.text), CLOSE, *more)
        return True

    async def make_when_ready(self) -> None:
        """Make FastAPI's routes once the service is ready."""
        await self._service.until_ready()
        await self.made()

    async def made(self) -> App:
        """FastAPI's routes. Raises what an import raises, as without memory; the next call tries again."""
        if self._making is None or (self._making.done() and self._app is None):
            self._making = asyncio.ensure_future(asyncio.to_thread(self._make))
        # Whoever waits may leave; a second making beside the first would race with it.
        self._app = await asyncio.shield(self._making)
        return self._app

    def _make(self) -> App:
        app: App = import_module("extender.server.app").create_app(
            self._service, self._bodies, debug=self._debug
        )
        return app


async def _while_connected(receive: Receive, service: Service, answer: Coroutine[Any, Any, Reply]) -> Reply:
    """Cancel the bind if the caller disconnects: it may already be calling another replica."""
    answering = asyncio.create_task(answer)
    disconnecting = asyncio.ensure_future(receive())
    disconnecting.add_done_callback(lambda _: answering.cancel())
    try:
        return await answering
    except asyncio.CancelledError:
        if not disconnecting.done():
            raise
        return service.refuse("bind", "hung_up", "the caller has hung up", 499)
    finally:
        disconnecting.cancel()


def _content(headers: _Headers) -> tuple[str, str]:
    """The media type and the declared length, "" for what is missing. Of several headers the first counts."""
    kind = length = None
    for name, value in headers:
        if kind is None and name == b"content-type":
            kind = value
        elif length is None and name == b"content-length":
            length = value
    if kind and kind != b"application/json":
        kind = kind.partition(b";")[0].strip().lower()
    return (kind or b"").decode("latin-1"), (length or b"").decode("latin-1")


def _detail(status: int, text: str) -> Reply:
    """As FastAPI says it."""
    return Reply(to_json({"detail": text}) + b"\n", status)


async def _send(send: Send, reply: Reply, *headers: tuple[bytes, bytes]) -> None:
    length, kind = b"%d" % len(reply.body), reply.content_type.encode()
    first = [(b"content-length", length), (b"content-type", kind), *headers]
    await send({"type": "http.response.start", "status": reply.status, "headers": first})
    await send({"type": "http.response.body", "body": reply.body})
