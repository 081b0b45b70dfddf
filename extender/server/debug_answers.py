"""The longer answers of the debug endpoint, as JSON. They are made in parts, so that requests of
kube-scheduler come in between, and their sizes are bounded."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from datetime import datetime
from typing import TYPE_CHECKING

from pydantic_core import to_json

from extender.k8s.objects import REQUIRED_KINDS
from extender.untrusted.limits import DECISIONS_SIZE

if TYPE_CHECKING:  # they load kernels
    from extender.explain.inspector import Inspector
    from extender.server.engine import Engine
    from extender.server.service import Service

_BATCH = 5
"""Nodes or decisions that are rendered before other tasks run: about a millisecond."""
_LINES = 100
"""Lines of the overview, likewise."""


async def nodes_answer(inspector: Inspector) -> bytes:
    """All nodes."""
    nodes = []
    for count, name in enumerate(inspector.node_names(), 1):
        if view := inspector.node(name):  # it may have been deleted meanwhile
            nodes.append(to_json(view))
        if count % _BATCH == 0:
            await asyncio.sleep(0)
    return b'{"nodes":[' + b",\n".join(nodes) + b"]}\n"


async def overview_answer(inspector: Inspector, most_waiting: int) -> bytes:
    """Nodes with GPUs, and at most so many waiting pods."""
    found = await inspector.overview(most_waiting)
    nodes = []
    for start in range(0, len(found.nodes), _LINES):
        nodes.append(to_json(found.nodes[start : start + _LINES])[1:-1])
        await asyncio.sleep(0)
    rest = asdict(replace(found, nodes=()))
    del rest["nodes"]
    waiting = to_json(rest)[1:]
    head = to_json({"replica": inspector.replica()})[:-1]
    return head + b',"overview":{"nodes":[' + b",\n".join(nodes) + b"]," + waiting + b"}\n"


def problems_answer(service: Service, engine: Engine, most: int) -> object:
    """Problems of nodes, pods and the cluster, at most so many."""
    from extender.explain.problems import Surroundings, problems_of

    watches = engine.source.watches()
    around = Surroundings(
        watches={one.resource: one.problem for one in watches.values() if one.problem},
        silent={one.resource: one.silent for kind, one in watches.items() if kind in REQUIRED_KINDS},
        lease=service.lease_problem(),
        tokens=service.debug_auth.problem if service.debug_auth else "",
        tasks=service.background.problems(),
        server_version=engine.server_version,
    )
    found = problems_of(engine.state, service.settings, around, most)
    return {"replica": service.replica(), **asdict(found)}


async def decisions_answer(inspector: Inspector, limit: int, before: datetime | None) -> bytes:
    """The last ``limit`` decisions ``before`` a time, newest first, but at most ``DECISIONS_SIZE`` bytes.

    ``next`` is the time with which the next page begins, null after the last one.
    """
    found, size = inspector.decisions(before), 0
    rendered: list[bytes] = []
    last: datetime | None = None
    for pod, decision in found[:limit]:
        line = to_json({"pod": pod, "decision": decision})
        size += len(line)
        if rendered and size > DECISIONS_SIZE:
            break
        rendered.append(line)
        last = decision.at
        if len(rendered) % _BATCH == 0:
            await asyncio.sleep(0)
    following = last if len(rendered) < len(found) else None
    head = to_json({"replica": inspector.replica(), "next": following})
    return head[:-1] + b',"decisions":[' + b",\n".join(rendered) + b"]}\n"
