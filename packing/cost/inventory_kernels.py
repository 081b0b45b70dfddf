"""The cost of a request on each node under the inventory policy, for nodes that changed since the last call.

A placement changes one node, so a policy caches the cost per request and node, and the kernel recomputes it
only where the node's generation changed. It branches per node and vectorizes over request types.
"""

import numpy as np

from packing.cost.island_kernels import choose_gpus, islands_cost, load_islands, tie_break
from packing.cost.kernel_args import (
    COUNT,
    CPU,
    ISLAND,
    MEMORY,
    PEERS,
    STEP,
    CachedCost,
    MixTypes,
    Nodes,
    RequestArgs,
    Scratch,
    SlotCounts,
    ValueTables,
)
from packing.cost.node_kernels import (
    CAPACITY,
    FREE,
    FREE_COMPUTE,
    FREE_MEMORY,
    TAKES,
    UNTOUCHED,
    free_gpu,
    load_gpus,
    node_fits,
    same_as_earlier_gpu,
    shares_on_node,
)
from packing.cost.slot_kernels import add_units, set_limits, set_needs, slots_of_units
from packing.jit import inlined, record_kernel


@inlined
def _fill_value(compute, memory, capacity, k, tables):
    """The value from table ``k`` of a GPU with this much free, at the nearest grid point."""
    bins = tables.shape[1] - 1
    i = np.int64(compute * bins / np.float32(1000) + np.float32(0.5))
    j = np.int64(memory * bins / max(capacity, np.float32(1)) + np.float32(0.5))
    return tables[k, min(max(i, 0), bins), min(max(j, 0), bins)]


@inlined
def _fill_gained(chosen, gpu, share, values):
    """Increase of the fill value if ``share`` milli of each of the ``chosen`` GPUs is taken."""
    gained = 0.0
    for g in range(gpu.shape[1]):
        if (chosen >> g) & 1:
            compute, memory, capacity = gpu[FREE_COMPUTE, g], gpu[FREE_MEMORY, g], gpu[CAPACITY, g]
            k = 0
            while k + 1 < values.memory_mib.size and values.memory_mib[k + 1] <= capacity:
                k += 1
            gained -= _fill_value(compute, memory, capacity, k, values.fill)
            gained += _fill_value(compute - share, memory - gpu[TAKES, g], capacity, k, values.fill)
    return gained


@inlined
def _count_lost(chosen, gpu, share, amounts, needs, lost):
    """Set ``lost`` (T,) to the number of shares of each type that no longer fit on the ``chosen`` GPUs once
    ``share`` milli of each is taken."""
    lost[:] = 0
    capacity = np.float32(-1)
    for g in range(gpu.shape[1]):
        if (chosen >> g) & 1:
            compute, memory = gpu[FREE_COMPUTE, g], gpu[FREE_MEMORY, g]
            if gpu[CAPACITY, g] != capacity:
                capacity = gpu[CAPACITY, g]
                set_needs(capacity, amounts, needs)
            add_units(compute, memory, needs, amounts, np.float32(1), lost)
            add_units(compute - share, memory - gpu[TAKES, g], needs, amounts, np.float32(-1), lost)


@inlined
def _price_of_lost(n, counts, amounts, prices, limits, lost):
    """The price of the slots of node ``n`` that are lost with the ``lost`` shares and the new ``limits``.
    Overwrites ``lost``.

    The sum is separate from the vectorized loop, and always in the same order. There are four partial sums,
    because a single one would serialize the additions.
    """
    for t in range(lost.size):
        after = min(slots_of_units(counts.units[n, t] - lost[t], amounts[COUNT, t]), limits[t])
        lost[t] = prices[t] * max(counts.slots[n, t] - after, np.float32(0))
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    for t in range(0, lost.size, 4):
        a, b, c, d = a + lost[t], b + lost[t + 1], c + lost[t + 2], d + lost[t + 3]
    return (a + b) + (c + d)


