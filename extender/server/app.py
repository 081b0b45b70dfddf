"""The HTTP routes, and the size and content type of bodies.

For speed, handlers are ``async def`` and work inline (a thread pool costs more than the answer), bodies are
bytes in and out (response models cost eight times as much), and there is no middleware but ``Guard``. The
verbs are plain ASGI, called before FastAPI's middleware and routing, which cost more than a decision; FastAPI
lists them and answers other methods on their paths.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic_core import to_json

from extender.server.body import BodyBudget
from extender.server.debug_auth import Guard
from extender.server.debug_routes import debug_router
from extender.server.metrics import CONTENT_TYPE
from extender.server.page_files import page_files
from extender.server.service import Service
from extender.server.verb_endpoint import VerbEndpoint, body_budget, verb_endpoints


class _App(FastAPI):
    """FastAPI with applications that answer POST on their paths before anything else."""

    def __init__(self, endpoints: Mapping[str, VerbEndpoint]) -> None:
        # No interactive pages of FastAPI: they load scripts from other sites.
        super().__init__(title="Stowage", openapi_url=None)
        self.endpoints = endpoints

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Answer a request."""
        if scope["type"] == "http" and scope["method"] == "POST":
            endpoint = self.endpoints.get(scope["path"])
            if endpoint is not None:
                await endpoint(scope, receive, send)
                return
        await super().__call__(scope, receive, send)


def create_app(
    service: Service, *, verbs: bool = True, debug: bool = True, clients: frozenset[str] = frozenset()
) -> FastAPI:
    """The routes of one port: health and version, ``verbs``, and for ``debug`` metrics, ``/debug`` and the
    page at ``/``.

    ``clients`` are the names in TLS certificates that may call the verbs; empty for all.
    """
    bodies = body_budget(service)
    return app_of(service, verb_endpoints(service, bodies, clients) if verbs else {}, bodies, debug=debug)


def app_of(
    service: Service, endpoints: Mapping[str, VerbEndpoint], bodies: BodyBudget, *, debug: bool
) -> FastAPI:
    """The same with these verbs by path, and this memory for bodies."""
    app = _App(endpoints)
    _add_health(app, service)
    for path, endpoint in endpoints.items():
        app.add_route(path, endpoint, methods=["POST"])  # type: ignore[arg-type]  # plain ASGI
    if debug:
        _add_debug(app, service, bodies)
    if debug and service.debug_auth is not None:
        app.add_middleware(Guard, auth=service.debug_auth)
    return app


def _add_health(app: FastAPI, service: Service) -> None:
    async def healthz(request: Request) -> Response:
        return Response(b"ok\n")

    async def readyz(request: Request) -> Response:
        status, text = service.readiness()
        return Response(text, status, media_type="text/plain")

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
