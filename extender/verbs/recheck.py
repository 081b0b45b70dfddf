"""Re-evaluates a refusal for up to 30 ms while watch events arrive.

kube-scheduler retries a refused pod at the event that frees resources, within a millisecond and only once.
It and Stowage watch the same API over separate streams. If Stowage's stream delivers the event a moment
later, the pod would be refused for an outdated reason, and in a quiet cluster kube-scheduler retries only
after five minutes (``podMaxInUnschedulablePodsDuration``).

Most refusals are right, and kube-scheduler handles one pod at a time, so all waits together have a budget.
If one event wakes many pods, the first ones wait, and for the others the event is already known.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Literal, TypeAlias, TypeVar, get_args

from extender.untrusted.token_bucket import TokenBucket

T = TypeVar("T")
Outcome: TypeAlias = Literal["accepted", "refused_again", "no_news", "not_rechecked"]
"""Outcomes of a refusal: the pod fits after an event; it was evaluated again after events, and still refused;
no event arrived; there was no time to wait."""
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

LONGEST = 0.03
"""Seconds that one refusal may wait: the streams differ by a few milliseconds."""
_SHARE = 0.1
"""Maximum fraction of time that refusals may wait."""
_BURST = 10
"""Number of consecutive waits of ``LONGEST`` before ``_SHARE`` applies."""


class RefusalRecheck:
    """Evaluates refusals again after each change of the state, for as long as they may wait."""

    def __init__(self, longest: float = LONGEST) -> None:
        """``longest``: seconds that one refusal may wait, 0 if the state does not change."""
        self._longest = longest
        self._changed = asyncio.Event()
        self._budget = TokenBucket(_SHARE, longest * _BURST)
        self.outcomes: Counter[Outcome] = Counter()
        """Refusals since the start, by outcome."""

    def state_changed(self) -> None:
        self._changed.set()

    async def evaluate(self, evaluate: Callable[[], T], refused: Callable[[T], bool]) -> T:
        """The answer of ``evaluate``, called again after each change while it is a refusal."""
        answer = evaluate()
        if not refused(answer):
            return answer
        started = asyncio.get_running_loop().time()
        if not self._longest or not self._budget.allows(self._longest, started):
            self.outcomes["not_rechecked"] += 1
            return answer
        evaluations = 0
        try:
            async with asyncio.timeout_at(started + self._longest):
                while refused(answer):
                    self._changed.clear()
                    await self._changed.wait()
                    answer = evaluate()
                    evaluations += 1
        except TimeoutError:
            pass
        self.outcomes[
            "accepted" if not refused(answer) else "refused_again" if evaluations else "no_news"
        ] += 1
        now = asyncio.get_running_loop().time()
        self._budget.take(now - started, now)
        return answer
