"""Work of the event loop between answers: deferred calls, cluster events, and garbage collection.

Each takes as long as an answer or longer, so none may delay an answer that is ready.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import math
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from time import monotonic, thread_time

from extender.k8s.objects import Event, Kind, Listed, Upserted
from extender.source.interface import Backlog
from extender.untrusted.limits import WAITING_EVENTS

_SLICE = 0.0003
"""Minimum CPU seconds per slice of events while events remain: half of an answer. CPU time, because on a busy
machine elapsed time does not measure the cost of requests and events."""
_AT_ONCE = 4
"""Events between two readings of the clock: some 40 us each."""
_LONGEST_SLICE = 0.01
"""After an answer that took long, and during startup, when only probes are answered."""
_START_AT_ONCE = 100
_COLLECT_SECONDS = 0.25
"""Between two collections. One takes less than 1 ms at 500 pod changes per second; every 5 s, one took 10 to
20 ms."""
_SURVIVORS = 40_000
"""Number of objects: about a thousand pods."""
_WAITING_BEFORE_OPEN = 100_000
"""Of one kind, while kernels are loaded: the first lists, whose objects the state keeps anyway."""
_STEPS = "uid", "node_name", "nominated_node", "unscheduled", "disruption", "deleting", "terminated"
_step = attrgetter(*_STEPS)  # what the state compares with the pod before
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


@dataclass(slots=True)
class _Waiting:
    event: Event
    key: tuple[Kind, str]
    since: float  # monotonic seconds


class EventQueue(Backlog):
    """Events of a source that are not applied yet, in order of arrival.

    Applying hundreds of changes at once takes twenty times as long as an answer. So the event loop applies a
    few, answers requests, and continues. A request may overtake events that have arrived, as if they were
    still in transit. Events get half of the loop's time, so a flood of requests cannot starve them either.

    An update takes the place of the waiting one of the same object, unless the state must see both.
    """

    def __init__(self, is_ready: Callable[[], bool], clock: Callable[[], float] = monotonic) -> None:
        """``is_ready``: whether requests are answered. Events wait for ``open``."""
        self._is_ready, self._clock, self._loop = is_ready, clock, asyncio.get_running_loop()
        self._apply: Callable[[Sequence[Event]], None] | None = None
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._last: dict[tuple[Kind, str], _Waiting] = {}  # the last waiting event of each object
        self._of_kind: Counter[Kind] = Counter()
        self._taken, self._ended_at = 0, 0.0
        self._is_scheduled = True  # ``open`` is the first turn

    def put(self, events: Sequence[Event]) -> None:
        """Queue these events. Any thread may call it."""
        with self._lock:
            for event in events:
                self._queue(event)
            if self._is_scheduled or not self._waiting:
                return
            self._is_scheduled = True
        self._loop.call_soon_threadsafe(self._apply_slice, _SLICE)

    def _queue(self, event: Event) -> None:
        if isinstance(event, Listed):
            self._last.clear()  # what follows a list need not be in it
        key = event.kind, event.obj.key if isinstance(event, Upserted) else getattr(event, "key", "")
        last = self._last.get(key)
        if last is not None and _replaces(event, last.event):
            last.event = event
            return
        self._last[key] = waiting = _Waiting(event, key, self._clock())
        self._waiting.append(waiting)
        self._of_kind[event.kind] += 1

    def has_room(self, kind: Kind) -> bool:
        return self._of_kind[kind] < (WAITING_EVENTS if self._apply else _WAITING_BEFORE_OPEN)

    def age(self) -> float:
        return self._clock() - self._waiting[0].since if self._waiting else 0.0

    async def open(self, apply: Callable[[Sequence[Event]], None]) -> None:
        """Apply events with ``apply`` from now on. Returns when the queued events are applied."""
        self._apply = apply
        self._apply_slice(_SLICE)
        await self.applied()

    async def applied(self, within: float = math.inf) -> bool:
        until, last = self._clock() + within, self._taken + len(self._waiting)
        while self._taken < last and self._clock() < until:
            await asyncio.sleep(0)
        return self._taken >= last

    def _apply_slice(self, seconds: float) -> None:
        assert self._apply is not None
        at_once = _AT_ONCE if self._is_ready() else _START_AT_ONCE
        until = thread_time() + (seconds if self._is_ready() else _LONGEST_SLICE)
        try:
            while thread_time() < until and (events := self._take(at_once)):
                self._apply(events)
        finally:
            self._ended_at = thread_time()
            with self._lock:
                self._is_scheduled = bool(self._waiting)
            if self._is_scheduled:
                self._loop.call_soon(self._go_on)

    def _take(self, most: int) -> list[Event]:
        with self._lock:
            taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
            self._taken += len(taken)
            self._of_kind.subtract(waiting.event.kind for waiting in taken)
            for waiting in taken:
                if self._last.get(waiting.key) is waiting:
                    del self._last[waiting.key]
        return [waiting.event for waiting in taken]

    def _go_on(self) -> None:
        self._apply_slice(min(max(_SLICE, thread_time() - self._ended_at), _LONGEST_SLICE))


def _replaces(event: Event, waiting: Event) -> bool:
    """Whether the state need not see the ``waiting`` event if this one of the same object follows it. It must
    see each deletion, what it deletes, and each step in the life of a pod."""
    if isinstance(event, Upserted) and isinstance(waiting, Upserted):
        return event.kind != "Pod" or _step(event.obj) == _step(waiting.obj)
    return False


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
