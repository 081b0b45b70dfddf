"""Parts of the row kernels: one node copied to a small array, and whether and where a request fits there.

They are compiled into the kernels of other files, so after an edit here a cache of those must be cleared.
"""

from __future__ import annotations

import numpy as np

from packing.cost.kernel_args import COMPUTE, COUNT, DIVISION, ISLAND, SHARE_MIB, SHARE_MILLI
from packing.jit import inlined

FREE_COMPUTE, FREE_MEMORY, CAPACITY, TAKES, FREE = range(5)
"""Rows of ``gpu`` (5, G), one node's GPUs: free milli and MiB, MiB in all, MiB a share takes (negative: it
does not fit), and the free part of the GPU, the mean of compute and memory."""


@inlined
def load(n, compute, memory, memory_capacity, divisible, share, mib, milli, gpu):
    """Copy the GPUs of node ``n`` to ``gpu`` (5, G) with what one share of the request takes (``share`` milli
    of compute, ``mib`` + ``milli`` thousandths of memory); how many of them it fits."""
    fitting = 0
    capacity, takes, per_mib = np.float32(-1), np.float32(0), np.float32(0)
    for g in range(gpu.shape[1]):
        if memory_capacity[g, n] != capacity:  # as a rule once a node
            capacity = memory_capacity[g, n]
            takes = mib + np.float32(np.int64(capacity) * np.int64(milli) // 1000)
            per_mib = np.float32(0.5) / capacity if capacity > 0 else np.float32(0)
        enough = compute[g, n] >= max(share, np.float32(1)) and memory[g, n] >= takes
        fits = divisible[g, n] != 0 and enough
        gpu[FREE_COMPUTE, g], gpu[FREE_MEMORY, g], gpu[CAPACITY, g] = compute[g, n], memory[g, n], capacity
        gpu[TAKES, g] = takes if fits else np.float32(-1)
        gpu[FREE, g] = compute[g, n] * np.float32(0.0005) + memory[g, n] * per_mib
        fitting += fits
    return fitting


@inlined
def like_another(g, gpu):
    """Whether a GPU before ``g`` on the node is in the same state."""
    for h in range(g):
        same = gpu[FREE_COMPUTE, h] == gpu[FREE_COMPUTE, g] and gpu[FREE_MEMORY, h] == gpu[FREE_MEMORY, g]
        if same and gpu[CAPACITY, h] == gpu[CAPACITY, g] and gpu[TAKES, h] == gpu[TAKES, g]:
            return True
    return False


@inlined
def keep_one_island(n, island, count, gpu):
    """Let no GPU of node ``n`` fit but those of one island: of the islands in which ``count`` fit the one
    with the fewest. How many that are, 0 where there is no such island."""
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
def node_fits(
    n, free_cpu, free_memory, model, max_island, overcommitted, blocked, free, divided, exact, amounts,
    allowed, devices,
):  # fmt: skip
    """Whether all but the shares fits on node ``n``."""
    if blocked[n] != 0 or overcommitted[n] != 0:
        return False
    if (exact[0] > 0 and free_cpu[n] < exact[0]) or (exact[1] > 0 and free_memory[n] < exact[1]):
        return False
    if allowed[model[n]] == 0 or max_island[n] < amounts[ISLAND]:
        return False
    fits = amounts[COUNT] == 0 or amounts[DIVISION] == divided[n]
    for r in range(devices.size):
        fits = fits and (devices[r] <= 0 or free[r, n] >= devices[r])
    return fits


@inlined
def tightest(gpu, count):
    """The ``count`` fitting GPUs with the least free, lowest index on ties, as a bit mask."""
    chosen = np.int64(0)
    for _ in range(count):
        best, least = -1, np.float32(2)
        for g in range(gpu.shape[1]):
            if not (chosen >> g) & 1 and gpu[TAKES, g] >= 0 and gpu[FREE, g] < least:
                best, least = g, gpu[FREE, g]
        if best >= 0:
            chosen |= np.int64(1) << best
    return chosen


@inlined
def as_shares(n, asked, asked_devices, divides):
    """The request's shares on node ``n``: how many, then compute, MiB and thousandths of memory of each.
    Counted devices of a node that divides its GPUs are whole GPUs there."""
    count, share, mib, milli = int(asked[COUNT]), asked[COMPUTE], asked[SHARE_MIB], asked[SHARE_MILLI]
    for r in range(asked_devices.size):
        if divides[r, n] and asked_devices[r] > 0:
            count += asked_devices[r]
            share, mib, milli = np.float32(1000), np.float32(0), np.float32(1000)
    return count, share, mib, milli


@inlined
def free_gpu(gpu):
    """Free GPU of a node in GPUs."""
    free = 0.0
    for g in range(gpu.shape[1]):
        free += gpu[FREE, g]
    return free
