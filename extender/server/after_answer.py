"""What is left to do about a request once its answer is on its way: counts, the decision for people to read,
and the answer to the next call.

uvloop writes an answer after everything that is ready to run. So work that follows the answer directly would
delay it as much as work before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

_log = logging.getLogger(__name__)


class AfterAnswer:
    """Calls in order, in the turn of the event loop after the one that writes the answer."""

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
