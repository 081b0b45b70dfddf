"""The longest time for which each task of the service blocks the event loop, and with it every request.

One process follows a full cluster on the small API server of the tests: the evictor and moves are enabled, a
gang and large jobs are pending, a third of the running pods may be evicted for them, pods arrive and end,
kube-scheduler sends requests, Prometheus scrapes, and every page of ``/debug`` is read. The event loop times
each callback in CPU of its thread, so other work on the machine does not count. Run alone:

    python -m bench.pieces --nodes 1000 --seconds 60
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import json
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

from fastapi import FastAPI

from extender.server.app import create_app
from extender.server.between_answers import collect_forever
from extender.server.service import Service
from extender.settings import Settings
from tests.extender.apiserver import ApiServer, source_of
from tests.extender.evictor.replica import UNHURRIED, node, pod

_SETTINGS = {
    "evictor": "on",
    "evictor_lease": "gpu/evictor",
    "shield_configmap": "gpu/shield",
    "consolidation": "on",
    "consolidation_background": "on",
    "evictions_per_minute": 60,
    "scale_up_wait_seconds": 0,
}
_GANG = {"stowage.dev/gang": "mpi", "stowage.dev/gang-min": "16"}
READ = (
    "/metrics",
    "/debug/nodes",
    "/debug/pods?name=w0",
    "/debug/pods/ml/w0?explained=true",
    "/debug/pods/ml/w0/nodes",
    "/debug/fragmentation",
    "/debug/overview",
    "/debug/decisions",
    "/debug/problems",
    "/debug/state",
    "/debug/fleet",
    "/debug/fleet/history",
)


@dataclass(slots=True)
class Pieces:
    """By task or callback: the number of runs, and the longest run in seconds of CPU. ``tasks``: those of the
    service."""

    tasks: set[str] = field(default_factory=set)
    runs: dict[str, int] = field(default_factory=dict)
    longest: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, seconds: float) -> None:
        self.runs[name] = self.runs.get(name, 0) + 1
        self.longest[name] = max(self.longest.get(name, 0.0), seconds)


class TimedLoop(asyncio.SelectorEventLoop):
    """Times its callbacks: each step of a task under the task's name, others under their own."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces = Pieces()

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return super().call_soon(self._timed, callback, args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: object,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return super().call_at(when, self._timed, callback, args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: object, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return super().call_soon_threadsafe(self._timed, callback, args, context=context)

    def _timed(self, callback: Callable[..., object], args: tuple[object, ...]) -> None:
        began = thread_time()
        try:
            callback(*args)
        finally:
            self.pieces.add(_name_of(callback), thread_time() - began)


def _name_of(callback: Callable[..., object]) -> str:
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return owner.get_name()
    inner = callback.func if isinstance(callback, partial) else callback
    return getattr(inner, "__qualname__", type(inner).__name__)


def pieces(nodes: int, seconds: float, first: float = 10.0) -> Pieces:
    """Blocking times in a service with ``nodes`` nodes of 8 GPUs, without the ``first`` seconds, in which
    everything runs for the first time and is loaded or compiled."""
    with tempfile.TemporaryDirectory() as directory:
        api = ApiServer()
        api.start()
        try:
            for manifest in _cluster(nodes):
                (api.pods if "namespace" in manifest["metadata"] else api.nodes).put(manifest)
            api.evictions.config_maps.put({"metadata": {"namespace": "gpu", "name": "shield"}})
            with asyncio.Runner(loop_factory=TimedLoop) as runner:
                return runner.run(_measured(api, Path(directory), nodes, seconds, first))
        finally:
            api.stop()


def _cluster(nodes: int) -> Iterator[dict[str, Any]]:
    """Nodes with 7 of 8 GPUs in use, and pending pods: a gang with a member that no node can accept, jobs of
    8 GPUs that may not preempt, and urgent ones."""
    for number in range(nodes):
        yield node(f"n{number}", gpus=8)
        for place, gpus in enumerate((4, 2, 1)):
            yield pod(f"r{number}-{place}", f"n{number}", gpus=gpus, priority=0 if place else 100)
    for number in range(16):
        member = pod(f"g{number}", gpus=9 if number == 15 else 8, priority=1000)
        member["metadata"]["labels"] = _GANG
        yield member
    for number in range(40):
        yield pod(f"w{number}", gpus=8, priority=0)
        yield pod(f"u{number}", gpus=4, priority=500)


async def _measured(api: ApiServer, directory: Path, nodes: int, seconds: float, first: float) -> Pieces:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, TimedLoop)
    service = Service(
        Settings.model_validate(_SETTINGS), source_of(api, directory, timeouts=UNHURRIED), "bench"
    )
    running = asyncio.create_task(service.run(), name="start")
    garbage = asyncio.create_task(collect_forever(service.until_ready), name="collection of garbage")
    await service.until_ready()
    await asyncio.sleep(1)
    app = create_app(service)
    ask = [_repeat(f"GET {path}", partial(_call, app, "GET", path), 5.0) for path in READ]
    ask.append(_repeat("verbs", partial(_ask_verbs, app, nodes), 0.1))
    ask.append(_repeat("changes", partial(_change, api, nodes, itertools.count()), 0.05))
    await asyncio.sleep(first)
    loop.pieces = Pieces()
    await asyncio.sleep(seconds)
    named = {task.get_name() for task in asyncio.all_tasks() - {running, *ask}}
    loop.pieces.tasks = {name for name in named if not name.startswith("Task-")}
    for task in ask:
        assert not task.done(), task
    for task in (running, garbage, *ask):
        task.cancel()
    await asyncio.gather(running, garbage, *ask, return_exceptions=True)
    return loop.pieces


def _repeat(name: str, call: Callable[[], Awaitable[object]], pause: float) -> asyncio.Task[None]:
    async def repeat() -> None:
        while True:
            await call()
            await asyncio.sleep(pause)

    return asyncio.create_task(repeat(), name=name)


async def _call(app: FastAPI, method: str, path: str, body: bytes = b"") -> None:
    """Call the application like a port, and discard the answer."""
    path, _, query = path.partition("?")
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    headers.append((b"content-length", b"%d" % len(body)))
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": headers,
    }
    never = asyncio.Event()
    sent = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> MutableMapping[str, Any]:
        if (message := next(sent, None)) is None:
            await never.wait()
        return message or {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        assert message.get("status", 200) == 200, (path, message)

    await app({**scope, "http_version": "1.1", "raw_path": path.encode(), "scheme": "http"}, receive, send)


async def _ask_verbs(app: FastAPI, nodes: int) -> None:
    names = [f"n{number}" for number in range(nodes)]
    for waiting, gpus, verbs in (("w0", 8, ("filter",)), ("small", 1, ("filter", "prioritize"))):
        body = {"Pod": pod(waiting, gpus=gpus, priority=0), "Nodes": None, "NodeNames": names}
        for verb in verbs:
            await _call(app, "POST", f"/scheduler/{verb}", json.dumps(body).encode())
    victims = {name: {"Pods": [{"UID": f"u-r{name[1:]}-1"}], "NumPDBViolations": 0} for name in names[:100]}
    urgent = {"Pod": pod("u0", gpus=4, priority=500), "NodeNameToMetaVictims": victims}
    await _call(app, "POST", "/scheduler/preempt", json.dumps(urgent).encode())


async def _change(api: ApiServer, nodes: int, numbers: Iterator[int]) -> None:
    """Create and delete a small pod."""
    number = next(numbers)
    api.pods.put(pod(f"s{number}", f"n{number % nodes}", gpus=1, priority=0))
    if number >= 10:
        api.pods.delete(f"ml/s{number - 10}")


def main() -> None:
    """Print the table, the longest first."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60)
    args = parser.parse_args()
    began = perf_counter()
    measured = pieces(args.nodes, args.seconds)
    print(f"{args.nodes:,} nodes, {perf_counter() - began:.0f} s\n")
    print("| task | runs | longest, ms of CPU |\n|---|--:|--:|")
    for name, longest in sorted(measured.longest.items(), key=lambda item: -item[1]):
        print(f"| {name} | {measured.runs[name]:,} | {longest * 1e3:.1f} |")


if __name__ == "__main__":
    main()
