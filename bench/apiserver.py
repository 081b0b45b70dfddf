"""A scripted API server that lists a synthetic cluster in pages and streams changes to watches.

It replaces kube-apiserver where runs must be reproducible and the rate of changes is an argument. Objects
have realistic sizes, and answers are rendered once. It is a separate process, so its cost is not counted as
Stowage's:

    python -m bench.apiserver --port 8001 --nodes 5000 --rate 500 --burst 500

With ``--hostile N`` there are also N pending pods that are expensive to process, and every tenth change
concerns one of them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any
from urllib.parse import parse_qs

import uvicorn

from bench import cluster
from bench.dialects import DIALECTS
from bench.node_manifest import GPUS_PER_NODE, Manifest

Send = Callable[[dict[str, Any]], Awaitable[None]]

_TICK = 0.01  # seconds between writes to a watch
_BURST_EVERY = 5.0  # seconds


class WatchLines:
    """Endless watch events after the list. Pods arrive, are bound where there is room, run and end, so the
    load remains constant. Nodes report their status, as the kubelet does every few minutes."""

    def __init__(self, nodes: int, hostile: int = 0, gpus: int = GPUS_PER_NODE) -> None:
        self._version = itertools.count(10_000_000)
        self._nodes, self._gpus = nodes, gpus
        self._hostile = list(cluster.hostile(hostile))
        self._with_room = list(cluster.nodes_with_room(nodes))

    def pods(self) -> Iterator[bytes]:
        """Four changes of each pod; at any time there are as many pods as nodes with room."""
        alive = len(self._with_room)
        hostile = itertools.cycle(self._hostile)
        for number, node in enumerate(itertools.cycle(self._with_room), start=5_000_000):
            yield self._line("ADDED", cluster.pod(number, 1))
            yield self._line("MODIFIED", cluster.pod(number, 1, node=node, phase="Pending"))
            yield self._line("MODIFIED", cluster.pod(number, 1, node=node))
            if number >= 5_000_000 + alive:
                yield self._line("DELETED", cluster.pod(number - alive, 1))
            if self._hostile and number % 3 == 0:
                yield self._line("MODIFIED", next(hostile))

    def nodes(self) -> Iterator[bytes]:
        """Each node in turn, without changes that matter for placement."""
        for node in itertools.cycle(list(cluster.nodes(self._nodes, gpus=self._gpus))):
            yield self._line("MODIFIED", node)

    def _line(self, change: str, manifest: Manifest) -> bytes:
        manifest["metadata"]["resourceVersion"] = str(next(self._version))
        return _dump({"type": change, "object": manifest}) + b"\n"


class ApiServer:
    """An ASGI application that serves the paths that Stowage requests."""

    def __init__(
        self,
        *,
        nodes: int,
        rate: float = 0.0,
        burst: int = 0,
        hostile: int = 0,
        waiting: int = 0,
        dialect: str = "nvidia",
        pods: int = cluster.PODS_PER_NODE,
        gpus: int = GPUS_PER_NODE,
    ) -> None:
        """``dialect``: that of the lists. The changes are in ``nvidia``. ``pods`` and ``gpus``: per node.
        ``rate``: changes of pods per second."""
        self._rate, self._sent = rate, 0
        self._marks: list[bytes] = []
        arrived = itertools.islice(cluster.arrivals(dialect=dialect), waiting)
        listed = itertools.chain(cluster.bound_pods(nodes, dialect, pods), cluster.hostile(hostile), arrived)
        self._lists = {
            "/api/v1/nodes": ("NodeList", [_dump(node) for node in cluster.nodes(nodes, dialect, gpus)]),
            "/api/v1/pods": ("PodList", [_dump(pod) for pod in listed]),
        }
        # Rendered once and then repeated, because writing a pod as JSON costs more than reading it.
        watch = WatchLines(nodes, hostile, gpus)
        heartbeats = nodes / 300 if dialect == "nvidia" else 0.0
        self._changes: dict[str, tuple[list[bytes], Callable[[], float], int]] = {
            "/api/v1/nodes": (list(itertools.islice(watch.nodes(), nodes)), lambda: heartbeats, 0),
            "/api/v1/pods": (list(itertools.islice(watch.pods(), 2 * nodes + 2_000)), self._rate_now, burst),
        }

    def _rate_now(self) -> float:
        return self._rate

    async def __call__(self, scope: dict[str, Any], receive: object, send: Send) -> None:
        """Answer one GET."""
        path, query = scope["path"], parse_qs(scope["query_string"].decode())
        label = _rendered(query.get("labelSelector", [""])[0])
        if path in self._lists and "watch" in query:
            await self._watch(path, send, float(query.get("timeoutSeconds", ["300"])[0]), label)
        elif path in self._lists:
            first = int(query.get("continue", ["0"])[0])
            await _reply(send, 200, self._page(path, first, int(query.get("limit", ["1000000"])[0]), label))
        elif path == "/rate":  # only of this server: ``/rate?pods=500`` changes it, both report what was sent
            self._rate = float(query.get("pods", [str(self._rate)])[0])
            await _reply(send, 200, _dump({"sent": self._sent}))
        elif path == "/mark":  # only of this server: ``/mark?pod=N`` sends a bound pod after all due changes
            marked = cluster.pod(int(query["pod"][0]), 0, node=cluster.node_name(0))
            self._marks.append(_dump({"type": "ADDED", "object": marked}) + b"\n")
            await _reply(send, 200, _dump(marked["metadata"]))
        elif path == "/version":
            await _reply(send, 200, _dump({"major": "1", "minor": "36"}))
        else:
            status = {"kind": "Status", "code": 404, "message": f"{path}: not served here"}
            await _reply(send, 404, _dump(status))

    def _page(self, path: str, first: int, limit: int, label: bytes) -> bytes:
        kind, items = self._lists[path]
        items = [item for item in items if label in item]
        rest = max(0, len(items) - first - limit)
        metadata = {"resourceVersion": "9999999", "continue": str(first + limit) if rest else ""}
        head = _dump({"kind": kind, "apiVersion": "v1", "metadata": metadata})[:-1]
        return head + b',"items":[' + b",".join(items[first : first + limit]) + b"]}"

    async def _watch(self, path: str, send: Send, seconds: float, label: bytes) -> None:
        await _start(send, 200)
        lines, rate, burst = self._changes[path]
        endless = itertools.cycle([line for line in lines if label in line])
        pending, next_burst = 0.0, _BURST_EVERY
        for tick in range(int(seconds / _TICK)):
            pending += rate() * _TICK
            if tick * _TICK >= next_burst:
                pending, next_burst = pending + burst, next_burst + _BURST_EVERY
            due, pending = int(pending), pending % 1
            self._sent += due
            await _write(send, itertools.islice(endless, due))
            if path == "/api/v1/pods" and self._marks:
                await _write(send, [self._marks.pop(0)])
            await asyncio.sleep(_TICK)
        await send({"type": "http.response.body", "body": b""})


def _rendered(selector: str) -> bytes:
    """The label as it appears in rendered objects; ``selector``: KEY=VALUE, or "" for all objects."""
    key, _, value = selector.partition("=")
    return f'"{key}":"{value}"'.encode() if selector else b""


async def _write(send: Send, lines: Iterable[bytes]) -> None:
    if body := b"".join(lines):
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def _reply(send: Send, status: int, body: bytes) -> None:
    await _start(send, status, [(b"content-length", b"%d" % len(body))])
    await send({"type": "http.response.body", "body": body})


async def _start(send: Send, status: int, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    json_type = (b"content-type", b"application/json")
    await send({"type": "http.response.start", "status": status, "headers": [json_type, *headers]})


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def main() -> None:
    """Serve until stopped."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--rate", type=float, default=0, help="changes of pods per second (0)")
    parser.add_argument("--burst", type=int, default=0, help="simultaneous changes every 5 s (0)")
    parser.add_argument("--hostile", type=int, default=0, help="pods that are expensive to process (0)")
    parser.add_argument("--waiting", type=int, default=0, help="pending pods in the list (0)")
    parser.add_argument("--pods", type=int, default=cluster.PODS_PER_NODE, help="pods on each node (6)")
    parser.add_argument("--gpus", type=int, default=GPUS_PER_NODE, help="GPUs on each node (8)")
    parser.add_argument(
        "--dialect", choices=list(DIALECTS), default="nvidia", help="format of nodes and pods"
    )
    args = vars(parser.parse_args())
    port = args.pop("port")
    app = ApiServer(**args)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", lifespan="off", access_log=False)


if __name__ == "__main__":
    main()
