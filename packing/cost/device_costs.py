"""The cost of the devices that a request would be allocated on each node: their size and the value of their
GPUs.

One resource name can stand for a whole GPU, a replica or a MIG instance, of an H100 or of a T4. A pod that
names no model should be allocated the least valuable device that is sufficient. The device of a node costs,
in GPUs,

    s (w + VALUE v / (1 + v))

minus the minimum of this over all nodes. s is the size of the devices in GPUs (the mean of their fractions of
compute and memory), w their weight (``size_weight``), v the value of the GPU relative to an A100
(``packing.model.gpu_catalog``).

The weight applies only to counted devices, whose size depends on the node. The size of a share is in the
request and the same on every node; slots and fill price it.
"""

from __future__ import annotations

import numpy as np

from packing.fleet.arrays import Floats
from packing.fleet.feasibility import gpu_sizes
from packing.fleet.fleet import Fleet
from packing.model.request import Request

FILLING, TURNING_OVER, HIGH_TURNOVER = 8.0, 0.5, 0.6
"""The weights of sizes, and the turnover from which the second one applies.

Filled once, 42 fleets with time slices or MIG instances keep at least as many GPUs whole with 8 as under
the best other policy. 16 have MIG instances under the name of GPUs: of these, 3 keep fewer with 4, 10 with
2, and all with 0.5. With departures (replicas of bench/packing/worlds.py, four worlds), 0.5 places 79.5 %
of the GPU-hours, 8 places 72.2, and this rule 80.0; turnovers of 0.4 to 0.7 change that by less than the
noise, and so does a weight that decreases linearly. 0.6 because where nothing has ended, up to 0.59 is
estimated: pods count at their mean size, and are on smaller devices. The weight rarely changes, so cached
costs stay valid.
"""
VALUE = 0.2
"""About four of the steps to which costs are rounded, so it decides between nodes that cost nearly the same.
On the openb traces 0.2 and 0.4 change the allocation by less than 0.1, on cpu250 by 0.2."""


def size_weight(turnover: float) -> float:
    """w above: the cost of a GPU of size, in GPUs; ``turnover`` is r of ``packing.cost.slots``.

    While a fleet fills up, a fraction of a GPU is preferred wherever it is sufficient: whole GPUs stay free.
    With high turnover only where slots cost about the same: otherwise pods would take the replicas that other
    requests need.
    """
    return FILLING if turnover < HIGH_TURNOVER else TURNING_OVER


def device_costs(fleet: Fleet, request: Request, weight: float) -> Floats:
    """(N,) in GPUs, 0 or more; 0 where the node has too few devices or the request is not allowed."""
    sizes, value = gpu_sizes(fleet, request), fleet.arrays.gpu_value
    able = (sizes > 0) & (fleet.arrays.compute_capacity[0] > 0)
    able &= fleet.names.allowed(request)[fleet.arrays.model] > 0
    for name, count in request.devices:
        if (number := fleet.names.resources.get(name)) is not None:
            able &= fleet.arrays.total_devices[number] >= count
    if not able.any():
        return np.zeros(sizes.size, np.float32)
    costs = sizes * ((weight if request.devices else 0) + VALUE * value / (1 + value))
    found: Floats = np.where(able, costs - costs[able].min(), 0).astype(np.float32)
    return found
