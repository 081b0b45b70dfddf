"""A policy that never raises: if the chosen policy fails, pods are still placed.

A policy only compares nodes that fit, so a fault in it costs packing and nothing else. If a plan fails, the
last good tables stay in use. If a cost or a choice fails, the fallback policy decides; if that fails too, all
nodes that fit are equal. Each failure is counted (``stowage_policy_failures_total``), each kind is logged
once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from extender.cluster.failures import Failures
from packing.fleet.arrays import Floats
from packing.fleet.feasibility import reasons_for
from packing.fleet.feasibility_kernels import finite_where_fits
from packing.fleet.fleet import Fleet
from packing.fleet.placement import freest_gpus
from packing.model.reasons import Reason
from packing.model.request import Request
from packing.policies.interface import Due, Policy, Solve


class GuardedPolicy:
    """The ``chosen`` policy, with a ``fallback`` for costs and choices. No method raises."""

    def __init__(self, policy: Policy, fallback: Policy) -> None:
        self.name = policy.name
        self.failures = Failures()
        self.chosen, self._policies = policy, (policy, fallback)

    def cost(self, fleet: Fleet, request: Request) -> Floats:
        """Finite on every node where the request fits. If there are none, no policy is asked."""
        codes = reasons_for(fleet, request)
        if not (codes == Reason.FITS).any():
            return np.full(codes.size, np.inf, np.float32)
        for policy in self._policies:
            with self.failures.caught("cost"):
                cost = policy.cost(fleet, request)
                if finite_where_fits(codes, cost):
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

    def update(self, fleet: Fleet, due: Due) -> Solve | None:
        """If a part of it fails, the tables stay as they are."""
        with self.failures.caught("plan"):
            solve = self.chosen.update(fleet, due)
            return solve and partial(self._solve, solve)
        return None

    def _solve(self, solve: Solve) -> Callable[[], None]:
        with self.failures.caught("plan"):
            return partial(self._adopt, solve())
        return lambda: None

    def _adopt(self, adopt: Callable[[], None]) -> None:
        with self.failures.caught("plan"):
            adopt()
