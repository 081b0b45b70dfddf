"""Which node is taken once every node has its cost: the part of kube-scheduler around a policy."""

from __future__ import annotations

import numpy as np

from bench.packing.pick_node_kernels import lowest
from packing.fleet.arrays import Floats, Longs

_ALL = 1 << 30


class NodePicker:
    """Picks the node of least cost among the first ``sample`` nodes that fit (0: all), seen in ``order``.

    As with ``percentageOfNodesToScore``, each search begins where the last one stopped. Ties go to the first
    node in ``order`` or, if ``ties`` is given, to a random one.
    """

    def __init__(self, order: Longs, *, sample: int = 0, ties: np.random.Generator | None = None) -> None:
        self._order, self._sample, self._ties = order, sample or _ALL, ties
        self._start = 0
        self._found = np.zeros(2, np.int64)

    def __call__(self, cost: Floats) -> int:
        """The row that is taken, -1 if every cost is infinite."""
        luck = int(self._ties.integers(1 << 62)) if self._ties else -1
        lowest(cost, self._order, self._start, self._sample, luck, self._found)
        row, looked_at = self._found.tolist()
        if self._sample < _ALL:
            self._start = (self._start + looked_at) % len(self._order)
        return int(row)
