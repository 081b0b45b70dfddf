"""The routes under ``/debug``: known nodes and pods, and the reasons of decisions. Read-only.

Long lists are rendered in small parts, so that they do not delay requests of kube-scheduler.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import StreamingResponse
from pydantic_core import to_json

from extender.server.body import BodyBudget, BodyRefused
from extender.server.service import Service
from extender.untrusted.limits import EXPLAIN_BODY, KEY, shorten

if TYPE_CHECKING:  # it loads kernels
    from extender.explain.inspector import Inspector

_BATCH = 5
"""Nodes that are rendered before other tasks run: about a millisecond."""
_BLOCK = 100
"""Rows of the page's answer that are sent at once: 100 KiB."""


def debug_router(service: Service, bodies: BodyBudget) -> APIRouter:
    """The routes for a port whose request bodies count against ``bodies``."""
    router = APIRouter(prefix="/debug")

    def inspector() -> Inspector:
        if service.engine is None or service.missing():
            raise HTTPException(503, f"not ready: {service.missing()}")
        return service.engine.inspector

    @router.get("/nodes")
    async def nodes() -> Response:
        return Response(await _nodes(inspector()), media_type="application/json")

    @router.get("/nodes/{name}")
    async def node(name: str) -> Response:
        return _found(inspector().node(name), f"node {shorten(name, KEY)}")

    @router.get("/fragmentation")
    async def fragmentation() -> Response:
        report = inspector().fragmentation
        await report.update()
        return _json(report.current())

    @router.get("/pods/{namespace}/{name}")
    async def pod(namespace: str, name: str) -> Response:
        key = f"{namespace}/{name}"
        return _found(await inspector().pod(key), f"pod {shorten(key, KEY)}")

    @router.post("/explain")
    async def explain(request: Request) -> Response:
        try:
            async with bodies.read(request.receive, request.headers, EXPLAIN_BODY) as manifest:
                explanation = await inspector().explain(manifest.decode())
        except BodyRefused as refused:
            raise HTTPException(refused.status, str(refused), {"connection": "close"}) from None
        except ValueError as error:
            raise HTTPException(400, shorten(str(error))) from None
        return _json(explanation)

    _add_fleet(router, inspector)
    return router


async def _one_by_one(blocks: Iterable[bytes]) -> AsyncIterator[bytes]:
    """The blocks; other tasks run in between."""
    for block in blocks:
        yield block
        await asyncio.sleep(0)


def _add_fleet(router: APIRouter, inspector: Callable[[], Inspector]) -> None:
    """What the page at ``/`` shows."""

    @router.get("/fleet")
    async def fleet(since: str = "") -> Response:
        parts = await inspector().fleet.since(since)
        blocks = (b"".join(parts[start : start + _BLOCK]) for start in range(0, len(parts), _BLOCK))
        return StreamingResponse(_one_by_one(blocks), media_type="application/json")

    @router.get("/fleet/history")
    async def history() -> Response:
        return Response(to_json(inspector().history.columns()), media_type="application/json")


async def _nodes(inspector: Inspector) -> bytes:
    nodes = []
    for count, name in enumerate(inspector.node_names(), 1):
        if view := inspector.node(name):  # it may have been deleted meanwhile
            nodes.append(to_json(view))
        if count % _BATCH == 0:
            await asyncio.sleep(0)
    return b'{"nodes":[' + b",\n".join(nodes) + b"]}\n"


def _found(view: object, what: str) -> Response:
    if view is None:
        raise HTTPException(404, shorten(f"{what} is not known"))
    return _json(view)


def _json(value: object) -> Response:
    return Response(to_json(value, indent=2) + b"\n", media_type="application/json")
