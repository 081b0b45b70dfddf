"""The application: the verbs, version, metrics, the page at ``/``, and the debug endpoints (docs/debug.md).

For speed, handlers are ``async def`` and work inline (a thread pool costs more than the answer), and bodies
are bytes in and out (response models cost eight times as much). Longer answers are rendered in parts, so
that requests from kube-scheduler are served in between, and their sizes are bounded.
"""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import StreamingResponse
from msgspec.json import schema_components
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from extender.background import with_turns
from extender.k8s.objects import REQUIRED_KINDS
from extender.logs import level_of, set_level
from extender.protocol.messages import MESSAGES
from extender.server.body import BodyBudget, BodyRefused
from extender.server.guard import Guard
from extender.server.metrics import CONTENT_TYPE
from extender.server.page import add_page
from extender.server.service import PROBES, Service
from extender.server.verb_route import VerbEndpoint
from extender.settings import API
from extender.source.state_dump import prepare
from extender.untrusted import limits
from extender.untrusted.limits import shorten

if TYPE_CHECKING:  # they load kernels
    from extender.explain.inspector import Inspector
    from extender.server.engine import Engine

T = TypeVar("T")
_log = logging.getLogger(__name__)
_BATCH = 5
"""Nodes or decisions that are rendered before other tasks run: about a millisecond."""
_LINES = 100
"""The same for lines of the overview, and rows of the page's data that are sent at once: 100 KiB."""
Nodes = Annotated[list[str] | None, Query(max_length=limits.LISTED_NAMES)]
Numbers = Annotated[list[int] | None, Query(max_length=limits.EXPLAIN_PODS)]
Listed = Annotated[int, Query(ge=0, le=limits.DECISIONS_LISTED)]
Problems = Annotated[int, Query(ge=0, le=limits.PROBLEMS_LISTED)]


_OF_VERBS, _SCHEMAS = schema_components(
    chain.from_iterable(MESSAGES.values()), ref_template="#/components/schemas/{name}"
)


class _App(FastAPI):
    """An application behind a ``guard``, whose ``/openapi.json`` also has the messages of the verbs."""

    guard: Guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.guard(scope, receive, send)

    async def behind_guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        """HEAD is answered like GET; uvicorn, which has the caller's own scope, leaves out the body."""
        like_get = {"method": "GET"} if scope["method"] == "HEAD" else {}
        await super().__call__({**scope, **like_get}, receive, send)

    def openapi(self) -> dict[str, Any]:
        schema = super().openapi()
        schema["components"]["schemas"] |= _SCHEMAS
        return schema


def create_app(
    service: Service,
    *,
    verbs: bool = True,
    debug: bool = True,
    clients: frozenset[str] = frozenset(),
) -> FastAPI:
    """The application of a port: ``verbs``; for ``debug`` metrics, status, settings, ``/debug`` and the page.

    ``clients`` are the names in TLS certificates that may call the verbs; empty for all.
    """
    # No interactive pages of FastAPI: they load scripts from other sites. tracing.py creates the spans.
    options: dict[str, Any] = {"docs_url": None, "redoc_url": None, "redirect_slashes": False}
    options["telemetry"] = {"tracing": False, "metrics": False, "logs": False}
    app = _App(title="Stowage", version=service.version, **options)
    bodies = BodyBudget(service.settings.body_limit_mib << 20)
    endpoints = [VerbEndpoint(service, bodies, clients, verb) for verb in (service.verbs if verbs else ())]
    paths = {_add_verb(app, verb): verb for verb in endpoints}
    app.guard = Guard(app.behind_guard, service, paths, debug)

    async def version(request: Request) -> Response:
        return _compact({"version": service.version, "source": service.source.describe()})

    async def configz(request: Request) -> Response:
        return _compact({"componentconfig": API | service.settings.model_dump(mode="json")})

    async def statusz(request: Request) -> Response:
        routes = (str(getattr(route, "path", "")) for route in app.routes)
        paths = sorted({*PROBES, *(path for path in routes if path.count("/") == 1)})
        return Response(_status(service, " ".join(paths)), media_type="text/plain")

    async def metrics(request: Request) -> Response:
        return Response(await service.render_metrics(), media_type=CONTENT_TYPE)

    app.add_route("/version", version, methods=["GET"])
    if debug:
        app.add_route("/metrics", metrics, methods=["GET"])
        app.add_route("/configz", configz, methods=["GET"])
        app.add_route("/statusz", statusz, methods=["GET"])
        add_page(app)
        for method, path, answer in _DebugRoutes(service, bodies).table():
            app.add_api_route(f"/debug{path}", answer, methods=[method])
    return app


