"""Functions of the kernels that count how many more requests of each type the nodes can accept.

The loops vectorize over request types: the number of types is a multiple of ``LANES``.
"""

import numpy as np

from packing.cost.kernel_args import (
    COMPUTE,
    CPU,
    MAX_PER_GPU,
    MEMORY,
    SHARE_MIB,
    SHARE_MILLI,
)
from packing.jit import inlined

LEAVING = np.float32(0.3)
"""The weight of a slot that is only partly free, times the third power of its free fraction: a GPU with one
small request will soon be the empty GPU that a large request needs, a GPU with seven will not; the same holds
for nodes and 8-GPU jobs. With weight 0, pods are placed where they break no slot, and no node ever becomes
empty: on equal nodes (bench/packing/worlds.py) 91.1 instead of 91.6 % of the GPU-hours are placed, and large
jobs wait 20 % longer. The optimum is flat: 0.03 to 0.4 for shares are the same within 0.1 points, as are 0.3
to 1 for whole GPUs."""
BIG = np.float32(1e9)
_TINY = np.float32(1e-3)
_ROUNDING, _STEPS = np.float32(1e-4), np.float32(1024)


@inlined
def _expected(room):
    """The number of whole requests in ``room``, plus the weight of the partial one, in steps that are exact
    in sums and differences: counts must not depend on the order of changes."""
    whole = np.floor(room + _ROUNDING)
    rest = max(room - whole, np.float32(0))
    return whole + np.floor(LEAVING * rest * rest * rest * _STEPS) / _STEPS


@inlined
def slots_of_units(units, count):
    """Slots of requests of ``count`` shares if the GPUs of a node can hold this many ``units``."""
    return units if count == np.float32(1) else _expected(units / count)


@inlined
def needed_mib(t, capacity, amounts):
    """MiB that a share of type ``t`` takes on a GPU of this capacity, not rounded down as in
    ``share_mib``."""
    return amounts[SHARE_MIB, t] + amounts[SHARE_MILLI, t] * capacity / np.float32(1000)


@inlined
def set_needs(capacity, amounts, needs):
    """Set ``needs`` (T,) to the MiB that a share of each type takes, as a divisor above 0."""
    for t in range(needs.size):
        needs[t] = max(needed_mib(t, capacity, amounts), _TINY)


@inlined
def add_units(compute, memory, needs, amounts, sign, units):
    """Add to ``units`` (T,), multiplied by ``sign``, the shares of each type that fit on a GPU with this much
    free."""
    for t in range(units.size):
        room = max(min(compute / amounts[COMPUTE, t], memory / needs[t]), np.float32(0))
        units[t] += sign * min(_expected(room), amounts[MAX_PER_GPU, t])


@inlined
def set_limits(n, cpu, node_memory, nodes, devices, types, limits):
    """Set ``limits`` (T,) to the number of requests of each type for which the CPU, memory and counted
    devices of node ``n`` are sufficient, with ``devices`` (R,) of the free ones taken. The numbers by CPU and
    memory are not rounded down, but those below one are 0. Where the devices must be separate GPUs, only
    those that are certain to be count (``idle_gpus``). The node has no more slots than when it is empty."""
    amounts = types.amounts
    for t in range(limits.size):  # a tiny amount means that the type requests none
        by_cpu = cpu / amounts[CPU, t] if amounts[CPU, t] > _TINY else BIG
        by_memory = node_memory / amounts[MEMORY, t] if amounts[MEMORY, t] > _TINY else BIG
        left = min(by_cpu, by_memory)
        limits[t] = left if left >= np.float32(1) else np.float32(0)
    for i in range(types.asked.size):
        r = types.asked[i]
        devices_left = nodes.free_devices[r, n] - devices[r]
        surplus, total = np.float32(nodes.surplus_devices[r, n]), np.float32(nodes.total_devices[r, n])
        for t in range(limits.size):
            asked = types.devices[r, t]
            unsure = types.separate[r, t] * surplus
            left = max(np.float32(devices_left) - unsure, np.float32(0))
            most = max(total - unsure, np.float32(0))
            slots = min(_expected(left / asked), np.floor(most / asked)) if asked > 0 else BIG
            limits[t] = min(limits[t], slots)
