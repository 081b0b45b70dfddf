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
from packing.fleet.names import GIVES_PARTS
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


def expected_on(fleet: Fleet, request: Request) -> npt.NDArray[np.uint8]:
    """For each kind of node 1 where the mix counts room for the request, (M,); read only. Like
    ``Names.allowed``, but if any node has several devices of it that are whole GPUs, only nodes of this
    kind count: replicas of one GPU are not the room that is asked for."""
    allowed = fleet.names.allowed(request)
    if separation(fleet, request) == "ignore" or not any_doubtful(fleet, request):
        return allowed
    total, surplus = fleet.arrays.total_devices, fleet.arrays.surplus_devices
    for name, count in request.devices:
        number = fleet.names.resources.get(name)
        if number is None or not ((total[number] >= count) & (surplus[number] == 0)).any():
            return allowed
    return allowed & np.array([mask & GIVES_PARTS == 0 for mask in fleet.names.sets], np.uint8)
