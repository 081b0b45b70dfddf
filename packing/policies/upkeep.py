"""When a policy learns and is updated, while pods arrive one after the other.

The service, the replays and the benchmarks update a policy equally often (``Upkeep``), so a figure of a
replay is a figure of the service.
"""

from __future__ import annotations

import numpy as np

from packing.fleet.fleet import Fleet
from packing.model.request import Request
from packing.policies.interface import Due, Policy, update_now

NEW_PODS = 500
"""New pods after which the tables are planned again; before that, once the learned pods have doubled."""
CHANGES_PER_GPU = 0.0804
"""Node changes per GPU of the fleet after which the prices are updated.

With fewer updates, prices of a small fleet lag behind: 500 placements apart, one mix packs 69.8 % on 300 GPUs
instead of 80.4 %. The openb cluster (6,212 GPUs) comes to 500 changes, as many as ``NEW_PODS``: a plan
updates the prices, too, so replays of openb that learn the mix need no update in between.
"""


class Upkeep:
    """Says when one policy on one fleet needs new tables or prices. It reads no clock; a caller that has one
    says with ``overdue`` that the last update was long ago."""

    def __init__(self) -> None:
        self._learnt = self._changes = self._gpus = 0
        self._planned = False
        self._nodes_replaced = -1

    def due(self, fleet: Fleet, learnt: int, *, overdue: bool = False) -> Due | None:
        """What is due, and from now on counts as done; ``learnt`` is the number of pods that the policy has
        observed. New tables have new prices, too. The first ones need no pods: the policy may know a mix."""
        new_pods, changes = learnt - self._learnt, fleet.changes - self._changes
        gpus = self._count_gpus(fleet)
        enough_pods = new_pods >= min(NEW_PODS, max(self._learnt, 1)) or (overdue and new_pods > 0)
        tables = enough_pods or (gpus > 0 and not self._planned)
        if not (tables or changes > CHANGES_PER_GPU * gpus or (overdue and changes)):
            return None
        if tables:
            self._learnt, self._planned = learnt, True
        self._changes = fleet.changes
        return Due.TABLES if tables else Due.PRICES

    def _count_gpus(self, fleet: Fleet) -> int:
        if fleet.replaced != self._nodes_replaced:
            self._gpus = int(np.count_nonzero(fleet.arrays.compute_capacity))
            self._nodes_replaced = fleet.replaced
        return self._gpus


class Arrivals:
    """Shows a policy the pods that arrive, and updates it as often as the service does."""

    def __init__(self, fleet: Fleet, policy: Policy, *, learns: bool = True) -> None:
        self._fleet, self._policy, self._learns = fleet, policy, learns
        self._upkeep, self._learnt = Upkeep(), 0

    def arrive(self, request: Request) -> None:
        """A pod arrives: learn from it, and plan or update the prices if that is due."""
        if self._learns:
            self._policy.observe(request)
            self._learnt += 1
        if (due := self._upkeep.due(self._fleet, self._learnt)) is not None:
            update_now(self._policy, self._fleet, due)
