"""The cost of the devices that a request would be allocated on each node: their size and the value of their
GPUs.

One resource name can stand for a whole GPU, a replica or a MIG instance, of an H100 or of a T4. A pod that
names no model should be allocated the least valuable device that is sufficient. The device of a node costs,
in GPUs,

    s (SIZE + VALUE v / (1 + v))

minus the minimum of this over all nodes. s is the size of the devices in GPUs (the mean of their fractions of
compute and memory), v the value of the GPU relative to an A100 (``packing.model.gpu_catalog``).

SIZE applies only to counted devices, whose size depends on the node. The size of a share is in the request
and the same on every node; slots and fill price it.
"""

from __future__ import annotations

import numpy as np

from packing.fleet.arrays import Floats
from packing.fleet.feasibility import gpu_sizes
from packing.fleet.fleet import Fleet
from packing.model.request import Request

SIZE = 0.5
"""A fraction of a GPU is preferred to a whole one where slots cost about the same. With 8 it was preferred
wherever it was sufficient: replicas were used on nodes whose replicas other requests need, so with departures
73.6 % of the GPU-hours were placed instead of 79.2 (bench/packing/worlds.py, replicas); 0 places 80.1. When
mixed fleets are filled once, 0.5 loses nothing: it keeps as many GPUs whole as the integer program
(bench/packing/mixed_fleets.py, five fleets)."""
VALUE = 0.2
"""About four of the steps to which costs are rounded, so it decides between nodes that cost nearly the same.
On the openb traces 0.2 and 0.4 change the allocation by less than 0.1, on cpu250 by 0.2."""


def device_costs(fleet: Fleet, request: Request) -> Floats:
    """(N,) in GPUs, 0 or more; 0 where the node has too few devices or the request is not allowed."""
    sizes, value = gpu_sizes(fleet, request), fleet.arrays.gpu_value
    able = (sizes > 0) & (fleet.arrays.compute_capacity[0] > 0)
    able &= fleet.names.allowed(request)[fleet.arrays.model] > 0
    for name, count in request.devices:
        if (number := fleet.names.resources.get(name)) is not None:
            able &= fleet.arrays.total_devices[number] >= count
    if not able.any():
        return np.zeros(sizes.size, np.float32)
    costs = sizes * ((SIZE if request.devices else 0) + VALUE * value / (1 + value))
    found: Floats = np.where(able, costs - costs[able].min(), 0).astype(np.float32)
    return found
