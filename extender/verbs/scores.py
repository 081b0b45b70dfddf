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
Flags = npt.NDArray[np.bool_]


def rank_keys(cost: Floats, order: npt.NDArray[np.uint32]) -> Keys:
    """Sortable keys, (N,) int64, lower is better: by cost, equal costs by ``order``.

    The bits of a float, read as a signed integer, sort like the float once all bits but the sign of negative
    floats are inverted.
    """
    keys = np.empty(cost.size, np.int64)
    kernels.sort_keys(np.ascontiguousarray(cost, np.float32).view(np.int32), order, keys)
    return keys


def shortlist(codes: Codes, keys: Keys, count: int, fitting: int) -> Flags:
    """Which nodes have the lowest keys of the ``fitting`` ones (code 0): (N,), at most ``count`` of them."""
    if fitting <= count:
        fits: Flags = codes == 0
        return fits
    chosen = np.empty(codes.size, np.uint8)
    kernels.mark_lowest(codes, keys, np.empty(count, np.int64), chosen)
    return chosen.view(np.bool_)


def fitting_scores(codes: Codes, cost: Floats, keys: Keys) -> npt.NDArray[np.uint8]:
    """Scores 0 to 10, (N,). Of the nodes that fit (code 0) only the one with the lowest key has 10, and the
    others fall linearly with cost from 9 to 0; all others have 0."""
    scores = np.empty(codes.size, np.uint8)
    kernels.fill_scores(codes, cost, keys, MAX_SCORE, scores)
    return scores
