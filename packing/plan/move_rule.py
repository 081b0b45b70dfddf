"""When moves are worth their cost, and how much they may cost per hour.

A move ends a pod, which continues elsewhere from its last checkpoint. It loses GPU-seconds: the GPUs that it
holds x (the seconds since its last checkpoint + 300 for the restart), see ``gpu_seconds``. For a pending job,
moves are worthwhile if their total loss is at most

    PRICE x GPUs of the job x seconds that it has waited while as many GPUs were free in total

so no more is lost than the job has already lost by waiting while fragmented GPUs were free. The rule needs no
estimates of run times. Per hour all moves lose at most ``lost_share`` of the GPU-seconds of the fleet, or
``least_lost`` if that is more.

If small jobs queue, GPUs are scarce, and moves only change which jobs wait: no pod is moved for ``calm``
seconds after the start of a job with fewer than ``gpus`` GPUs that had waited ``small_wait`` seconds or
longer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from packing.fleet.feasibility import gpu_sizes
from packing.fleet.fleet import Fleet
from packing.fleet.stranded import on_offer
from packing.model.request import WHOLE, Request

_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class MoveRule:
    """``gpus``: no moves for smaller jobs. ``after``: seconds that a job must have waited while GPUs were
    free. ``price``: see above. ``moves``: maximum number of pods moved for a job. ``age``: minimum seconds
    that a pod must have run before it is moved. ``shield``: seconds for which a moved or evicted pod is not
    moved again. ``least_lost``: GPU-seconds per hour. ``small_wait``, ``calm``: seconds, see above."""

    gpus: float = 4.0
    after: float = 300.0
    price: float = 1.0
    moves: int = 4
    age: float = 600.0
    shield: float = 3600.0
    lost_share: float = 0.005
    least_lost: float = 2 * _HOUR
    small_wait: float = math.inf
    calm: float = _HOUR

    def may_lose(self, gpus: float, waited: float) -> float:
        """GPU-seconds that moves may lose for a job of this many GPUs that has waited this many seconds while
        as many were free; 0 for a job that is too small or has not waited long enough."""
        if gpus < self.gpus or waited < self.after:
            return 0.0
        return self.price * gpus * waited


def free_pieces(fleet: Fleet, request: Request) -> npt.NDArray[np.int64]:
    """(N,) number of free devices or shares of the request on each node that accepts pods, whether or not
    they are on one node and whatever CPU and memory are free."""
    arrays = fleet.arrays
    usable = (gpu_sizes(fleet, request) > 0) & on_offer(fleet)
    usable &= fleet.names.allowed(request)[arrays.model] > 0
    free = np.zeros(arrays.capacity, np.int64)
    for name, _ in request.devices:
        if (resource := fleet.names.resources.get(name)) is not None:
            free += np.maximum(arrays.free_devices[resource], 0)
    if (part := request.shares) is not None:
        memory = part.memory_mib + part.memory_milli * arrays.memory_capacity / WHOLE
        fits = (arrays.divisible > 0) & (arrays.compute >= part.compute_milli) & (arrays.memory >= memory)
        free += fits.sum(axis=0)
    return np.where(usable, free, 0)
