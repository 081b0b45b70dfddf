"""Placement of pods on a fleet one by one, as by kube-scheduler and the service together."""

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
from packing.policies.upkeep import Arrivals

PickNode = Callable[[Floats], int]
"""The chosen row for these costs (N,), -1 if all are infinite."""


class Placer:
    """Places requests under one policy. With ``learns`` the policy learns from every arrival; without, it
    keeps its initial mix."""

    def __init__(self, fleet: Fleet, policy: Policy, pick_node: PickNode, *, learns: bool = True) -> None:
        self.fleet = fleet
        self._policy, self._pick_node = policy, pick_node
        self.arrive = Arrivals(fleet, policy, learns=learns).arrive

    def price(self, request: Request) -> Floats:
        """(N,) the cost of placing the request on each node, infinite where it does not fit."""
        return self._policy.cost(self.fleet, request)

    def place(
        self, request: Request, allowed: npt.NDArray[np.bool_] | None = None, more: Floats | float = 0.0
    ) -> Allocation | None:
        """Pick a node among the ``allowed`` rows (N,) (None: all) with the additional costs ``more``, choose
        GPUs there, and allocate them. None if the request fits nowhere."""
        cost = self.price(request) + more
        if allowed is not None:
            cost = np.where(allowed, cost, np.float32(np.inf))
        row = self._pick_node(cost)
        if row < 0:
            return None
        gpus = self._policy.choose(self.fleet, request, row)
        allocation = allocation_of(self.fleet, row, request, gpus)
        self.fleet.take(allocation)
        return allocation
