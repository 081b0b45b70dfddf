"""A policy that never raises: if the chosen policy fails, pods are still placed.

A policy only compares nodes that fit, so a fault in it costs packing and nothing else. If a plan fails, the
last good tables stay in use. If a cost or a choice fails, the fallback policy decides; if that fails too, all
nodes that fit are equal. Each failure is counted (``stowage_policy_failures_total``), each kind is logged
once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from extender.cluster.failures import Failures
from packing.fleet.arrays import Floats
from packing.fleet.feasibility import reasons_for
from packing.fleet.fleet import Fleet
from packing.fleet.placement import freest_gpus
from packing.model.reasons import Reason
from packing.model.request import Request
from packing.policies.interface import Pause, Policy, no_pause


class GuardedPolicy:
    """The ``chosen`` policy, with a ``fallback`` for costs and choices. No method raises."""

    def __init__(self, policy: Policy, fallback: Policy) -> None:
        self.name = policy.name
        self.failures = Failures()
        self.chosen, self._policies = policy, (policy, fallback)

    def cost(self, fleet: Fleet, request: Request) -> Floats:
        """Finite on every node where the request fits."""
        codes = reasons_for(fleet, request)
        for policy in self._policies:
            with self.failures.caught("cost"):
                cost = policy.cost(fleet, request)
                if (np.isfinite(cost) | (codes != Reason.FITS)).all():
                    return cost
                raise ValueError("no finite cost for a node that fits")
        return np.where(codes == Reason.FITS, 0, np.inf).astype(np.float32)

    def choose(self, fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
        for policy in self._policies:
            with self.failures.caught("choose"):
                return policy.choose(fleet, request, row)
        return freest_gpus(fleet, row, request)

    def terms(self, fleet: Fleet, request: Request, row: int) -> dict[str, float]:
        """Empty if the policy fails."""
        with self.failures.caught("terms"):
            return self.chosen.terms(fleet, request, row)
        return {}

    def observe(self, request: Request) -> None:
        with self.failures.caught("observe"):
            self.chosen.observe(request)

    def plan(self, fleet: Fleet, pause: Pause = no_pause) -> Callable[[], object]:
        """If the plan fails, ``adopt`` ignores its result."""
        with self.failures.caught("plan"):
            plan = self.chosen.plan(fleet, pause)
            return lambda: self._run_plan(plan)
        return lambda: _NO_TABLES

    def _run_plan(self, plan: Callable[[], object]) -> object:
        with self.failures.caught("plan"):
            return plan()
        return _NO_TABLES

    def adopt(self, fleet: Fleet, tables: object) -> None:
        """If the policy fails, it keeps its old tables."""
        if tables is not _NO_TABLES:
            with self.failures.caught("adopt"):
                self.chosen.adopt(fleet, tables)

    def refresh(self, fleet: Fleet, pause: Pause = no_pause) -> Callable[[], object] | None:
        """If the computation fails that this returns, ``adopt`` ignores its result."""
        with self.failures.caught("refresh"):
            if (solve := self.chosen.refresh(fleet, pause)) is not None:
                return lambda: self._run_plan(solve)
        return None


_NO_TABLES = object()
