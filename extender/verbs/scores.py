"""From costs to a strict order of nodes, and to kube-scheduler's scores: only the best node gets 10."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from extender.verbs import evaluation_kernels as kernels
from packing.fleet.arrays import Floats

MAX_SCORE = 10
"""kube-scheduler's highest score of an extender (``MaxExtenderPriority``)."""

Keys = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int8]


def rank_keys(cost: Floats, order: npt.NDArray[np.uint32]) -> Keys:
    """Sortable keys, (N,) int64, lower is better: by cost, equal costs by ``order``.

    The bits of a float, read as a signed integer, sort like the float once all bits but the sign of negative
    floats are inverted.
    """
    keys = np.empty(cost.size, np.int64)
    kernels.sort_keys(np.ascontiguousarray(cost, np.float32).view(np.int32), order, keys)
    return keys


def shortlist(codes: Codes, keys: Keys, count: int, fitting: int) -> npt.NDArray[np.bool_]:
    """Which nodes are the ``best`` of the ``fitting`` ones (code 0): (N,), at most ``count`` of them."""
    if fitting <= count:
        fits: npt.NDArray[np.bool_] = codes == 0
        return fits
    chosen = np.empty(codes.size, np.uint8)
    kernels.mark_lowest(codes, keys, np.empty(count, np.int64), chosen)
    return chosen.view(np.bool_)


def fitting_scores(codes: Codes, cost: Floats, keys: Keys) -> npt.NDArray[np.uint8]:
    """The ``node_scores`` of the nodes that fit (code 0), and 0 for all others: (N,)."""
    scores = np.empty(codes.size, np.uint8)
    kernels.fill_scores(codes, cost, keys, MAX_SCORE, scores)
    return scores


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
