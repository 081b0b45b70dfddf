"""The tasks and threads that run as long as the service. No error ends them permanently or goes unnoticed.
Long tasks yield to other tasks.

An error is logged, counted and shown for a while, and the task or thread restarts.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar

Run: TypeAlias = Callable[[], Awaitable[None]]
T = TypeVar("T")
_P = ParamSpec("_P")

_PAUSE = 5.0  # seconds between an error and the next start
_SHOWN = 600.0  # seconds that an error is a problem
_log = logging.getLogger(__name__)


async def with_turns(items: Iterable[T], batch: int) -> AsyncIterator[T]:
    """Yield the items; other tasks run after each ``batch`` of them."""
    for number, item in enumerate(items, 1):
        yield item
        if number % batch == 0:
            await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class _Error:
    at: float  # monotonic seconds
    kind: str


class FileThread(Executor):
    """Calls functions that use files, one after the other, in a thread that the process does not wait for at
    its end: a disk that hangs may hold it forever."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, call: Callable[_P, T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        self._calls.put((future, partial(call, *args, **kwargs)))
        return future

    def _run(self) -> None:
        while True:
            future, call = self._calls.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except Exception as error:
                    future.set_exception(error)


class Background:
    """Starts tasks and threads, and keeps them running. ``failures``: errors since the start of the service,
    by name."""

    def __init__(self, pause: float = _PAUSE) -> None:
        """``pause``: seconds between an error and the next start."""
        self._pause = pause
        self.failures: Counter[str] = Counter()
        self._last: dict[str, _Error] = {}

    async def keep(self, name: str, run: Run) -> None:
        """Await ``run()``, and repeat after each error, until it returns or this task is canceled."""
        while True:
            try:
                return await run()
            except asyncio.CancelledError as error:
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
                self._note(name, error)  # something that it awaited was canceled
            except Exception as error:
                self._note(name, error)
            await asyncio.sleep(self._pause)

    async def keep_all(self, tasks: Iterable[tuple[str, Run]]) -> None:
        """``keep`` these tasks, by name, concurrently."""
        async with asyncio.TaskGroup() as group:
            for name, run in tasks:
                group.create_task(self.keep(name, run), name=name)

    def thread(self, name: str, run: Callable[[], None]) -> threading.Thread:
        """Start a thread that calls ``run()``, and repeats after each error, until it returns."""
        started = threading.Thread(target=self._keep, args=(name, run), name=name, daemon=True)
        started.start()
        return started

    def problems(self) -> dict[str, str]:
        """Failures of the last ten minutes, by name."""
        now = time.monotonic()
        lately = {name: last for name, last in sorted(self._last.items()) if now - last.at < _SHOWN}
        return {
            name: f"failures since start: {self.failures[name]}, last {now - last.at:.0f} s ago: {last.kind}"
            for name, last in lately.items()
        }

    def _keep(self, name: str, run: Callable[[], None]) -> None:
        while True:
            try:
                return run()
            except Exception as error:
                self._note(name, error)
            time.sleep(self._pause)

    def _note(self, name: str, error: BaseException) -> None:
        self.failures[name] += 1
        self._last[name] = _Error(time.monotonic(), type(error).__name__)
        _log.error("%s failed and restarts in %g s", name, self._pause, exc_info=error)


Part = Literal[
    "observe", "plan", "cost", "choose", "terms", "forecast", "rank", "explain",
    "node_sets", "separate_gpus", "end_costs",
]  # fmt: skip
"""Part that may fail; a label of ``stowage_policy_failures_total``."""


class Failures:
    """Counts of failures in comparing nodes and explaining, by the part that failed: pods are placed without
    it."""

    def __init__(self) -> None:
        self.counts: Counter[Part] = Counter()
        self._logged: set[tuple[Part, str]] = set()

    @contextmanager
    def caught(self, what: Part) -> Iterator[None]:
        """Suppress and count errors in the block. The first of each kind is logged."""
        try:
            yield
        except Exception as error:
            self.counts[what] += 1
            if (kind := (what, type(error).__name__)) not in self._logged:
                self._logged.add(kind)
                text = "policy: %s failed; pods are placed without it; further failures are only counted"
                _log.error(text, what, exc_info=error)
