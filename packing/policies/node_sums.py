"""Node sums that the classic policies rank by."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from packing.fleet.arrays import Floats
from packing.fleet.feasibility import gpu_sizes, reasons_for
from packing.fleet.fleet import Fleet
from packing.model.request import WHOLE, Request


def free_parts(fleet: Fleet) -> Floats:
    """Free part of each GPU (G, N) in GPUs, the mean of compute and memory; 0 where there is none."""
    parts = (
        fleet.arrays.compute / WHOLE + fleet.arrays.memory / np.maximum(fleet.arrays.memory_capacity, 1)
    ) / 2
    return parts.astype(np.float32)


def whole_parts(fleet: Fleet) -> Floats:
    """The same for an empty fleet: 1 where there is a GPU."""
    return (fleet.arrays.compute_capacity > 0).astype(np.float32)


def where_it_fits(fleet: Fleet, request: Request, cost: Floats) -> Floats:
    """The cost (N,), infinite where the request does not fit."""
    return np.where(reasons_for(fleet, request) == 0, cost, np.inf).astype(np.float32)


def largest_node(fleet: Fleet) -> tuple[float, float]:
    """CPU in milli and GPUs of the largest node, at least 1."""
    gpus = whole_parts(fleet).sum(axis=0).max(initial=1)
    return float(fleet.arrays.cpu_capacity.max(initial=1)), float(gpus)


def left_over(fleet: Fleet, request: Request) -> tuple[Floats, Floats]:
    """Free CPU and free GPU of each node (N,) once the request is placed, as parts of the largest node's."""
    cpu_max, gpu_max = largest_node(fleet)
    cpu = (fleet.arrays.cpu - request.cpu_milli) / cpu_max
    return cpu, (free_parts(fleet).sum(axis=0) - gpu_sizes(fleet, request)) / gpu_max


def truncated(score: npt.NDArray[np.floating]) -> Floats:
    """A score 0..100 as the published policies have it: an integer, cut off. Small errors do not cut."""
    cut: Floats = np.floor(score + 1e-4).astype(np.float32)
    return cut
