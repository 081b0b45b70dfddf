"""Counts of failures in scoring and explaining; pods are placed without the part that failed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

Part = Literal[
    "observe", "plan", "cost", "choose", "terms", "forecast", "rank", "explain",
    "node_sets", "separate_gpus", "end_costs",
]  # fmt: skip
"""Part that may fail; a label of ``stowage_policy_failures_total``."""

_log = logging.getLogger(__name__)


class Failures:
    """Counts of failures in comparing nodes, by the part that failed."""

    def __init__(self) -> None:
        self.counts: Counter[Part] = Counter()
        self._logged: set[tuple[Part, str]] = set()

    @contextmanager
    def caught(self, what: Part) -> Iterator[None]:
        """Suppress and count errors in the block. The first of each kind is logged."""
        try:
            yield
        except Exception as error:
            self.counts[what] += 1
            if (kind := (what, type(error).__name__)) not in self._logged:
                self._logged.add(kind)
                text = "policy: %s failed; pods are placed without it; further failures are only counted"
                _log.error(text, what, exc_info=error)
