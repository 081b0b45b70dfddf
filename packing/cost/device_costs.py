"""What the devices cost that a request gets on each node: their size, and what their GPUs are worth.

One resource name can stand for a whole GPU, a replica or a MIG instance, of an H100 or of a T4. A pod that
names no model gets the least that serves it: what a node gives it costs, in GPUs,

    s (SIZE + VALUE v / (1 + v))

less the least of this on any node. s is the size of the devices in GPUs (the mean of their parts of compute
and memory), v the value of the GPU, an A100 being 1 (``packing.model.gpu_catalogue``).

SIZE counts for counted devices only. How much of a GPU a share takes is its own wish, the same on every node,
and slots and fill price it. What a counted device is, the node decides.
"""

from __future__ import annotations

import numpy as np

from packing.fleet.arrays import Floats
from packing.fleet.feasibility import gpu_sizes
from packing.fleet.fleet import Fleet
from packing.model.request import Request

SIZE = 0.5
"""A part of a GPU goes before a whole one where slots cost about the same. With 8 it went there wherever it
served: to replicas of nodes of which others need all, so that with departures 73.6 % of the GPU-hours were
placed instead of 79.2 (bench/packing/worlds.py, replicas); 0 places 80.1. Filled once, mixed fleets lose
nothing with 0.5: all that the integer program keeps whole (bench/packing/mixed_fleets.py, five fleets)."""
VALUE = 0.2
"""About four of the steps to which costs are rounded: it decides between nodes that cost nearly the same. On
the openb traces 0.2 and 0.4 change the allocation by less than 0.1, on cpu250 by 0.2."""


def device_costs(fleet: Fleet, request: Request) -> Floats:
    """(N,) in GPUs, 0 or more; 0 where a node does not have so many devices, or the request may not go."""
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
