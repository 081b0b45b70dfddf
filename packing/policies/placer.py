"""Pods placed on a fleet one after the other, as kube-scheduler and the service do it together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from packing.fleet.arrays import Floats
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import allocation_of
from packing.model.request import Request
from packing.policies.interface import Policy
from packing.policies.upkeep import Due, Upkeep

PickNode = Callable[[Floats], int]
"""The row that is taken at these costs (N,), -1 if all are infinite."""


class Arrivals:
    """Shows a policy the pods that arrive, and plans or updates its prices as often as the service does."""

    def __init__(self, fleet: Fleet, policy: Policy, *, learns: bool = True) -> None:
        self._fleet, self._policy, self._learns = fleet, policy, learns
        self._upkeep, self._learnt = Upkeep(), 0

    def arrive(self, request: Request) -> None:
        """A pod arrives: learn from it, and plan or update the prices if that is due."""
        if self._learns:
            self._policy.observe(request)
            self._learnt += 1
        due = self._upkeep.due(self._fleet, self._learnt)
        if due is Due.NOTHING:
            return
        if due is Due.TABLES:
            self._upkeep.plan_started(self._learnt)
            solve: Callable[[], object] | None = self._policy.plan(self._fleet)
        else:
            solve = self._policy.refresh(self._fleet)
        if solve is not None:
            self._policy.adopt(self._fleet, solve())
        self._upkeep.prices_updated(self._fleet)


class Placer:
    """Places requests under one policy. With ``learns`` the policy learns from every arrival; without, it
    keeps the mix that it was made with."""

    def __init__(self, fleet: Fleet, policy: Policy, pick_node: PickNode, *, learns: bool = True) -> None:
        self.fleet = fleet
        self._policy, self._pick_node = policy, pick_node
        self.arrive = Arrivals(fleet, policy, learns=learns).arrive

    def price(self, request: Request) -> Floats:
        """What placing the request costs on each node (N,), infinite where it does not fit."""
        return self._policy.cost(self.fleet, request)

    def place(self, request: Request, allowed: npt.NDArray[np.bool_] | None = None) -> Allocation | None:
        """Pick a node among the ``allowed`` rows (N,) (None: all), choose GPUs there, and take them. None if
        the request fits nowhere."""
        cost = self.price(request)
        if allowed is not None:
            cost = np.where(allowed, cost, np.float32(np.inf))
        row = self._pick_node(cost)
        if row < 0:
            return None
        gpus = self._policy.choose(self.fleet, request, row)
        allocation = allocation_of(self.fleet, row, request, gpus)
        self.fleet.take(allocation)
        return allocation
