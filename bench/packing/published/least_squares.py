"""Least squares: the GPU whose free compute and memory are closest to the request.

The norm-based greedy of Panigrahy et al., "Heuristics for Vector Bin Packing" (2011), with the Euclidean
norm over a GPU's two axes.
"""

from __future__ import annotations

import numpy as np

from packing.fleet.arrays import Floats
from packing.fleet.fleet import Fleet
from packing.fleet.placement import fitting_with_free_part
from packing.model.request import WHOLE, Request, Shares
from packing.policies.baselines import Baseline


class LeastSquares(Baseline):
    """cost = minimum of (compute left)^2 + (memory left)^2 over the GPUs with room, as fractions of a GPU; on
    the node the shares are placed on the closest GPUs, lowest index on ties."""

    name = "least-squares"

    def rank(self, fleet: Fleet, request: Request) -> Floats:
        if request.shares is None:
            return np.zeros(fleet.arrays.capacity, np.float32)
        least: Floats = _left_squared(fleet, request.shares).min(axis=0)
        return least

    def choose(self, fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
        shares = request.shares
        if shares is None:
            return super().choose(fleet, request, row)
        left = _left_squared(fleet, shares)[:, row]
        ranked = sorted((float(left[gpu]), gpu) for _, gpu in fitting_with_free_part(fleet, request, row))
        return tuple(gpu for _, gpu in ranked[: shares.count])


def _left_squared(fleet: Fleet, shares: Shares) -> Floats:
    """Square of the rest of each GPU (G, N) after one share; infinite where the share does not fit."""
    capacity = np.maximum(fleet.arrays.memory_capacity, 1)
    compute = (fleet.arrays.compute - shares.compute_milli) / WHOLE
    memory = (fleet.arrays.memory - shares.memory_mib) / capacity - shares.memory_milli / WHOLE
    fits = (compute >= 0) & (memory >= -1e-6) & (fleet.arrays.divisible > 0)
    left: Floats = np.where(fits, compute**2 + memory**2, np.inf).astype(np.float32)
    return left
