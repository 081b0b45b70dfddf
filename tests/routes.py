"""The routes that FastAPI knows, those of included routers among them."""

from __future__ import annotations

from starlette.routing import Route

from extender.server.app import create_app
from extender.server.body import BodyBudget
from extender.server.service import Service


def routes(service: Service) -> list[Route]:
    """All routes of a port that serves everything."""
    app = create_app(service, BodyBudget(1 << 20), debug=True)
    routers = [app, *(route.original_router for route in app.routes if hasattr(route, "original_router"))]
    return [route for router in routers for route in router.routes if isinstance(route, Route)]
