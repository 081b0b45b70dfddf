"""A budget that refills with time: so much in the long run, and some of it at once."""

from __future__ import annotations


class TokenBucket:
    """At most ``per_second`` tokens in a second on average. Times are monotonic seconds."""

    def __init__(self, per_second: float, burst: float) -> None:
        """``burst``: how many may be taken at once after a pause."""
        self._per_second, self._burst = per_second, burst
        self._tokens, self._at = burst, 0.0

    def allows(self, count: float, now: float) -> bool:
        """Whether ``count`` tokens may be taken now. More than the burst may be taken when it is full."""
        return self._refill(now) >= min(count, self._burst)

    def take(self, count: float, now: float) -> None:
        """``count`` tokens are used. May leave a debt, which later ones wait for."""
        self._tokens = self._refill(now) - count

    def _refill(self, now: float) -> float:
        self._tokens = min(self._burst, self._tokens + self._per_second * max(0.0, now - self._at))
        self._at = max(now, self._at)
        return self._tokens
