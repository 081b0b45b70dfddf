"""Work of the event loop between answers: deferred calls, cluster events, and garbage collection.

Each takes as long as an answer or longer, so none may delay an answer that is ready.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from time import thread_time

from extender.k8s.objects import Event

_SLICE = 0.0003
"""Minimum CPU seconds per slice of events while events remain: half of an answer. CPU time, because on a busy
machine elapsed time does not measure the cost of requests and events."""
_AT_ONCE = 4
"""Events between two readings of the clock: some 40 us each."""
_START_SLICE, _START_AT_ONCE = 0.02, 100
"""The same during startup, when only probes are answered."""
_COLLECT_SECONDS = 0.25
"""Between two collections. One takes less than 1 ms at 500 pod changes per second; every 5 s, one took 10 to
20 ms."""
_SURVIVORS = 40_000
"""Number of objects: about a thousand pods."""
_log = logging.getLogger(__name__)


class AfterAnswer:
    """Runs calls in order, one iteration of the event loop after the answer is written: metrics, the
    explanation of the decision, and preparation of the next answer.

    uvloop writes an answer after everything that is ready to run. So work scheduled directly after the
    answer would delay it as much as work before it.
    """

    def __init__(self) -> None:
        self._calls: deque[Callable[[], object]] = deque()

    def add(self, call: Callable[[], object]) -> None:
        """Run this call after the answer. It reads the present state: ``run`` before that changes."""
        self._calls.append(call)
        if len(self._calls) == 1:
            asyncio.get_running_loop().call_soon(self.run)

    def run(self) -> None:
        """Run the calls now. Failures are logged; the answer has already been sent."""
        while self._calls:
            try:
                self._calls.popleft()()
            except Exception:
                _log.exception("the work after an answer failed")


class EventQueue:
    """Events of a source that are not applied yet, in order of arrival.

    An API server that has been busy sends hundreds of changes at once. Applying all of them takes twenty
    times as long as an answer. So the event loop applies a few, answers requests, and continues. A request
    may overtake events that have arrived, as if they were still in transit. Queued events get half of the
    event loop's time, so a flood of requests cannot starve them either.
    """

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        """``is_ready``: whether requests are answered. Events wait for ``open``."""
        self._is_ready = is_ready
        self._apply: Callable[[Sequence[Event]], None] | None = None
        self._waiting: deque[Event] = deque()
        self._next: asyncio.Handle | None = None
        self._ended_at = 0.0

    def put(self, events: Sequence[Event]) -> None:
        """Queue these events, from the event loop. Small batches are applied immediately."""
        self._waiting.extend(events)
        if self._next is None:
            self._apply_slice(_SLICE)

    async def open(self, apply: Callable[[Sequence[Event]], None]) -> None:
        """Apply events with ``apply`` from now on. Returns when the queued events are applied."""
        self._apply = apply
        self.put(())
        while self._waiting:
            await asyncio.sleep(0)

    async def applied(self) -> None:
        """Wait until all events that any thread delivered before this call are applied."""
        await asyncio.sleep(0)  # calls of ``put`` from threads precede us in the event loop's queue
        self._apply_slice(float("inf"))

    def _apply_slice(self, seconds: float) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if (apply := self._apply) is None:
            return
        at_once = _AT_ONCE if self._is_ready() else _START_AT_ONCE
        until = thread_time() + (seconds if self._is_ready() else max(seconds, _START_SLICE))
        try:
            while self._waiting and thread_time() < until:
                apply([self._waiting.popleft() for _ in range(min(at_once, len(self._waiting)))])
        finally:
            self._ended_at = thread_time()
            if self._waiting:
                self._next = asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._apply_slice(max(_SLICE, thread_time() - self._ended_at))


async def collect_forever(until_ready: Callable[[], Awaitable[None]]) -> None:
    """Collect no garbage before ``until_ready`` returns (the state is growing), then four times per second
    until cancelled. After that, Python's automatic collection is enabled again.

    A full collection visits every object of the state: 310 ms at 5,000 nodes and 30,000 pods, in the middle
    of a request. Nearly all of these objects are long-lived and freed by reference counts. So we exclude
    them with ``gc.freeze``, and often collect new objects, which visits each of them once. Survivors are
    collected and frozen when a collection of them would take 10 ms; rarely, because a cycle that is frozen
    while in use is never collected. Automatic collection stays disabled.
    """
    gc.disable()
    try:
        await until_ready()
        gc.freeze()  # without a collection: requests are already arriving, and there is little garbage
        await asyncio.to_thread(return_memory)
        survivors = 0
        while True:
            await asyncio.sleep(_COLLECT_SECONDS)
            survivors += len(gc.get_objects(generation=0))
            if survivors < _SURVIVORS:
                gc.collect(1)
            else:
                gc.collect()
                gc.freeze()
                survivors = 0
    finally:
        gc.unfreeze()
        gc.enable()


def return_memory() -> None:
    """Return memory that the first lists and the loading of kernels have freed; glibc retains it, a tenth of
    the whole process. Does nothing with other C libraries."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # malloc_trim(3)
    if trim is not None:
        trim(0)
