"""The HTTP routes, and the size and content type of bodies.

For speed, handlers are ``async def`` and work inline (a thread pool costs more than the answer), bodies are
bytes in and out (response models cost eight times as much), and there is no middleware but ``Guard``. The
verbs are plain routes: FastAPI parses nothing in their bodies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic_core import to_json

from extender.protocol.messages import VERBS, Verb
from extender.protocol.volcano import WITHOUT_BODY, NamesOnly, VolcanoVerb
from extender.server.body import BodyBudget, BodyRefused, Receive, reduced
from extender.server.debug_auth import Guard
from extender.server.debug_routes import debug_router
from extender.server.metrics import CONTENT_TYPE
from extender.server.page_files import page_files
from extender.server.service import Reply, Service
from extender.server.tls import why_not
from extender.untrusted.limits import BODIES_IN_FLIGHT, QUOTED, shorten

Handler = Callable[[Request], Awaitable[Response]]
Read = Callable[[Receive, Mapping[str, str], int], AbstractAsyncContextManager[bytes]]
Answer = Coroutine[Any, Any, Reply]
_CLOSE = {"connection": "close"}


def create_app(
    service: Service, *, verbs: bool = True, debug: bool = True, clients: frozenset[str] = frozenset()
) -> FastAPI:
    """The routes of one port: health and version, ``verbs``, and for ``debug`` metrics, ``/debug`` and the
    page at ``/``.

    ``clients`` are the names in TLS certificates that may call the verbs; empty for all.
    """
    # No interactive pages of FastAPI: they load scripts from other sites.
    app = FastAPI(title="Stowage", openapi_url=None)
    bodies = BodyBudget(BODIES_IN_FLIGHT * service.settings.body_limit_mib << 20)
    _add_health(app, service)
    for verb in service.verbs if verbs else ():
        path = f"/scheduler/{verb}" if verb in VERBS else f"/{verb}"
        app.add_route(path, _verb_handler(service, verb, bodies, clients), methods=["POST"])
    if debug:
        _add_debug(app, service, bodies)
    if debug and service.debug_auth is not None:
        app.add_middleware(Guard, auth=service.debug_auth)
    return app


def _verb_handler(
    service: Service, verb: Verb | VolcanoVerb, bodies: BodyBudget, clients: frozenset[str]
) -> Handler:
    limit = service.settings.body_limit_mib << 20
    read = _reader(bodies, verb)

    async def handle(request: Request) -> Response:
        if clients and (text := why_not(request.scope["state"]["client_names"], clients)):
            return _response(service.refuse(verb, "forbidden", text, 403), _CLOSE)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in ("", "application/json"):
            problem = f"content type {shorten(kind, QUOTED)}, expected application/json"
            text = f"not a valid {verb} request: {problem}"
            return _response(service.refuse(verb, "bad_message", text, 400), _CLOSE)
        try:
            async with read(request.receive, request.headers, limit) as body:
                answer = service.answer(verb, body)
                reply = await (_bind_while_connected(request, service, answer) if verb == "bind" else answer)
        except BodyRefused as refused:
            text = f"{refused} (setting body_limit_mib)" if refused.status == 413 else str(refused)
            return _response(service.refuse(verb, refused.result, text, refused.status), _CLOSE)
        # Behind a Service, a caller would keep its connection to a replica that is no longer ready.
        return _response(reply, _CLOSE if service.waiting_for() else None)

    return handle


def _reader(bodies: BodyBudget, verb: Verb | VolcanoVerb) -> Read:
    """How the body of a verb is received. What is not kept of it has no limit of size."""
    if verb in WITHOUT_BODY:
        return bodies.discard
    if verb == "volcano/prioritize":
        return lambda receive, headers, limit: bodies.read(reduced(receive, NamesOnly()), {}, limit)
    return bodies.read


async def _bind_while_connected(request: Request, service: Service, answer: Answer) -> Reply:
    """Cancel the bind if the caller disconnects: it may already be calling another replica."""
    answering = asyncio.create_task(answer)
    disconnecting = asyncio.ensure_future(request.receive())
    disconnecting.add_done_callback(lambda _: answering.cancel())
    try:
        return await answering
    except asyncio.CancelledError:
        if not disconnecting.done():
            raise
        return service.refuse("bind", "hung_up", "the caller has hung up", 499)
    finally:
        disconnecting.cancel()


def _response(reply: Reply, headers: dict[str, str] | None = None) -> Response:
    return Response(reply.body, reply.status, headers, reply.content_type)


def _add_health(app: FastAPI, service: Service) -> None:
    async def healthz(request: Request) -> Response:
        return Response(b"ok\n")

    async def readyz(request: Request) -> Response:
        waiting_for = service.waiting_for()
        text = f"not ready: {waiting_for}\n" if waiting_for else "ready\n"
        return Response(text, 503 if waiting_for else 200, media_type="text/plain")

    async def version(request: Request) -> Response:
        fields = {"version": service.version, "source": service.source.describe()}
        return Response(to_json(fields), media_type="application/json")

    for handler in (healthz, readyz, version):
        app.add_route(f"/{handler.__name__}", handler, methods=["GET"])


def _add_debug(app: FastAPI, service: Service, bodies: BodyBudget) -> None:
    async def metrics(request: Request) -> Response:
        return Response(await service.render_metrics(), media_type=CONTENT_TYPE)

    app.add_route("/metrics", metrics, methods=["GET"])
    app.include_router(debug_router(service, bodies))
    _add_page(app)


def _add_page(app: FastAPI) -> None:
    """The page at ``/``. It reads ``/debug`` as any other client does, and its files need no token."""
    files = page_files()

    async def page(request: Request) -> Response:
        file = files.get(request.path_params.get("name", "index.html"))
        if file is None:
            return Response(b"no such file\n", 404, media_type="text/plain")
        if request.headers.get("if-none-match") == file.headers["etag"]:
            return Response(status_code=304, headers=file.headers)
        return Response(file.body, headers=file.headers, media_type=file.media_type)

    for path in ("/", "/page/{name}"):
        app.add_route(path, page, methods=["GET"])
