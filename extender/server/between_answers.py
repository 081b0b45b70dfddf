"""What the event loop does between answers: work that was put off, events of the cluster, and garbage.

Each of them takes as long as an answer or longer, so none may come in front of one that is ready.
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
"""Seconds of CPU that a slice of events takes at least, or fewer if nothing is left: half as long as an
answer. CPU, because on a busy machine the time that passes does not say what requests and events need."""
_AT_ONCE = 4
"""Events between two looks at the clock: some 40 us each."""
_START_SLICE, _START_AT_ONCE = 0.02, 100
"""The same while nobody can ask yet: only probes wait for an answer."""
_COLLECT_SECONDS = 0.25
"""Between two collections. One takes less than 1 ms at 500 changes of pods a second; after 5 s it took 10 to
20."""
_SURVIVORS = 40_000
"""Objects, a thousand pods."""
_log = logging.getLogger(__name__)


class AfterAnswer:
    """Calls in order, in the turn of the event loop after the one that writes the answer: counts, the
    decision for people to read, and the answer to the next call.

    uvloop writes an answer after everything that is ready to run. So work that follows the answer directly
    would delay it as much as work before it.
    """

    def __init__(self) -> None:
        self._calls: deque[Callable[[], object]] = deque()

    def add(self, call: Callable[[], object]) -> None:
        """Make this call after the answer. It reads the state as it is now: ``run`` before it changes."""
        self._calls.append(call)
        if len(self._calls) == 1:
            asyncio.get_running_loop().call_soon(self.run)

    def run(self) -> None:
        """Make the calls now. One that fails is logged; the answer has been given."""
        while self._calls:
            try:
                self._calls.popleft()()
            except Exception:
                _log.exception("the work after an answer failed")


class EventQueue:
    """The events of a source that are not applied yet, in the order in which they came.

    An API server that has been busy sends hundreds of changes at once. To apply them all takes twenty times
    as long as an answer. So the event loop applies a few, answers who asks, and goes on. A request may
    overtake events that have arrived; for it they are what is still on its way. While some wait, they get
    half of the event loop's time, so many requests cannot hold them up either.
    """

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        """``is_ready``: whether requests are answered. Events wait for ``open``."""
        self._is_ready = is_ready
        self._apply: Callable[[Sequence[Event]], None] | None = None
        self._waiting: deque[Event] = deque()
        self._next: asyncio.Handle | None = None
        self._ended_at = 0.0

    def put(self, events: Sequence[Event]) -> None:
        """Apply these events after those that wait, from the event loop; at once if there are few."""
        self._waiting.extend(events)
        if self._next is None:
            self._apply_slice(_SLICE)

    async def open(self, apply: Callable[[Sequence[Event]], None]) -> None:
        """Apply events with ``apply`` from now on; returns when those that have come before are applied."""
        self._apply = apply
        self.put(())
        while self._waiting:
            await asyncio.sleep(0)

    async def applied(self) -> None:
        """Wait until all events are applied that were delivered from any thread before the call."""
        await asyncio.sleep(0)  # calls of ``put`` from threads are before us in the event loop's queue
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
    """Collect no garbage before ``until_ready`` returns (the state is growing), then four times a second,
    until cancelled; then Python collects by itself again.

    A full collection visits every object of the state: 310 ms at 5,000 nodes and 30,000 pods, in the middle
    of a request. Nearly all of these objects live long, and reference counts free them. So we exclude them
    with ``gc.freeze``, and look often at what is new, which visits each object once. What has survived that
    is collected and frozen once there is enough of it to take 10 ms; rarely, because a cycle that is frozen
    while it is in use is never collected. Python never collects by itself.
    """
    gc.disable()
    try:
        await until_ready()
        gc.freeze()  # without collecting: requests are already arriving, and there is little garbage
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
    """Return what the first lists and the loading of kernels have freed: glibc keeps it, a tenth of the whole
    process. Does nothing with other C libraries."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # malloc_trim(3)
    if trim is not None:
        trim(0)
