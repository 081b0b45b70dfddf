"""A budget that refills over time: a long-term rate, with bursts."""

from __future__ import annotations


class TokenBucket:
    """At most ``per_second`` tokens per second on average. Times are monotonic seconds."""

    def __init__(self, per_second: float, burst: float) -> None:
        """``burst``: the number of tokens that may be taken at once after a pause."""
        self._per_second, self._burst = per_second, burst
        self._tokens, self._at = burst, 0.0

    def allows(self, count: float, now: float) -> bool:
        """Whether ``count`` tokens may be taken now. More than the burst may be taken when it is full."""
        return self._refill(now) >= min(count, self._burst)

    def take(self, count: float, now: float) -> None:
        """Take ``count`` tokens. This may leave a debt, for which later tokens wait."""
        self._tokens = self._refill(now) - count

    def _refill(self, now: float) -> float:
        self._tokens = min(self._burst, self._tokens + self._per_second * max(0.0, now - self._at))
        self._at = max(now, self._at)
        return self._tokens
