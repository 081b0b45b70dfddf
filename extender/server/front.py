"""What a port answers without FastAPI: probes and the verbs.

FastAPI's middleware and routing cost more than a decision. It also takes 0.2 s to import, while the first
lists need the interpreter. So all other routes are made when somebody first asks for one of them, or when the
service is ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from importlib import import_module
from typing import TypeAlias

from extender.server.body import Message, Receive
from extender.server.same_origin import SameOrigin
from extender.server.service import Service
from extender.server.verb_endpoint import Send, body_budget, verb_endpoints

App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]
_POLL = 0.02  # seconds


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
        self._service, self._debug, self._bodies = service, debug, body_budget(service)
        self._endpoints = verb_endpoints(service, self._bodies, clients) if verbs else {}
        self._same_origin = SameOrigin(service.settings.allowed_hosts)
        self._making: asyncio.Task[App] | None = None
        self._app: App | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http":
            method, path = scope["method"], scope["path"]
            if method in ("GET", "HEAD") and path in ("/healthz", "/readyz"):
                alive = 200, "ok\n"
                await _answer(send, *(self._service.readiness() if path == "/readyz" else alive))
                return
            if problem := self._same_origin.problem(scope["headers"]):
                await _answer(send, HTTPStatus.MISDIRECTED_REQUEST, f"{problem}\n")
                return
            if method == "POST" and (endpoint := self._endpoints.get(path)) is not None:
                await endpoint(scope, receive, send)
                return
        app = self._app or await self.made()
        await app(scope, receive, send)

    async def make_when_ready(self) -> None:
        """Make all other routes once the service is ready."""
        while self._service.missing():
            await asyncio.sleep(_POLL)
        await self.made()

    async def made(self) -> App:
        """All other routes. Raises what an import raises, as without memory; the next call tries again."""
        if self._making is None or (self._making.done() and self._making.exception()):
            self._making = asyncio.create_task(asyncio.to_thread(self._make))
        self._app = await asyncio.shield(self._making)  # another request may wait for it, too
        return self._app

    def _make(self) -> App:
        app = import_module("extender.server.app")
        made: App = app.create_app(self._service, self._endpoints, self._bodies, debug=self._debug)
        return made


async def _answer(send: Send, status: int, text: str) -> None:
    body = text.encode()
    headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
