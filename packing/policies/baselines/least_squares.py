"""Least squares: the GPU whose free compute and memory the request comes closest to.

The norm-based greedy of Panigrahy et al., "Heuristics for Vector Bin Packing" (2011), with the Euclidean
norm over a GPU's two axes.
"""

from __future__ import annotations

import numpy as np

from packing.fleet.arrays import Floats
from packing.fleet.fleet import Fleet
from packing.model.request import WHOLE, Request, Shares
from packing.policies.baselines.ranked import Ranked
from packing.policies.gpu_choice import fitting


class LeastSquares(Ranked):
    """cost = least of (compute left)^2 + (memory left)^2 over the GPUs with room, in parts of a GPU."""

    name = "least-squares"

    def rank(self, fleet: Fleet, request: Request) -> Floats:
        """See ``Ranked.rank``."""
        if request.shares is None:
            return np.zeros(fleet.arrays.capacity, np.float32)
        least: Floats = _left_squared(fleet, request.shares).min(axis=0)
        return least

    def choose(self, fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
        """The GPUs that come closest, lowest index on ties."""
        part = request.shares
        if part is None:
            return super().choose(fleet, request, row)
        left = _left_squared(fleet, part)[:, row]
        ranked = sorted((float(left[gpu]), gpu) for _, gpu in fitting(fleet, request, row))
        return tuple(gpu for _, gpu in ranked[: part.count])


def _left_squared(fleet: Fleet, part: Shares) -> Floats:
    """Squared length of what is left of each GPU (G, N); infinite where the share does not fit."""
    capacity = np.maximum(fleet.arrays.memory_capacity, 1)
    compute = (fleet.arrays.compute - part.compute_milli) / WHOLE
    memory = (fleet.arrays.memory - part.memory_mib) / capacity - part.memory_milli / WHOLE
    fits = (compute >= 0) & (memory >= -1e-6) & (fleet.arrays.divisible > 0)
    left: Floats = np.where(fits, compute**2 + memory**2, np.inf).astype(np.float32)
    return left
