"""How many evictions are allowed at a moment."""

from __future__ import annotations


class TokenBucket:
    """At most ``per_minute`` evictions in a minute, some of them at once. Times are monotonic seconds."""

    def __init__(self, per_minute: float, burst: float) -> None:
        """``burst``: how many may go at once after a pause."""
        self._per_second, self._burst = per_minute / 60, burst
        self._tokens, self._at = burst, 0.0

    def allows(self, count: int, now: float) -> bool:
        """Whether ``count`` evictions may begin now. More than the burst may begin when it is full: a gang
        leaves as a whole."""
        return self._refill(now) >= min(count, self._burst)

    def take(self, count: int, now: float) -> None:
        """``count`` evictions are made. May leave a debt, which later ones wait for."""
        self._tokens = self._refill(now) - count
        self._at = now

    def _refill(self, now: float) -> float:
        self._tokens = min(self._burst, self._tokens + self._per_second * max(0.0, now - self._at))
        self._at = max(now, self._at)
        return self._tokens
