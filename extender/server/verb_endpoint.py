"""A verb as plain ASGI: the route that kube-scheduler calls twice for each pod.

For such a small answer the middleware and the routing of a framework cost more than the decision, so this
endpoint needs neither. Bodies are bytes in and bytes out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeAlias

from extender.protocol.messages import VERBS, Verb
from extender.protocol.volcano import WITHOUT_BODY, NamesOnly, VolcanoVerb
from extender.server.body import BodyBudget, BodyRefused, Message, Receive, reduced
from extender.server.memory_limit import memory_limit
from extender.server.service import Reply, Service
from extender.server.tls import why_not
from extender.untrusted.limits import BODIES_IN_FLIGHT, LARGE_BODY, PART_OF_MEMORY, QUOTED, shorten

Send: TypeAlias = Callable[[Message], Awaitable[None]]
_JSON = "application/json"
"""Go's clients send it; a browser asks before it sends it for a page of another site."""
_CLOSE = (b"connection", b"close")


class VerbEndpoint:
    """An ASGI application that answers POST requests of one verb, whatever their path."""

    def __init__(
        self,
        service: Service,
        verb: Verb | VolcanoVerb,
        bodies: BodyBudget,
        clients: frozenset[str] = frozenset(),
    ) -> None:
        """``clients``: see ``Front``."""
        self._service, self._verb, self._bodies, self._clients = service, verb, bodies, clients
        self._limit = body_limit(service)

    async def _received(self, receive: Receive, declared: str) -> bytes:
        """What is kept of the body, to be released. What is not kept of it has no limit of size."""
        if self._verb in WITHOUT_BODY:
            return await self._bodies.discard(receive)
        if self._verb == "volcano/prioritize":
            return await self._bodies.take(reduced(receive, NamesOnly()), "", self._limit)
        return await self._bodies.take(receive, declared, self._limit)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        service, verb = self._service, self._verb
        if self._clients and (text := why_not(scope["state"]["client_names"], self._clients)):
            await _send(send, service.refuse(verb, "forbidden", text, 403), close=True)
            return
        kind, declared = _content(scope["headers"])
        if kind != _JSON:
            problem = f"content type {shorten(kind, QUOTED) or 'missing'}, expected {_JSON}"
            text = f"not a valid {verb} request: {problem}"
            await _send(send, service.refuse(verb, "bad_message", text, 400), close=True)
            return
        try:
            body = await self._received(receive, declared)
        except BodyRefused as refused:
            text = f"{refused} (setting body_limit_mib)" if refused.status == 413 else str(refused)
            await _send(send, service.refuse(verb, refused.result, text, refused.status), close=True)
            return
        try:
            answer = service.answer(verb, body)
            reply = await (_while_connected(receive, service, answer) if verb == "bind" else answer)
        finally:
            self._bodies.release(body)
        # Behind a Service, a caller would keep its connection to a replica that is no longer ready.
        await _send(send, reply, close=bool(service.waiting_for()))


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


def _content(headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, str]:
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


async def _send(send: Send, reply: Reply, *, close: bool) -> None:
    headers = [(b"content-length", b"%d" % len(reply.body)), (b"content-type", reply.content_type.encode())]
    if close:
        headers.append(_CLOSE)
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


def body_budget(service: Service) -> BodyBudget:
    """The memory for bodies of requests to one port."""
    return BodyBudget(BODIES_IN_FLIGHT * body_limit(service))


def body_limit(service: Service) -> int:
    """The most bytes of one body: as the setting says, and no more than the process has memory for."""
    limit, memory = service.settings.body_limit_mib << 20, memory_limit()
    return limit if memory is None else min(limit, max(memory // PART_OF_MEMORY, LARGE_BODY))


def verb_endpoints(
    service: Service, bodies: BodyBudget, clients: frozenset[str]
) -> Mapping[str, VerbEndpoint]:
    """The verbs that are served, by path."""
    return {
        f"/scheduler/{verb}" if verb in VERBS else f"/{verb}": VerbEndpoint(service, verb, bodies, clients)
        for verb in service.verbs
    }
