"""When a refusal waits for news: kube-scheduler may know already what Stowage is about to hear.

kube-scheduler tries a refused pod again at the event that makes room, within a millisecond and only once.
Both follow the same API over streams of their own; if Stowage's brings the event a moment later, the pod is
refused for what is no longer so, and in a quiet cluster nobody asks again for five minutes (kube-scheduler's
``podMaxInUnschedulablePodsDuration``). So a refusal is judged anew while news comes in. Most refusals are
right, and kube-scheduler handles one pod at a time: hence the budget. Of many pods that one event wakes up,
the first ones wait, and by then the event is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LONGEST = 0.03
"""Seconds that one refusal may wait: the streams differ by a few milliseconds."""
_SHARE = 0.1  # of the time that all refusals together may wait in the long run
_AT_ONCE = 10  # longest waits in a row before that matters


class RefusalRecheck:
    """Judges refusals again when the state has changed, for as long as they may wait."""

    def __init__(self, longest: float = LONGEST) -> None:
        """``longest`` is 0 where no news can come."""
        self._longest = longest
        self._news = asyncio.Event()
        self._budget = self._most = longest * _AT_ONCE
        self._budgeted_at = 0.0

    def news(self) -> None:
        """The state has changed."""
        self._news.set()

    async def evaluate(self, evaluate: Callable[[], T], refused: Callable[[T], bool]) -> T:
        """What ``evaluate`` says, asked again at news while it refuses and there is time."""
        verdict = evaluate()
        started = asyncio.get_running_loop().time()
        if not (refused(verdict) and self._longest) or self._left(started) < self._longest:
            return verdict
        try:
            async with asyncio.timeout_at(started + self._longest):
                while refused(verdict):
                    self._news.clear()
                    await self._news.wait()
                    verdict = evaluate()
        except TimeoutError:
            pass
        self._budget -= asyncio.get_running_loop().time() - started
        return verdict

    def _left(self, now: float) -> float:
        """Seconds that may be spent; what is spent comes back with time."""
        self._budget = min(self._most, self._budget + _SHARE * (now - self._budgeted_at))
        self._budgeted_at = now
        return self._budget
