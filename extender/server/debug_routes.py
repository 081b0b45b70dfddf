"""The routes under ``/debug``: known nodes and pods, and the reasons of decisions. Read-only.

docs/debug.md describes each of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic_core import to_json

from extender.server.body import BodyBudget, BodyRefused
from extender.server.debug_answers import decisions_answer, nodes_answer, overview_answer, problems_answer
from extender.server.service import Service
from extender.untrusted.limits import (
    DECISIONS_LISTED,
    EXPLAIN_BODY,
    KEY,
    LISTED_NAMES,
    PROBLEMS_LISTED,
    shorten,
)

if TYPE_CHECKING:  # they load kernels
    from extender.cluster.state import State
    from extender.explain.inspector import Inspector
    from extender.server.engine import Engine
    from extender.settings import Settings

_JSON = "application/json"
_BLOCK = 100
"""Rows of the page's answer that are sent at once: 100 KiB."""
Nodes = Annotated[list[str] | None, Query(max_length=LISTED_NAMES)]
Listed = Annotated[int, Query(ge=0, le=DECISIONS_LISTED)]
Problems = Annotated[int, Query(ge=0, le=PROBLEMS_LISTED)]


@dataclass(frozen=True, slots=True)
class _Known:
    """``text``: what a node or pod is not, where it is not known."""

    text: str

    def found(self, view: object, what: str) -> Response:
        """The view. Raises 404 where there is none."""
        if view is None:
            raise HTTPException(404, shorten(f"{what} is not {self.text}"))
        return _json(view)


def debug_router(service: Service, bodies: BodyBudget) -> APIRouter:
    """The routes for a port whose request bodies count against ``bodies``."""
    router = APIRouter(prefix="/debug")

    def inspector() -> Inspector:
        if service.engine is None or service.missing():
            raise HTTPException(503, f"not ready: {service.missing()}")
        service.engine.after.run()  # it shows what has been answered
        return service.engine.inspector

    selector = service.settings.node_selector
    known = _Known(f"known in this shard (node_selector: {selector})" if selector else "known")
    _add_nodes(router, inspector, known)
    _add_pods(router, inspector, known)
    _add_explain(router, inspector, bodies)
    _add_lists(router, inspector)
    _add_state(router, service)
    _add_fleet(router, inspector)
    return router


def _add_nodes(router: APIRouter, inspector: Callable[[], Inspector], known: _Known) -> None:
    @router.get("/nodes")
    async def nodes() -> Response:
        return Response(await nodes_answer(inspector()), media_type=_JSON)

    @router.get("/nodes/{name}")
    async def node(name: str) -> Response:
        return known.found(inspector().node(name), f"node {shorten(name, KEY)}")

    @router.get("/fragmentation")
    async def fragmentation() -> Response:
        return _json(await inspector().census.take())


def _add_pods(router: APIRouter, inspector: Callable[[], Inspector], known: _Known) -> None:
    @router.get("/pods")
    async def pods(name: str) -> Response:
        return _json({"pods": inspector().pods_named(name)})

    @router.get("/pods/{namespace}/{name}")
    async def pod(namespace: str, name: str, explained: bool = False) -> Response:
        key = f"{namespace}/{name}"
        return known.found(await inspector().pod(key, explained=explained), f"pod {shorten(key, KEY)}")

    @router.get("/pods/{namespace}/{name}/nodes")
    async def pod_nodes(namespace: str, name: str, node: Nodes = None) -> Response:
        asked, key = inspector(), f"{namespace}/{name}"
        try:
            answer = await asked.nodes_for(key, node or asked.node_names())
        except ValueError as error:
            raise HTTPException(400, shorten(str(error))) from None
        return known.found(answer, f"pod {shorten(key, KEY)}")


def _add_explain(router: APIRouter, inspector: Callable[[], Inspector], bodies: BodyBudget) -> None:
    async def answered(request: Request, answer: Callable[[str], Awaitable[object]]) -> Response:
        declared = request.headers.get("content-length", "")
        try:
            body = await bodies.take(request.receive, declared, EXPLAIN_BODY)
        except BodyRefused as refused:
            raise HTTPException(refused.status, str(refused), {"connection": "close"}) from None
        try:
            return _json(await answer(body.decode()))
        except ValueError as error:
            raise HTTPException(400, shorten(str(error))) from None
        finally:
            bodies.release(body)

    @router.post("/explain")
    async def explain(request: Request) -> Response:
        return await answered(request, lambda manifest: inspector().explain(manifest))

    @router.post("/explain/pods")
    async def explain_pods(request: Request, node: Nodes = None, every: bool = False) -> Response:
        async def answer(manifest: str) -> object:
            asked = inspector()
            answers = await asked.answers(manifest, asked.node_names() if every else node)
            return {"replica": asked.replica(), "answers": answers}

        return await answered(request, answer)


def _add_state(router: APIRouter, service: Service) -> None:
    dumping = asyncio.Lock()

    def engine() -> Engine:
        if service.engine is None or service.missing():
            raise HTTPException(503, f"not ready: {service.missing()}")
        return service.engine

    @router.get("/problems")
    async def problems(limit: Problems = 100) -> Response:
        return _json(problems_answer(service, engine(), limit))

    @router.get("/state")
    async def state() -> Response:
        running = engine()
        state_lines = await asyncio.to_thread(_state_lines)
        if dumping.locked():
            raise HTTPException(503, "another dump of the state is being read")

        async def lines() -> AsyncIterator[bytes]:
            async with dumping:
                name = service.replica().name
                async for some in state_lines(running.state, service.settings, service.version, name):
                    yield some

        return StreamingResponse(lines(), media_type="application/x-ndjson")


def _add_lists(router: APIRouter, inspector: Callable[[], Inspector]) -> None:
    @router.get("/decisions")
    async def decisions(limit: Listed = 20, before: datetime | None = None) -> Response:
        return Response(await decisions_answer(inspector(), limit, before), media_type=_JSON)

    @router.get("/overview")
    async def overview(waiting: Listed = 20) -> Response:
        return Response(await overview_answer(inspector(), waiting), media_type=_JSON)


def _state_lines() -> Callable[[State, Settings, str, str], AsyncIterator[bytes]]:
    """The function, loaded and prepared: in a thread, because that takes a while."""
    from extender.server.state_dump import state_lines
    from extender.source.state_dump import prepare

    prepare()
    return state_lines


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
        return StreamingResponse(_one_by_one(blocks), media_type=_JSON)

    @router.get("/fleet/history")
    async def history() -> Response:
        return Response(to_json(inspector().history.columns()), media_type=_JSON)


def _json(value: object) -> Response:
    return Response(to_json(value, indent=2) + b"\n", media_type=_JSON)
