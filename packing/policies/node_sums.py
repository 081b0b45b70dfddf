"""Sums over the GPUs of each node, by which the baselines rank nodes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from packing.fleet.arrays import Floats
from packing.fleet.fleet import Fleet
from packing.model.request import WHOLE


def free_parts(fleet: Fleet) -> Floats:
    """Free part of each GPU (G, N) in GPUs, the mean of compute and memory; 0 where the node has no GPU."""
    memory = fleet.arrays.memory / np.maximum(fleet.arrays.memory_capacity, 1)
    return ((fleet.arrays.compute / WHOLE + memory) / 2).astype(np.float32)


def whole_parts(fleet: Fleet) -> Floats:
    """``free_parts`` of an empty fleet: 1 where the node has a GPU."""
    return (fleet.arrays.compute_capacity > 0).astype(np.float32)


def largest_node(fleet: Fleet) -> tuple[float, float]:
    """The most CPU (milli) and the most GPUs that any node has, each at least 1."""
    gpus = whole_parts(fleet).sum(axis=0).max(initial=1)
    return float(fleet.arrays.cpu_capacity.max(initial=1)), float(gpus)


def truncated(score: npt.NDArray[np.floating]) -> Floats:
    """A score rounded down, as the published policies do; 1e-4 allows for rounding errors."""
    cut: Floats = np.floor(score + 1e-4).astype(np.float32)
    return cut
