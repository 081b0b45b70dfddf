"""Which node is taken once every node has its cost: what kube-scheduler does around a policy.

It may look at a sample of the nodes only (``percentageOfNodesToScore``), beginning where it stopped the last
time, and it breaks ties by chance unless the scores leave none.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from packing.fleet.arrays import Floats
from packing.replay.pick_node_kernels import lowest

_EVERY = 1 << 30


class Pick:
    """Takes the node of least cost among the first ``sample`` that fit (0: all), in ``order``.

    Ties go to the first node in ``order``, or to a random one if a generator is given.
    """

    def __init__(
        self, order: npt.NDArray[np.int64], *, sample: int = 0, ties: np.random.Generator | None = None
    ) -> None:
        self._order, self._sample, self._ties = order, sample or _EVERY, ties
        self._start = 0
        self._found = np.zeros(2, np.int64)

    def __call__(self, cost: Floats) -> int:
        """The row taken, -1 if every cost is infinite."""
        luck = int(self._ties.integers(1 << 62)) if self._ties else -1
        lowest(cost, self._order, self._start, self._sample, luck, self._found)
        row, looked = self._found.tolist()
        if self._sample < _EVERY:
            self._start = (self._start + looked) % len(self._order)
        return int(row)
