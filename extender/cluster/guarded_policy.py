"""A policy that cannot fail a request: where the chosen one raises, the pod is placed all the same.

The policy never says which nodes fit, so a fault in it costs packing and nothing else. Where a plan fails,
the last good tables stay in force. Where a cost or a choice fails, best fit's counts; where that fails, too,
all nodes that fit are equal. Each failure is counted (``stowage_policy_failures_total``), and each kind is
logged once.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable

import numpy as np

from packing.fleet.arrays import Floats
from packing.fleet.feasibility import reasons_for
from packing.fleet.fleet import Fleet
from packing.fleet.placement import freest_gpus
from packing.model.reasons import Reason
from packing.model.request import Request
from packing.policies.registry import Policy

_log = logging.getLogger(__name__)


class Failures:
    """How often the comparison of nodes that fit has failed, by what failed."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._logged: set[tuple[str, str]] = set()

    def note(self, what: str) -> None:
        """Count the exception that is being handled; log it if it is the first of its kind."""
        error = sys.exception()
        self.counts[what] += 1
        kind = what, type(error).__name__
        if kind not in self._logged:
            self._logged.add(kind)
            _log.error(
                "policy: %s failed; pods are placed without it, and this is not logged again",
                what,
                exc_info=True,
            )


class GuardedPolicy:
    """The chosen policy, with another one behind it for when it raises. No method raises."""

    def __init__(self, policy: Policy, fallback: Policy) -> None:
        self.name = policy.name
        self.failures = Failures()
        self.chosen, self._policies = policy, (policy, fallback)

    def cost(self, fleet: Fleet, request: Request) -> Floats:
        """See ``Policy.cost``; finite wherever the request fits."""
        fits = reasons_for(fleet, request) == Reason.FITS
        for policy in self._policies:
            try:
                cost = policy.cost(fleet, request)
                if np.isfinite(cost[fits]).all():
                    return cost
                raise ValueError("a node that fits has no cost")
            except Exception:
                self.failures.note("cost")
        return np.where(fits, 0, np.inf).astype(np.float32)

    def choose(self, fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
        """See ``Policy.choose``."""
        for policy in self._policies:
            try:
                return policy.choose(fleet, request, row)
            except Exception:
                self.failures.note("choose")
        return freest_gpus(fleet, row, request)

    def terms(self, fleet: Fleet, request: Request, row: int) -> dict[str, float]:
        """See ``Policy.terms``; none where they are not known."""
        try:
            return self.chosen.terms(fleet, request, row)
        except Exception:
            self.failures.note("terms")
            return {}

    def observe(self, request: Request) -> None:
        """See ``Policy.observe``."""
        try:
            self.chosen.observe(request)
        except Exception:
            self.failures.note("observe")

    def plan(self, fleet: Fleet) -> Callable[[], object]:
        """See ``Policy.plan``; a plan that fails is one that ``adopt`` leaves alone."""
        try:
            work = self.chosen.plan(fleet)
        except Exception:
            self.failures.note("plan")
            return lambda: _NO_TABLES
        return lambda: self._worked_out(work)

    def _worked_out(self, work: Callable[[], object]) -> object:
        try:
            return work()
        except Exception:
            self.failures.note("plan")
            return _NO_TABLES

    def adopt(self, fleet: Fleet, tables: object) -> None:
        """See ``Policy.adopt``; tables that fail are not adopted."""
        if tables is _NO_TABLES:
            return
        try:
            self.chosen.adopt(fleet, tables)
        except Exception:
            self.failures.note("adopt")

    def refresh(self, fleet: Fleet) -> None:
        """See ``Policy.refresh``."""
        try:
            self.chosen.refresh(fleet)
        except Exception:
            self.failures.note("refresh")


_NO_TABLES = object()
