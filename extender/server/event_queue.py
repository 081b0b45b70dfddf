"""Applies events a slice at a time, so that a burst of them does not hold up a request.

An API server that has been busy sends hundreds of changes at once. To apply them all takes tens of
milliseconds, twenty times as long as an answer. So the event loop applies a few, answers who asks, and
goes on. A request may overtake events that have arrived; for it they are what is still on its way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from time import thread_time

from extender.k8s.objects import Event

_SLICE = 0.0003
"""Seconds of CPU that a slice takes at least, or fewer if nothing is left: half as long as an answer. CPU,
because on a busy machine the time that passes says nothing about what requests and events need."""
_AT_ONCE = 4
"""Events between two looks at the clock: some 40 us each."""
_START_SLICE, _START_AT_ONCE = 0.02, 100
"""The same while nobody can ask yet: only probes wait for an answer."""


class EventQueue:
    """The events of a source that are not applied yet, in the order in which they came.

    While some wait, they get half of the event loop's time, so many requests cannot hold them up either.
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
                some = [*islice(self._waiting, at_once)]
                for _ in some:
                    self._waiting.popleft()
                apply(some)
        finally:
            self._ended_at = thread_time()
            if self._waiting:
                self._next = asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._apply_slice(max(_SLICE, thread_time() - self._ended_at))