def _add_verb(app: FastAPI, endpoint: VerbEndpoint) -> str:
    """Add the route of a verb. Returns its path."""
    verb, more = endpoint.verb, dict[str, Any]()
    path = f"/scheduler/{verb}" if verb in MESSAGES else f"/{verb}"
    if verb in MESSAGES:
        number = 2 * list(MESSAGES).index(verb)
        args, result = ({"application/json": {"schema": schema}} for schema in _OF_VERBS[number : number + 2])
        more["openapi_extra"] = {"requestBody": {"required": True, "content": args}}
        more["responses"] = {200: {"content": result}}
    app.add_api_route(path, endpoint, methods=["POST"], name=verb, **more)
    return path


def _status(service: Service, paths: str) -> str:
    """In the format of Kubernetes components (k8s.io/component-base, zpages/statusz)."""
    minutes, seconds = divmod(int((datetime.now(UTC) - service.started).total_seconds()), 60)
    return (
        "\nstowage statusz\nWarning: This endpoint is not meant to be machine parseable, has no formatting "
        "compatibility guarantees and is for debugging purposes only.\n\n"
        f"Started: {service.started:%a %b %e %H:%M:%S UTC %Y}\n"
        f"Up: {minutes // 60} hr {minutes % 60:02} min {seconds:02} sec\n"
        f"Python version: {platform.python_version()}\nBinary version: {service.version}\nPaths: {paths}\n"
    )


