"""HTTP: routes, the size and the type of bodies, and nothing else.

Handlers are ``async def`` and work inline (a thread pool would cost more than the answer), bodies are bytes
in and bytes out (response models cost eight times as much), and there is no middleware. The verbs are plain
routes: nothing in their bodies is FastAPI's to parse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic_core import to_json

from extender.body import read_body
from extender.debug import debug_router
from extender.metrics import CONTENT_TYPE
from extender.service import VERBS, Reply, Service, Verb

Handler = Callable[[Request], Awaitable[Response]]


def create_app(service: Service, *, debug: bool = True) -> FastAPI:
    """Verbs, health and version; with ``debug`` also what ``create_debug_app`` has."""
    app = _new_app()
    for verb in VERBS:
        app.add_route(f"/scheduler/{verb}", _verb(service, verb), methods=["POST"])
    _add_health(app, service)
    if debug:
        _add_debug(app, service)
    return app


def create_debug_app(service: Service) -> FastAPI:
    """Metrics and the debug endpoint, for a port of their own."""
    app = _new_app()
    _add_health(app, service)
    _add_debug(app, service)
    return app


def _new_app() -> FastAPI:
    # The interactive pages of FastAPI load scripts from elsewhere; a scheduler's port should not.
    return FastAPI(title="Stowage", openapi_url=None)


def _verb(service: Service, verb: Verb) -> Handler:
    limit_mib = service.settings.body_limit_mib

    async def handle(request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in ("", "application/json"):
            text = f"no {verb} request: content type {kind[:100]} instead of application/json"
            return _response(service.refuse(verb, "bad_message", text, 400))
        declared = request.headers.get("content-length", "")
        body = await read_body(request.receive, declared, limit_mib << 20)
        if body is None:
            text = f"the body is larger than {limit_mib} MiB (setting body_limit_mib)"
            return _response(service.refuse(verb, "too_large", text, 413), {"connection": "close"})
        if verb == "bind":
            reply = await _while_awaited(request, service, service.answer(verb, body))
        else:
            reply = await service.answer(verb, body)
        # A caller that comes by way of a Service keeps its connection to a replica that is ready no more.
        return _response(reply, {"connection": "close"} if service.waiting_for() else None)

    return handle


async def _while_awaited(request: Request, service: Service, answer: Coroutine[Any, Any, Reply]) -> Reply:
    """Bind for a caller that waits: where one has hung up, another replica may be asked by now."""
    answering, hanging_up = asyncio.create_task(answer), asyncio.ensure_future(request.receive())
    hanging_up.add_done_callback(lambda _: answering.cancel())
    try:
        return await answering
    except asyncio.CancelledError:
        if not hanging_up.done():
            raise
        return service.refuse("bind", "hung_up", "the caller has hung up", 499)
    finally:
        hanging_up.cancel()


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


def _add_debug(app: FastAPI, service: Service) -> None:
    async def metrics(request: Request) -> Response:
        return Response(service.metrics.render(), media_type=CONTENT_TYPE)

    app.add_route("/metrics", metrics, methods=["GET"])
    app.include_router(debug_router(service))
