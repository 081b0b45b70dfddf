"""When a policy plans new tables and when it updates its prices.

The service, the replays and the benchmarks share this cadence, so a figure of a replay is a figure of the
service.
"""

from __future__ import annotations

from enum import Enum, auto

import numpy as np

from packing.fleet.fleet import Fleet

NEW_PODS = 500
"""New pods after which the tables are planned again. Before that: as soon as the learnt pods have doubled."""
CHANGES_PER_GPU = 0.0804
"""Node changes per GPU of the fleet after which the prices are updated.

With fewer updates, prices of a small fleet lag behind: 500 placements apart, one mix packs 69.8 % on 300 GPUs
instead of 80.4 %. The openb cluster (6,212 GPUs) comes to 500 changes, as many as ``NEW_PODS``: a plan
updates the prices, too, so replays of openb that learn the mix need no update in between.
"""


class Due(Enum):
    """What a policy needs now."""

    NOTHING = auto()
    PRICES = auto()
    TABLES = auto()


class Upkeep:
    """Remembers the last plan and the last update of one policy on one fleet. It reads no clock; a caller
    that has one says with ``overdue`` that the last update was long ago."""

    def __init__(self) -> None:
        self._learnt = self._changes = self._gpus = 0
        self._planned = False
        self._nodes_replaced = -1

    def due(self, fleet: Fleet, learnt: int, *, overdue: bool = False) -> Due:
        """What is due; ``learnt`` is the number of pods that the policy has observed. Tables come first,
        because adopting them updates the prices, too. The first plan needs no pods: the policy may know a
        mix."""
        new_pods, changes = learnt - self._learnt, fleet.changes - self._changes
        gpus = self._count_gpus(fleet)
        enough = new_pods >= min(NEW_PODS, max(self._learnt, 1)) or (overdue and new_pods > 0)
        if enough or (gpus and not self._planned):
            return Due.TABLES
        if changes > CHANGES_PER_GPU * gpus or (overdue and changes):
            return Due.PRICES
        return Due.NOTHING

    def plan_started(self, learnt: int) -> None:
        """A plan was made from this many pods."""
        self._learnt, self._planned = learnt, True

    def prices_updated(self, fleet: Fleet) -> None:
        """The prices are those of the fleet as it is now: after ``adopt`` or ``refresh``."""
        self._changes = fleet.changes

    def _count_gpus(self, fleet: Fleet) -> int:
        if fleet.replaced != self._nodes_replaced:
            self._gpus = int(np.count_nonzero(fleet.arrays.compute_capacity))
            self._nodes_replaced = fleet.replaced
        return self._gpus
