"""Whether the counted devices of one container are on different physical GPUs.

The device plugin chooses, and the fleet only counts. What is certain nevertheless: a GPU without any device
in use is chosen before another device of a GPU that the container has already. So as many devices as there
are such GPUs are on different ones, and if ``used`` devices are in use, at least ``separate - used`` GPUs
have none (``Pool.separate``). For whole GPUs that is what is free.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from packing.fleet.arrays import Floats, NodeArrays
from packing.fleet.fleet import Fleet
from packing.model.request import Request, SeparateGpus


def separation(fleet: Fleet, request: Request) -> SeparateGpus:
    """What counts for the request: its own word, or else the fleet's. Nothing where every container asks for
    one device at most."""
    return (request.separate or fleet.separate) if request.together > 1 else "ignore"


def idle_gpus(arrays: NodeArrays, resource: int) -> npt.NDArray[np.int32]:
    """(N,) at most how many devices of a resource are certain to be on different GPUs; can be negative."""
    certain: npt.NDArray[np.int32] = arrays.free_devices[resource] - arrays.surplus_devices[resource]
    return certain


def any_doubtful(fleet: Fleet, request: Request) -> bool:
    """Whether any node might give devices of the request from the same GPU; never for whole GPUs."""
    for name, count in request.devices:  # for each request: generators would cost more
        number = fleet.names.resources.get(name) if count > 1 else None
        if number is not None and np.count_nonzero(fleet.arrays.surplus_devices[number]):
            return True
    return False


def missing_gpus(fleet: Fleet, request: Request, rows: npt.NDArray[np.int64]) -> Floats:
    """How many of the request's devices each row would give from GPUs that it has given already:
    (len(rows),). Where that is not certain, the mean of the best and the worst case; 0 where a node does not
    have them at all."""
    missing, arrays = np.zeros(rows.size, np.float32), fleet.arrays
    for name, count in request.devices:
        if count > 1 and (resource := fleet.names.resources.get(name)) is not None:
            total, surplus = arrays.total_devices[resource][rows], arrays.surplus_devices[resource][rows]
            best = (total - surplus).clip(1, count)
            worst = idle_gpus(arrays, resource)[rows].clip(1, count)
            missing += np.where(total > 0, count - (best + worst) / 2, 0)
    return missing.astype(np.float32)


def gives_separate(fleet: Fleet, request: Request) -> npt.NDArray[np.bool_]:
    """(N,) where a node without pods gives as many different GPUs as the request asks for of each resource;
    everywhere, if that does not count for the request."""
    arrays = fleet.arrays
    gives = np.ones(arrays.capacity, np.bool_)
    if separation(fleet, request) != "ignore":
        for name, count in request.devices:
            if count > 1 and (number := fleet.names.resources.get(name)) is not None:
                gives &= arrays.total_devices[number] - arrays.surplus_devices[number] >= count
    return gives
