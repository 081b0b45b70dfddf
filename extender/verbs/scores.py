"""From costs to a strict order of nodes, and to kube-scheduler's scores: only the best node gets 10."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from packing.fleet.arrays import Floats

MAX_SCORE = 10
"""kube-scheduler's highest score of an extender (``MaxExtenderPriority``)."""

Keys = npt.NDArray[np.int64]


def rank_keys(cost: Floats, order: npt.NDArray[np.uint32]) -> Keys:
    """Sortable keys, (N,) int64, lower is better: by cost, equal costs by ``order``.

    The bits of a float, read as a signed integer, sort like the float once all bits but the sign of negative
    floats are inverted.
    """
    bits = np.ascontiguousarray(cost, np.float32).view(np.int32)
    sortable = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (sortable.astype(np.int64) << 32) | order


def best(keys: Keys, count: int) -> npt.NDArray[np.intp]:
    """Indices of the ``count`` lowest keys, in no particular order."""
    if count >= keys.size:
        return np.arange(keys.size)
    return np.argpartition(keys, count - 1)[:count]


def node_scores(cost: Floats, keys: Keys) -> npt.NDArray[np.int64]:
    """Scores 0 to 10, (N,): only the lowest key has 10, the others fall linearly with cost from 9 to 0."""
    if not cost.size:
        return np.zeros(0, np.int64)
    low, high = float(cost.min()), float(cost.max())
    span = high - low or 1.0
    scores = np.floor((MAX_SCORE - 1) * (high - cost.astype(np.float64)) / span).astype(np.int64)
    if high == low:
        scores[:] = MAX_SCORE - 1
    scores[np.argmin(keys)] = MAX_SCORE
    return scores
