"""The routes of the verbs, which kube-scheduler calls twice for each pod."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from fastapi import Request, Response
from starlette.types import Receive

from extender.protocol.messages import Reply, Verb
from extender.protocol.volcano import WITHOUT_BODY, NamesOnly, VolcanoVerb
from extender.server.body import BodyBudget, BodyRefused, Nothing
from extender.server.service import Service
from extender.server.tls import why_not
from extender.untrusted.limits import QUOTED, shorten

_JSON = "application/json"
"""Go's clients send it; for cross-origin requests, a browser sends a preflight request first."""
_CLOSE = {"connection": "close"}


class VerbEndpoint:
    """Answers one verb. ``clients``: the names in TLS certificates that may call it; empty for all."""

    def __init__(
        self, service: Service, bodies: BodyBudget, clients: frozenset[str], verb: Verb | VolcanoVerb
    ) -> None:
        self._service, self._bodies, self._clients, self.verb = service, bodies, clients, verb

    async def __call__(self, request: Request) -> Response:
        """The reply of the verb, or a refusal in the verb's format."""
        service, verb = self._service, self.verb
        if self._clients and (text := why_not(request.state.client_names, self._clients)):
            return _response(service.refuse(verb, "forbidden", text, 403), _CLOSE)
        try:
            body = await self._body(request)
        except BodyRefused as refused:
            return _response(service.refuse(verb, refused.result, str(refused), refused.status), _CLOSE)
        try:
            answer = service.answer(verb, body)
            if verb == "bind":
                answer = _while_connected(request.receive, service, answer)
            if service.tracing:
                answer = service.tracing.traced(verb, request.scope["headers"], answer)
            reply = await answer
        finally:
            self._bodies.release(body)
        # Behind a Service, a caller would keep its connection to a replica that is no longer ready.
        return _response(reply, _CLOSE if service.waiting_for() else None)

    async def _body(self, request: Request) -> bytes:
        """The retained part of the body, which the caller releases. The discarded part has no size limit.
        Raises ``BodyRefused``."""
        bodies, verb = self._bodies, self.verb
        kind, declared = _content(request.scope["headers"])
        if kind != _JSON:
            problem = f"content type {shorten(kind, QUOTED) or 'missing'}, expected {_JSON}"
            raise BodyRefused(400, "bad_message", f"not a valid {verb} request: {problem}")
        if verb in WITHOUT_BODY:
            return await bodies.take(request, "", bodies.limit, Nothing())
        if verb == "volcano/prioritize":
            return await bodies.take(request, "", bodies.limit, NamesOnly())
        try:
            return await bodies.take(request, declared, bodies.limit)
        except BodyRefused as refused:
            setting = " (setting body_limit_mib)" if refused.status == 413 else ""
            raise BodyRefused(refused.status, refused.result, f"{refused}{setting}") from None


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


def _response(reply: Reply, headers: dict[str, str] | None) -> Response:
    return Response(reply.body, reply.status, headers, reply.content_type)


def _content(headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, str]:
    """The media type and the declared length, "" if missing. Of several headers the first counts."""
    kind = length = None
    for name, value in headers:
        if kind is None and name == b"content-type":
            kind = value
        elif length is None and name == b"content-length":
            length = value
    if kind and kind != b"application/json":
        kind = kind.partition(b";")[0].strip().lower()
    return (kind or b"").decode("latin-1"), (length or b"").decode("latin-1")