@inlined
def _take(n, chosen, gpu, share, nodes, asked, devices):
    """The GPU that shares and the ``asked`` devices (R,) take, in GPUs. Sets ``devices`` (R,) to the number
    taken from each pool.

    A pool of divisible GPUs counts whole ones, so it loses a GPU as soon as any part of it is taken.
    """
    size, first_parts = 0.0, 0
    for g in range(gpu.shape[1]):
        if (chosen >> g) & 1:
            size += 0.5 * (share / 1000.0 + gpu[TAKES, g] / max(gpu[CAPACITY, g], np.float32(1)))
            first_parts += gpu[FREE, g] > 0.999
    for r in range(devices.size):
        if nodes.divisible_pool[r, n]:
            devices[r] = max(asked[r], first_parts)
        else:
            devices[r] = asked[r]
            size += asked[r] * nodes.device_gpu[r, n]
    return size


@record_kernel(CachedCost, Nodes, RequestArgs, MixTypes, SlotCounts, ValueTables, Scratch)
def inventory_cost(cached, nodes, request, types, counts, values, scratch):
    """Bring ``cached`` up to date: the cost in GPUs, infinite where the request does not fit, and the terms
    slots, fill, stranding and islands, which add up to the unrounded cost with ``device``. ``counts`` must be
    up to date."""
    asked, gpu, devices, limits = request.amounts, scratch.gpu, scratch.devices, scratch.limits
    for n in range(cached.seen.size):
        if cached.seen[n] == nodes.generation[n]:
            continue
        cached.seen[n], cached.cost[n], cached.gpus[n] = nodes.generation[n], np.inf, 0
        if not node_fits(n, nodes, request):
            continue
        count, share, mib, milli = shares_on_node(n, request, nodes.divisible_pool)
        if load_gpus(n, nodes, count, share, mib, milli, asked[ISLAND], gpu) < count:
            continue
        load_islands(n, nodes, gpu)
        cpu_left, memory_left = nodes.cpu[n] - asked[CPU], nodes.node_memory[n] - asked[MEMORY]
        unused = free_gpu(gpu)
        stranded = max(unused - nodes.cpu[n] / values.cpu_per_gpu, 0.0)
        least, peers = np.inf, np.float32(0)
        for g in range(gpu.shape[1] if count == 1 else 1):
            if count == 1 and (gpu[TAKES, g] < 0 or same_as_earlier_gpu(g, gpu)):
                continue
            chosen = np.int64(1) << g if count == 1 else choose_gpus(n, nodes, count, asked[PEERS], gpu)
            size = _take(n, chosen, gpu, share, nodes, request.devices, devices)
            set_limits(n, cpu_left, memory_left, nodes, devices, types, limits)
            _count_lost(chosen, gpu, share, types.amounts, scratch.needs, scratch.lost)
            slots = _price_of_lost(n, counts, types.amounts, values.prices, limits, scratch.lost)
            fill = -values.fill_weight * _fill_gained(chosen, gpu, share, values)
            over = unused - size - cpu_left / values.cpu_per_gpu
            stranding = values.stranding_weight * (max(over, 0.0) - stranded)
            islands = islands_cost(n, nodes, chosen, request, types, counts, values.prices, limits, gpu)
            cost = slots + fill + stranding + islands + cached.device[n]
            if cost < least - 1e-6 or (cost < least + 1e-6 and gpu[UNTOUCHED, g] < peers):
                peers = gpu[UNTOUCHED, g]
                least, cached.gpus[n] = cost, chosen
                cached.terms[0, n], cached.terms[1, n] = slots, fill
                cached.terms[2, n], cached.terms[3, n] = stranding, islands
        rest = unused + nodes.cpu[n] / values.cpu_per_gpu
        tie = tie_break(n, nodes, cached.gpus[n], rest, request, gpu)
        cached.cost[n] = (np.ceil(least / STEP) + tie) * STEP
