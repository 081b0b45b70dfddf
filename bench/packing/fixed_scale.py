"""The default policy with scores from 0 to 10 on a fixed scale: the minimum information from an extender.

The service gives a score of 10 only to the best node. Here a score is a function of the cost of its node, the
same for all fleets and mixes, and kube-scheduler picks among equal scores at random.

A fixed scale is possible because the cost has a natural zero, *par*. Slots are priced so that the value of
all free GPU is its amount, and the pattern LP has reduced costs of 0 for the requests that it packs, so a
request costs at least about its size plus the least fill that it can take from a GPU. The cost of a node
above par is waste, in GPUs.
"""

from __future__ import annotations

import numpy as np

from packing.fleet.arrays import Floats
from packing.fleet.fleet import Fleet
from packing.model.request import WHOLE, Request
from packing.policies.inventory import FILL, InventoryPolicy

STEPS = np.array([-0.25, -0.12, -0.04, 0.02, 0.06, 0.11, 0.17, 0.3, 0.6, 1.2], np.float32)
"""Waste in GPUs at which the score of a GPU request decreases by one: about as fine as ``STEP`` around the
usual waste of the best node. Set by hand on four traces with seed 7 (default, gpushare60, cpu250,
multigpu40); equal steps of 0.1 lose 0.03 points more, 0.1 on cpu250."""
CPU_STEPS = (0.06 * 1.6 ** np.arange(10)).astype(np.float32)
"""The same for requests without GPU, which rarely waste any; with ``STEPS`` cpu250 loses 0.2 points."""


class FixedScale(InventoryPolicy):
    """Costs are 10 - score: 0 to 10, infinite where the request does not fit."""

    def cost(self, fleet: Fleet, request: Request) -> Floats:
        cost = super().cost(fleet, request)
        steps = STEPS if request.wants_gpu else CPU_STEPS
        lost = np.searchsorted(steps, cost - np.float32(self.par(fleet, request)))
        return np.where(np.isfinite(cost), lost, np.inf).astype(np.float32)

    def par(self, fleet: Fleet, request: Request) -> float:
        """The cost of the request, in GPUs, where it wastes nothing: its size and the least fill it takes."""
        size, shares = self._sizes.of(fleet, request), request.shares
        if shares is None:
            return size
        table = self.tables.fill[0]
        bins, mib = len(table) - 1, max(1, self.tables.memory_mib[0])
        compute = round(shares.compute_milli * bins / WHOLE)
        memory = min(bins, round((shares.memory_milli / WHOLE + shares.memory_mib / mib) * bins))
        takes = table[compute:, memory:] - table[: bins + 1 - compute, : bins + 1 - memory]
        return size + FILL * shares.count * float(takes.min())
