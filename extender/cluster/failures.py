"""Counts what failed in scoring and explaining: pods are placed without the part that failed."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Literal

Part = Literal[
    "observe", "plan", "cost", "choose", "terms", "forecast", "rank", "explain",
    "node_sets", "separate_gpus",
]  # fmt: skip
"""What may fail; a label of ``stowage_policy_failures_total``."""

_log = logging.getLogger(__name__)


class Failures:
    """Counts failures of the comparison of nodes, by what failed."""

    def __init__(self) -> None:
        self.counts: Counter[Part] = Counter()
        self._logged: set[tuple[Part, str]] = set()

    def caught(self, what: Part) -> AbstractContextManager[None]:
        """An error in the block ends it, and is counted. The first of each kind is logged."""
        return _Caught(self, what)

    def note(self, what: Part, error: Exception) -> None:
        """Count an error."""
        self.counts[what] += 1
        if (kind := (what, type(error).__name__)) not in self._logged:
            self._logged.add(kind)
            text = "policy: %s failed; pods are placed without it; more such failures are only counted"
            _log.error(text, what, exc_info=error)


class _Caught(AbstractContextManager[None]):
    # No generator: that would cost each request a few microseconds more.
    __slots__ = ("_failures", "_what")

    def __init__(self, failures: Failures, what: Part) -> None:
        self._failures, self._what = failures, what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._failures.note(self._what, error)
        return True
