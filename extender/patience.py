"""When a refusal waits for news: kube-scheduler may know already what Stowage is about to hear.

kube-scheduler tries a refused pod again at the event that makes room, within a millisecond and only once.
Both follow the same API over streams of their own; if Stowage's brings the event a moment later, the pod is
refused for what is no longer so, and in a quiet cluster nobody asks again for five minutes (kube-scheduler's
``podMaxInUnschedulablePodsDuration``). So a refusal is judged anew while news comes in. Most refusals are
right, and kube-scheduler handles one pod at a time: hence the budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LONGEST = 0.03
"""Seconds that one refusal may wait: the streams differ by a few milliseconds."""
_REST = 9.0  # after a wait, nothing waits for so many times its length: at most a tenth of the time is spent


class Patience:
    """Judges refusals again when the state has changed, for as long as they may wait."""

    def __init__(self, longest: float = LONGEST) -> None:
        """``longest`` is 0 where no news can come."""
        self._longest = longest
        self._news = asyncio.Event()
        self._rests_until = 0.0

    def news(self) -> None:
        """The state has changed."""
        self._news.set()

    async def unless_refused(self, judge: Callable[[], T], refused: Callable[[T], bool]) -> T:
        """What ``judge`` says, asked again at news while it refuses and there is time."""
        verdict = judge()
        started = asyncio.get_running_loop().time()
        if not (refused(verdict) and self._longest) or started < self._rests_until:
            return verdict
        try:
            async with asyncio.timeout_at(started + self._longest):
                while refused(verdict):
                    self._news.clear()
                    await self._news.wait()
                    verdict = judge()
        except TimeoutError:
            pass
        ended = asyncio.get_running_loop().time()
        self._rests_until = ended + _REST * (ended - started)
        return verdict
