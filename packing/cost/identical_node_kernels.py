"""Finds nodes in the same state, so that the cost kernels count and price only the first of them."""

import numpy as np

from packing.cost.kernel_args import IdenticalNodes, Nodes
from packing.jit import inlined, record_kernel


@inlined
def representative(n, generation, identical):
    """A node before ``n`` that is still in the same state, or ``n``."""
    first, since = identical.first[n], identical.since
    return first if since[n] == generation[n] and since[first] == generation[first] else n


@inlined
def _state_hash(n, nodes):
    """Equal for nodes in the same state, and hardly ever for others."""
    found = np.int64(nodes.cpu[n]) * 1_000_003 + np.int64(nodes.node_memory[n])
    for g in range(nodes.compute.shape[0]):
        found = found * 1_000_003 + np.int64(nodes.compute[g, n]) * 65_537 + np.int64(nodes.memory[g, n])
    for r in range(nodes.free_devices.shape[0]):
        found = found * 1_000_003 + nodes.free_devices[r, n]
    return found ^ (found >> 29)


@inlined
def _same_state(n, m, nodes):
    """Whether nodes ``n`` and ``m`` differ only in their generation."""
    same = nodes.cpu[n] == nodes.cpu[m] and nodes.node_memory[n] == nodes.node_memory[m]
    same = same and nodes.free_cpu[n] == nodes.free_cpu[m] and nodes.free_memory[n] == nodes.free_memory[m]
    same = same and nodes.model[n] == nodes.model[m] and nodes.max_island[n] == nodes.max_island[m]
    same = same and nodes.overcommitted[n] == nodes.overcommitted[m] and nodes.blocked[n] == nodes.blocked[m]
    same = same and nodes.sharing[n] == nodes.sharing[m] and nodes.nvlink[n] == nodes.nvlink[m]
    if not same:
        return False
    for g in range(nodes.compute.shape[0]):
        same = same and nodes.compute[g, n] == nodes.compute[g, m]
        same = same and nodes.memory[g, n] == nodes.memory[g, m]
        same = same and nodes.memory_capacity[g, n] == nodes.memory_capacity[g, m]
        same = same and nodes.divisible[g, n] == nodes.divisible[g, m]
        same = same and nodes.island[g, n] == nodes.island[g, m]
    for r in range(nodes.free_devices.shape[0]):
        same = same and nodes.free_devices[r, n] == nodes.free_devices[r, m]
        same = same and nodes.device_gpu[r, n] == nodes.device_gpu[r, m]
        same = same and nodes.surplus_devices[r, n] == nodes.surplus_devices[r, m]
        same = same and nodes.divisible_pool[r, n] == nodes.divisible_pool[r, m]
        same = same and nodes.free_peers[r, n] == nodes.free_peers[r, m]
    return same


@record_kernel(Nodes, IdenticalNodes)
def find_identical(nodes, identical):
    """Set ``identical``."""
    table = identical.table
    table[:] = -1
    for n in range(identical.first.size):
        identical.first[n], identical.since[n] = n, nodes.generation[n]
        at = _state_hash(n, nodes) & (table.size - 1)
        while table[at] >= 0:
            m = table[at]
            if _same_state(n, m, nodes):
                identical.first[n] = m
                break
            at = (at + 1) & (table.size - 1)
        else:
            table[at] = n
