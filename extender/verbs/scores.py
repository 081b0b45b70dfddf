"""From costs to an order of nodes: ties go by a fixed order, and the best node stands alone at the top."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from packing.fleet.arrays import Floats

TOP_LEVEL = 10
"""kube-scheduler's highest extender score (``MaxExtenderPriority``)."""

Keys = npt.NDArray[np.int64]


def rank_keys(cost: Floats, order: npt.NDArray[np.uint32]) -> Keys:
    """Sortable keys, (N,) int64, lower is better: by cost, equal costs by ``order``.

    The bits of a float, read as a signed number, sort like the float once those of negative ones are inverted
    but for the sign.
    """
    bits = np.ascontiguousarray(cost, np.float32).view(np.int32)
    sortable = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (sortable.astype(np.int64) << 32) | order


def best(keys: Keys, count: int) -> npt.NDArray[np.intp]:
    """Indices of the ``count`` lowest keys, in no particular order."""
    if count >= keys.size:
        return np.arange(keys.size)
    return np.argpartition(keys, count - 1)[:count]


def levels(cost: Floats, keys: Keys) -> npt.NDArray[np.int64]:
    """Scores 0..10, (N,): the lowest key alone has 10, the others fall linearly with cost from 9 to 0."""
    if not cost.size:
        return np.zeros(0, np.int64)
    low, high = float(cost.min()), float(cost.max())
    span = high - low or 1.0
    scores = np.floor((TOP_LEVEL - 1) * (high - cost.astype(np.float64)) / span).astype(np.int64)
    if high == low:
        scores[:] = TOP_LEVEL - 1
    scores[np.argmin(keys)] = TOP_LEVEL
    return scores
