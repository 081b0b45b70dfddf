"""The choice of a node by the costs of all nodes: the part of kube-scheduler around a policy."""

from __future__ import annotations

import numpy as np

from bench.packing.pick_node_kernels import lowest
from packing.fleet.arrays import Floats, Longs

_ALL = 1 << 30


class NodePicker:
    """Picks the node of lowest cost among the first ``sample`` nodes that fit (0: all), in ``order``.

    As with ``percentageOfNodesToScore``, each search begins where the last one stopped. Ties are broken by
    ``order`` or, if ``ties`` is given, at random.
    """

    def __init__(self, order: Longs, *, sample: int = 0, ties: np.random.Generator | None = None) -> None:
        self._order, self._sample, self._ties = order, sample or _ALL, ties
        self._start = 0
        self._found = np.zeros(2, np.int64)

    def __call__(self, cost: Floats) -> int:
        """The chosen row, -1 if every cost is infinite."""
        luck = int(self._ties.integers(1 << 62)) if self._ties else -1
        lowest(cost, self._order, self._start, self._sample, luck, self._found)
        row, looked_at = self._found.tolist()
        if self._sample < _ALL:
            self._start = (self._start + looked_at) % len(self._order)
        return int(row)
