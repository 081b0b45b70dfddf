"""Kernel that counts how many more requests of each type the nodes can accept, where they changed since the
last count."""

import numpy as np

from packing.cost.kernel_args import COUNT, ISLAND, MAX_PER_GPU, SHARING, MixTypes, Nodes, Scratch, SlotCounts
from packing.cost.slot_kernels import BIG, add_units, set_limits, set_needs, slots_of_units
from packing.jit import inlined, record_kernel


@inlined
def _count_units(n, nodes, amounts, needs, held):
    """Set ``held`` (T,) to the shares of each type that fit on the GPUs of node ``n``."""
    held[:] = 0
    capacity = np.float32(-1)
    for g in range(nodes.compute.shape[0]):
        if nodes.divisible[g, n]:
            if nodes.memory_capacity[g, n] != capacity:
                capacity = nodes.memory_capacity[g, n]
                set_needs(capacity, amounts, needs)
            add_units(nodes.compute[g, n], nodes.memory[g, n], needs, amounts, np.float32(1), held)


@record_kernel(Nodes, MixTypes, SlotCounts, Scratch)
def count_slots(nodes, types, counts, scratch):
    """Recount on every node whose generation changed since ``counts.counted``."""
    amounts, limits, held = types.amounts, scratch.limits, scratch.lost
    scratch.devices[:] = 0
    for n in range(counts.counted.size):
        if counts.counted[n] == nodes.generation[n]:
            continue
        counts.counted[n] = nodes.generation[n]
        _count_units(n, nodes, amounts, scratch.needs, held)
        set_limits(n, nodes.cpu[n], nodes.node_memory[n], nodes, scratch.devices, types, limits)
        open_node = nodes.blocked[n] == 0 and nodes.overcommitted[n] == 0
        for t in range(limits.size):
            shares = amounts[MAX_PER_GPU, t] > 0
            if not shares:  # requests no share, so the GPUs do not limit it
                held[t] = BIG
            usable = open_node and nodes.max_island[n] >= amounts[ISLAND, t]
            usable = usable and (not shares or amounts[SHARING, t] == nodes.sharing[n])
            now = min(slots_of_units(held[t], amounts[COUNT, t]), limits[t])
            now = types.allowed[nodes.model[n], t] * now if usable else np.float32(0)
            counts.totals[t] += now - counts.slots[n, t]
            counts.units[n, t], counts.slots[n, t] = held[t], now
