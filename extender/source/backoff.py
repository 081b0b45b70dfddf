"""How long to wait before the next request to the API server."""

from __future__ import annotations

import math
from collections.abc import Callable


class Backoff:
    """0.5 to 30 s, doubling with every failure, with jitter. All times are seconds of a monotonic clock."""

    SHORTEST, LONGEST = 0.5, 30.0  # seconds
    HEALTHY = 60.0  # seconds with answers after which earlier failures no longer count
    BRIEF = 1.0  # seconds; a watch that ends sooner, even without an error, is not reopened at once

    def __init__(self, random: Callable[[], float]) -> None:
        """``random`` returns numbers from 0 to 1."""
        self._random = random
        self._failures = 0
        self._healthy_since: float | None = None
        self._opened: float | None = None
        self._relisted_at = -math.inf

    def answered(self, now: float) -> None:
        """The server answered (with a page, or by opening a watch) at ``now``."""
        self._opened = now
        if self._healthy_since is None:
            self._healthy_since = now

    def pause(self, now: float, *, clean: bool) -> float:
        """Seconds to wait. ``clean``: the server ended the watch without an error."""
        opened, self._opened = self._opened, None
        if clean and opened is not None and now - opened >= self.BRIEF:
            return 0.0
        if self._healthy_since is not None and now - self._healthy_since >= self.HEALTHY:
            self._failures = 0
        self._healthy_since = None
        ceiling = min(2 * self.SHORTEST * 2.0**self._failures, self.LONGEST)
        self._failures = min(self._failures + 1, 10)
        return ceiling * (1 + self._random()) / 2

    def before_relist(self, now: float) -> float:
        """Seconds to wait before a new list: 0, unless the last new list was less than a minute ago."""
        last, self._relisted_at = self._relisted_at, now
        return 0.0 if now - last >= self.HEALTHY else self.pause(now, clean=False)
