"""Functions of the cost kernels: the state of one node's GPUs, and whether and where a request fits there.

They are compiled into the kernels of other files; after an edit here, clear the caches of those.
"""

import numpy as np

from packing.cost.kernel_args import COMPUTE, COUNT, GPU_ROWS, ISLAND, SHARE_MIB, SHARE_MILLI, SHARING
from packing.fleet.feasibility_kernels import enough, share_fits, share_mib
from packing.jit import inlined

FREE_COMPUTE, FREE_MEMORY, CAPACITY, TAKES, FREE, GROUP, UNTOUCHED, ELIGIBLE = range(GPU_ROWS)
"""Rows of ``gpu`` (GPU_ROWS, G), the GPUs of one node: free milli, free MiB, total MiB, MiB that a share
takes (-1: it does not fit), and the free fraction of the GPU, the mean of compute and memory. Then, on a node
with several NVLink islands, the first GPU of the GPU's island, the number of unused GPUs in the island, and
whether the GPU may be chosen."""


@inlined
def load_gpus(n, nodes, count, share, mib, milli, island_size, gpu):
    """Fill ``gpu`` with the GPUs of node ``n`` and return how many of them can hold one of ``count`` shares.

    A share has ``share`` milli of compute, and ``mib`` MiB plus ``milli`` thousandths of memory. If the GPUs
    must be NVLink peers (``island_size`` above 0), only those of one island count.
    """
    fitting = 0
    capacity, takes, per_mib = np.float32(-1), np.float32(0), np.float32(0)
    for g in range(gpu.shape[1]):
        if nodes.memory_capacity[g, n] != capacity:  # usually once per node
            capacity = nodes.memory_capacity[g, n]
            takes = share_mib(capacity, mib, milli)
            per_mib = np.float32(0.5) / capacity if capacity > 0 else np.float32(0)
        compute, memory = nodes.compute[g, n], nodes.memory[g, n]
        fits = share_fits(nodes.divisible[g, n], compute, memory, share, takes)
        gpu[FREE_COMPUTE, g], gpu[FREE_MEMORY, g], gpu[CAPACITY, g] = compute, memory, capacity
        gpu[TAKES, g] = takes if fits else np.float32(-1)
        gpu[FREE, g] = compute * np.float32(0.0005) + memory * per_mib
        fitting += fits
    if count > 0 and island_size > 0:
        fitting = _keep_one_island(n, nodes.island, count, gpu)
    return fitting


@inlined
def _keep_one_island(n, island, count, gpu):
    """Restrict the fitting GPUs to one island: of the islands where ``count`` fit, the one where the fewest
    do. Returns their number, 0 without such an island."""
    chosen, fewest = -1, gpu.shape[1] + 1
    for first in range(gpu.shape[1]):
        fitting = 0
        for g in range(first, gpu.shape[1]):
            fitting += island[g, n] == first and gpu[TAKES, g] >= 0
        if count <= fitting < fewest:
            chosen, fewest = first, fitting
    for g in range(gpu.shape[1]):
        if island[g, n] != chosen:
            gpu[TAKES, g] = np.float32(-1)
    return fewest if chosen >= 0 else 0


@inlined
def same_as_earlier_gpu(g, gpu):
    """Whether a GPU before ``g`` on the node is in the same state."""
    for h in range(g):
        same = gpu[FREE_COMPUTE, h] == gpu[FREE_COMPUTE, g] and gpu[FREE_MEMORY, h] == gpu[FREE_MEMORY, g]
        same = same and gpu[UNTOUCHED, h] == gpu[UNTOUCHED, g]
        if same and gpu[CAPACITY, h] == gpu[CAPACITY, g] and gpu[TAKES, h] == gpu[TAKES, g]:
            return True
    return False


@inlined
def node_fits(n, nodes, request):
    """Whether node ``n`` has everything the request needs except its shares."""
    if nodes.blocked[n] != 0 or nodes.overcommitted[n] != 0:
        return False
    if not (enough(nodes.free_cpu[n], request.exact[0]) and enough(nodes.free_memory[n], request.exact[1])):
        return False
    if request.allowed[nodes.model[n]] == 0 or nodes.max_island[n] < request.amounts[ISLAND]:
        return False
    fits = request.amounts[COUNT] == 0 or request.amounts[SHARING] == nodes.sharing[n]
    for r in range(request.devices.size):
        fits = fits and (request.devices[r] <= 0 or nodes.free_devices[r, n] >= request.devices[r])
        by_plugin = request.devices[r] > 0 and nodes.divisible_pool[r, n] == 0
        if by_plugin and request.amounts[ISLAND] > 0:
            fits = fits and nodes.free_peers[r, n] >= request.devices[r]
    return fits


@inlined
def tightest_gpus(gpu, count):
    """The ``count`` fitting GPUs with the least free, preferring islands with the fewest unused GPUs, as a
    bit mask."""
    chosen = np.int64(0)
    for _ in range(count):
        best, least = -1, np.float32(2)
        for g in range(gpu.shape[1]):
            tighter = gpu[FREE, g] < least
            if best >= 0 and gpu[FREE, g] == least:
                tighter = gpu[UNTOUCHED, g] < gpu[UNTOUCHED, best]
            if tighter and not (chosen >> g) & 1 and gpu[TAKES, g] >= 0:
                best, least = g, gpu[FREE, g]
        if best >= 0:
            chosen |= np.int64(1) << best
    return chosen


@inlined
def shares_on_node(n, request, divisible_pool):
    """The request's shares on node ``n``: their number, and compute milli, MiB and thousandths of memory of
    each. Counted devices are whole GPUs where the node places its GPUs one by one."""
    amounts = request.amounts
    count, share, mib, milli = int(amounts[COUNT]), amounts[COMPUTE], amounts[SHARE_MIB], amounts[SHARE_MILLI]
    for r in range(request.devices.size):
        if divisible_pool[r, n] and request.devices[r] > 0:
            count += request.devices[r]
            share, mib, milli = np.float32(1000), np.float32(0), np.float32(1000)
    return count, share, mib, milli


@inlined
def free_gpu(gpu):
    """Free GPU of a node, in GPUs."""
    free = 0.0
    for g in range(gpu.shape[1]):
        free += gpu[FREE, g]
    return free