class _DebugRoutes:
    def __init__(self, service: Service, bodies: BodyBudget) -> None:
        self._service, self._bodies = service, bodies
        self._dumping = asyncio.Lock()
        selector = service.settings.node_selector
        self._known = f"known in this shard (node_selector: {selector})" if selector else "known"

    def table(self) -> Iterable[tuple[str, str, Callable[..., Awaitable[Response]]]]:
        """Method, path below ``/debug``, and handler."""
        return (
            ("GET", "/nodes", self.nodes),
            ("GET", "/nodes/{name}", self.node),
            ("GET", "/fragmentation", self.fragmentation),
            ("GET", "/pods", self.pods),
            ("GET", "/pods/{namespace}/{name}", self.pod),
            ("GET", "/pods/{namespace}/{name}/nodes", self.pod_nodes),
            ("POST", "/explain", self.explain),
            ("POST", "/explain/pods", self.explain_pods),
            ("GET", "/decisions", self.decisions),
            ("GET", "/overview", self.overview),
            ("GET", "/problems", self.problems),
            ("GET", "/state", self.state),
            ("PUT", "/flags/v", self.set_verbosity),
            ("GET", "/fleet", self.fleet),
            ("GET", "/fleet/history", self.history),
        )

    async def nodes(self) -> Response:
        inspector, nodes = self._inspector(), []
        async for name in with_turns(inspector.node_names(), _BATCH):
            if view := inspector.node(name):  # it may have been deleted in the meantime
                nodes.append(to_json(view))
        return _listed(b"{", "nodes", nodes, b"}\n")

    async def node(self, name: str) -> Response:
        return self._found(self._inspector().node(name), f"node {shorten(name, limits.KEY)}")

    async def fragmentation(self) -> Response:
        return _json(await self._inspector().census.take())

    async def pods(
        self,
        name: str = "",
        kind: str = "pod",
        node: Nodes = None,
        namespace: str = "",
        selector: str = "",
    ) -> Response:
        """The keys of the pods of this name; without it the pods with GPUs."""
        inspector = self._inspector()
        if name:
            return _json({"pods": inspector.pods_named(name, kind)})
        found = await _valid(inspector.holders(node or (), namespace, selector))
        lines = [to_json(line) async for line in with_turns(found, _LINES)]
        return _listed(b"{", "holders", lines, b"}\n")

    async def pod(
        self, namespace: str, name: str, explained: bool = False, before: datetime | None = None
    ) -> Response:
        key = f"{namespace}/{name}"
        report = await self._inspector().pod(key, explained=explained, before=_moment(before))
        return self._found(report, f"pod {shorten(key, limits.KEY)}")

    async def pod_nodes(self, namespace: str, name: str, node: Nodes = None) -> Response:
        inspector, key = self._inspector(), f"{namespace}/{name}"
        answer = await _valid(inspector.nodes_for(key, node or inspector.node_names()))
        return self._found(answer, f"pod {shorten(key, limits.KEY)}")

    async def explain(self, request: Request) -> Response:
        return await self._explained(request, lambda manifest: self._inspector().explain(manifest))

    async def explain_pods(
        self,
        request: Request,
        node: Nodes = None,
        every: bool = False,
        namespace: str = "",
        complete: Numbers = None,
    ) -> Response:
        async def answer(manifest: str) -> object:
            inspector = self._inspector()
            nodes = inspector.node_names() if every else node
            answers = await inspector.answers(manifest, nodes, complete or ())
            if namespace and any(not answer.pod.startswith(f"{namespace}/") for answer in answers):
                raise ValueError(f"the manifest has pods of other namespaces than {namespace}")
            return {"replica": inspector.replica(), "answers": answers}

        return await self._explained(request, answer)

    async def decisions(self, limit: Listed = 20, before: datetime | None = None) -> Response:
        """The last decisions ``before`` a time, newest first, at most ``DECISIONS_SIZE`` bytes. ``next`` is
        the ``before`` of the next page, null on the last page."""
        inspector = self._inspector()
        found, size = await inspector.decisions(_moment(before), limit + 1), 0
        rendered: list[bytes] = []
        last: datetime | None = None
        async for pod, decision in with_turns(found[:limit], _BATCH):
            line = to_json({"pod": pod, "decision": decision})
            size += len(line)
            if rendered and size > limits.DECISIONS_SIZE:
                break
            rendered.append(line)
            last = decision.at
        following = last if len(rendered) < len(found) else None
        head = to_json({"replica": inspector.replica(), "next": following})
        return _listed(head[:-1] + b",", "decisions", rendered, b"}\n")

    async def overview(self, waiting: Listed = 20, namespace: str = "") -> Response:
        """Nodes with GPUs, and the pending pods of one namespace or all."""
        inspector = self._inspector()
        found = await _valid(inspector.overview(waiting, namespace))
        nodes = [to_json(line) async for line in with_turns(found.nodes, _LINES)]
        rest = asdict(replace(found, nodes=()))
        del rest["nodes"]
        head = to_json({"replica": inspector.replica()})[:-1] + b',"overview":{'
        return _listed(head, "nodes", nodes, b"," + to_json(rest)[1:] + b"}\n")

    async def problems(self, limit: Problems = 100) -> Response:
        """Problems of nodes, pods and the cluster."""
        from extender.explain.problems import LEASE, Surroundings, problems_of

        service, engine = self._service, self._engine()
        watches, lease = engine.source.watches(), service.lease_failure()
        forbidden = {watch.resource for watch in watches.values() if watch.forbidden}
        around = Surroundings(
            watches={watch.resource: watch.problem for watch in watches.values() if watch.problem},
            silent={
                watch.resource: watch.silent for kind, watch in watches.items() if kind in REQUIRED_KINDS
            },
            lease=str(lease) if lease else "",
            forbidden=forbidden | {LEASE} if lease and lease.forbidden else forbidden,
            tokens=service.debug_auth.problem if service.debug_auth else "",
            tasks=service.background.problems(),
            history=engine.history.problem if engine.history else "",
            server_version=engine.server_version,
        )
        found = problems_of(engine.state, service.settings, around, limit)
        return _json({"replica": service.replica(), **asdict(found)})

    async def state(self) -> Response:
        from extender.cluster.factory import state_lines

        service, engine = self._service, self._engine()
        await asyncio.to_thread(prepare)
        if self._dumping.locked():
            raise HTTPException(503, "another dump of the state is being read")

        async def lines() -> AsyncIterator[bytes]:
            async with self._dumping:
                name = service.replica().name
                async for some in state_lines(engine.state, service.settings, service.version, name):
                    yield some

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    async def set_verbosity(self, request: Request) -> Response:
        """Change the log level, as in Kubernetes components (k8s.io/apiserver, pkg/server/routes/flags.go).
        Only for callers with a token."""
        if self._service.debug_auth is None:
            raise HTTPException(403, "needs debug_token_file or debug_token_review")
        body = await self._body(request, limits.LOG_LEVEL)
        text = body.decode("latin-1").strip()
        self._bodies.release(body)
        if not (text.isascii() and text.isdigit()):
            raise HTTPException(400, "expected a number such as 2 (each decision) or 4 (debug)")
        level = level_of(int(text))
        set_level(level)
        _log.info("the log level is now %s", level)
        return Response(f"the log level is now {level}\n", media_type="text/plain")

    async def fleet(self, since: str = "") -> Response:
        """The data of the page at ``/``."""
        parts = await self._inspector().fleet.since(since)
        blocks = (b"".join(parts[start : start + _LINES]) for start in range(0, len(parts), _LINES))
        return StreamingResponse(with_turns(blocks, 1), media_type="application/json")

    async def history(self) -> Response:
        """The page's curves, the GPU-hours of teams, and the use of the GPUs."""
        inspector = self._inspector()
        use, teams = await inspector.gpu_use(), inspector.teams.hours()
        return _compact({**inspector.history.columns(), "teams": teams, "use": use.titled()})

    def _engine(self) -> Engine:
        service = self._service
        if service.engine is None or service.missing():
            raise HTTPException(503, f"not ready: {service.missing()}")
        service.engine.finish_answers()  # the views include the latest answers
        return service.engine

    def _inspector(self) -> Inspector:
        return self._engine().inspector

    def _found(self, view: object, what: str) -> Response:
        if view is None:
            raise HTTPException(404, shorten(f"{what} is not {self._known}"))
        return _json(view)

    async def _explained(self, request: Request, answer: Callable[[str], Awaitable[object]]) -> Response:
        body = await self._body(request, limits.EXPLAIN_BODY)
        try:
            return _json(await answer(body.decode()))
        except ValueError as error:
            raise HTTPException(400, shorten(str(error))) from None
        finally:
            self._bodies.release(body)

    async def _body(self, request: Request, most: int) -> bytes:
        """The body, at most ``most`` bytes. The caller releases it."""
        declared = request.headers.get("content-length", "")
        try:
            return await self._bodies.take(request, declared, most)
        except BodyRefused as refused:
            raise HTTPException(refused.status, str(refused), {"connection": "close"}) from None


async def _valid(answer: Awaitable[T]) -> T:
    """The answer; its ``ValueError`` is the client's mistake."""
    try:
        return await answer
    except ValueError as error:
        raise HTTPException(400, shorten(str(error))) from None


def _moment(before: datetime | None) -> float:
    """In Unix seconds. A time without a zone is UTC."""
    if before is None:
        return float("inf")
    return (before if before.tzinfo else before.replace(tzinfo=UTC)).timestamp()


def _json(value: object) -> Response:
    return Response(to_json(value, indent=2) + b"\n", media_type="application/json")


def _compact(value: object) -> Response:
    return Response(to_json(value), media_type="application/json")


def _listed(head: bytes, name: str, items: Iterable[bytes], end: bytes) -> Response:
    """A JSON object with a list of items that are already JSON."""
    body = head + b'"%b":[' % name.encode() + b",\n".join(items) + b"]" + end
    return Response(body, media_type="application/json")
