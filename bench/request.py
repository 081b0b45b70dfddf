"""The cost of filter and prioritize in one process, by cluster size.

Each is an ASGI call without sockets, including all work after the answer. The fastest of many calls counts:
it has warm caches, and other work on the machine hardly affects it. ``bench.latency`` measures requests over
HTTP. Run alone:

    python -m bench.request --nodes 100 1000 5000 20000
"""

from __future__ import annotations

import asyncio
import json
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench import cluster
from bench.client import extender_args
from extender.k8s.node_manifest import NodeManifest
from extender.k8s.pod_manifest import PodManifest
from extender.server.app import create_app
from extender.server.service import Service
from extender.settings import Settings
from extender.source.snapshot import Snapshot, SnapshotSource

_CALLS = 200


@dataclass(frozen=True, slots=True)
class Costs:
    """Microseconds of both calls for one pending pod, and of Python's json to read and write the body of
    filter: a yardstick that also grows with the names."""

    filter: float
    prioritize: float
    json: float

    @property
    def times_json(self) -> float:
        """Both calls as a multiple of the yardstick."""
        return (self.filter + self.prioritize) / self.json


def measure(nodes: int, shortlist: int) -> Costs:
    """The costs on a cluster without other pods. ``shortlist``: 0 for all names in both calls."""
    return asyncio.run(_measure(nodes, shortlist))


async def _measure(nodes: int, shortlist: int) -> Costs:
    pod = next(cluster.arrivals())
    service = Service(Settings(shortlist=shortlist), SnapshotSource(_snapshot(nodes, pod), "bench"), "bench")
    await service.start()
    caller = _Caller(service)
    names = [cluster.node_name(index) for index in range(nodes)]
    body = extender_args(pod, names[nodes // 3 :] + names[: nodes // 3])
    ask_filter = partial(caller.ask, "/scheduler/filter", body)
    asked = extender_args(pod, json.loads(await ask_filter())["NodeNames"])
    filtered = await _lowest(ask_filter)
    prioritized = await _lowest(partial(caller.ask, "/scheduler/prioritize", asked))
    return Costs(filtered, prioritized, await _lowest(partial(_read_and_write, body)))


def _snapshot(nodes: int, pod: dict[str, Any]) -> Snapshot:
    known = [NodeManifest.from_value(node).record() for node in cluster.nodes(nodes)]
    waiting = PodManifest.from_value(pod).record()
    return Snapshot({node.key: node for node in known}, {waiting.key: waiting})


class _Caller:
    """Calls a service like a port."""

    def __init__(self, service: Service) -> None:
        self._service, self._app = service, create_app(service, debug=False)
        self._reply = b""

    async def ask(self, path: str, body: bytes) -> bytes:
        """The body of the reply, once all work after it is also done."""
        assert self._service.engine is not None
        headers = [
            (b"host", b"stowage"),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
        ]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "http_version": "1.1"}

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, receive, self._send)
        self._service.engine.after.run()
        return self._reply

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        self._reply = message.get("body", b"")


async def _read_and_write(body: bytes) -> str:
    return json.dumps(json.loads(body))


async def _lowest(call: Callable[[], Awaitable[object]]) -> float:
    """Microseconds of the fastest of many calls."""
    times = []
    for _ in range(_CALLS):
        started = time.perf_counter()
        await call()
        times.append(time.perf_counter() - started)
    return min(times) * 1e6


def main() -> None:
    """Print the table."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000, 5000, 20000])
    args = parser.parse_args()
    print("| nodes | shortlist | filter, us | prioritize, us | both x Python's json |\n|--:|--:|--:|--:|--:|")
    for nodes in args.nodes:
        for shortlist in (0, 64):
            costs = measure(nodes, shortlist)
            cells = f"{costs.filter:.0f} | {costs.prioritize:.0f} | {costs.times_json:.2f}"
            print(f"| {nodes:,} | {shortlist or 'off'} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
