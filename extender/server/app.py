"""The routes of FastAPI.

For speed, handlers are ``async def`` and work inline (a thread pool costs more than the answer), bodies are
bytes in and out (response models cost eight times as much), and there is no middleware.
"""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from pydantic_core import to_json

from extender.server.body import BodyBudget
from extender.server.debug_routes import debug_router
from extender.server.metrics import CONTENT_TYPE
from extender.server.page_files import page_files
from extender.server.service import Service


def create_app(service: Service, bodies: BodyBudget, *, debug: bool) -> FastAPI:
    """The version, and for ``debug`` metrics, ``/debug`` and the page at ``/``. ``bodies``: the memory for
    bodies, which the verbs use, too."""
    # No interactive pages of FastAPI: they load scripts from other sites.
    app = FastAPI(title="Stowage", openapi_url=None, redirect_slashes=False)
    _add_version(app, service)
    if debug:
        _add_debug(app, service, bodies)
    return app


def _add_version(app: FastAPI, service: Service) -> None:
    async def version(request: Request) -> Response:
        fields = {"version": service.version, "source": service.source.describe()}
        return Response(to_json(fields), media_type="application/json")

    app.add_route("/version", version, methods=["GET"])


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
