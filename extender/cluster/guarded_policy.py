"""A policy that never raises: if the chosen policy fails, pods are still placed.

A policy only compares nodes that fit, so a fault in it costs packing and nothing else. If a plan fails, the
last good tables stay in use. If a cost or a choice fails, the fallback policy decides; if that fails too, all
nodes that fit are equal. Each failure is counted (``stowage_policy_failures_total``), each kind is logged
once.
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
from packing.policies.interface import Policy

_log = logging.getLogger(__name__)


class Failures:
    """Counts failures of the comparison of nodes, by what failed."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._logged: set[tuple[str, str]] = set()

    def note(self, what: str) -> None:
        """Count the exception that is being handled, and log the first of each kind."""
        error = sys.exception()
        self.counts[what] += 1
        kind = what, type(error).__name__
        if kind not in self._logged:
            self._logged.add(kind)
            _log.error(
                "policy: %s failed; pods are placed without it; more failures of this kind are only counted",
                what,
                exc_info=True,
            )


class GuardedPolicy:
    """The ``chosen`` policy, with a ``fallback`` for costs and choices. No method raises."""

    def __init__(self, policy: Policy, fallback: Policy) -> None:
        self.name = policy.name
        self.failures = Failures()
        self.chosen, self._policies = policy, (policy, fallback)

    def cost(self, fleet: Fleet, request: Request) -> Floats:
        """Finite wherever the request fits."""
        fits = reasons_for(fleet, request) == Reason.FITS
        for policy in self._policies:
            try:
                cost = policy.cost(fleet, request)
                if np.isfinite(cost[fits]).all():
                    return cost
                raise ValueError("no finite cost for a node that fits")
            except Exception:
                self.failures.note("cost")
        return np.where(fits, 0, np.inf).astype(np.float32)

    def choose(self, fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
        for policy in self._policies:
            try:
                return policy.choose(fleet, request, row)
            except Exception:
                self.failures.note("choose")
        return freest_gpus(fleet, row, request)

    def terms(self, fleet: Fleet, request: Request, row: int) -> dict[str, float]:
        """Empty if the policy fails."""
        try:
            return self.chosen.terms(fleet, request, row)
        except Exception:
            self.failures.note("terms")
            return {}

    def observe(self, request: Request) -> None:
        try:
            self.chosen.observe(request)
        except Exception:
            self.failures.note("observe")

    def plan(self, fleet: Fleet) -> Callable[[], object]:
        """If the plan fails, ``adopt`` ignores its result."""
        try:
            plan = self.chosen.plan(fleet)
        except Exception:
            self.failures.note("plan")
            return lambda: _NO_TABLES
        return lambda: self._run_plan(plan)

    def _run_plan(self, plan: Callable[[], object]) -> object:
        try:
            return plan()
        except Exception:
            self.failures.note("plan")
            return _NO_TABLES

    def adopt(self, fleet: Fleet, tables: object) -> None:
        """If the policy fails, it keeps its old tables."""
        if tables is _NO_TABLES:
            return
        try:
            self.chosen.adopt(fleet, tables)
        except Exception:
            self.failures.note("adopt")

    def refresh(self, fleet: Fleet) -> None:
        try:
            self.chosen.refresh(fleet)
        except Exception:
            self.failures.note("refresh")


_NO_TABLES = object()
