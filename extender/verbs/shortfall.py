"""How much a request lacks on nodes where it does not fit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from extender.cluster.state import Rows
from packing.fleet.fleet import Fleet
from packing.fleet.separate_gpus import idle_gpus, separation
from packing.model.request import Request


def shortfall(fleet: Fleet, rows: Rows, request: Request) -> npt.NDArray[np.float64]:
    """How much each row lacks, (len(rows),): the missing part (0 to 1) of each amount asked for, added up."""
    missing = np.zeros(rows.size, np.float64)
    amounts = (fleet.arrays.free_cpu, request.cpu_milli), (fleet.arrays.free_memory, request.memory_bytes)
    for free, asked in amounts:
        missing += np.maximum(asked - free[rows], 0) / max(asked, 1)
    for name, count in request.devices:
        resource = fleet.names.resources.get(name)
        free_devices = 0 if resource is None else _free_devices(fleet, request, resource, count)[rows]
        missing += np.maximum(count - free_devices, 0) / count
    if (part := request.shares) and part.compute_milli:
        largest = (fleet.arrays.compute * fleet.arrays.divisible)[:, rows].max(axis=0)
        missing += np.maximum(part.compute_milli - largest, 0) / part.compute_milli
    return missing


def _free_devices(fleet: Fleet, request: Request, resource: int, count: int) -> npt.NDArray[np.int32]:
    """(N,) free devices that the request can have; at least 0."""
    if count > 1 and separation(fleet, request) == "require":
        return np.maximum(idle_gpus(fleet.arrays, resource), 0)
    free: npt.NDArray[np.int32] = fleet.arrays.free_devices[resource]
    return free
