"""The routes that FastAPI knows."""

from __future__ import annotations

from starlette.routing import Route

from extender.server.app import create_app
from extender.server.service import Service


def routes(service: Service) -> list[Route]:
    """All routes of a port that serves everything."""
    app = create_app(service)
    return [route for route in app.routes if isinstance(route, Route)]
