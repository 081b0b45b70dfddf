"""Compiled functions that look at one node at a time: what placing a request there would change.

A placement changes one node, so a policy keeps its cost per request and node and asks again only where the
node's generation moved on. These kernels therefore branch per node and vectorise over request types.
They know of a node only what ``Nodes`` holds, of a request only ``Ask``, of the demand mix only ``Types``.
"""

from __future__ import annotations

import numpy as np

from packing.compiled import F4, I8, inlined, kernel, write
from packing.node_kernels import (
    CAPACITY,
    FREE,
    FREE_COMPUTE,
    FREE_MEMORY,
    TAKES,
    as_shares,
    free_gpu,
    like_another,
    load,
    node_fits,
    tightest,
)
from packing.records import (
    ASK,
    COMPUTE,
    COUNT,
    CPU,
    DIVISION,
    INVENTORY,
    ISLAND,
    MEMORY,
    MOST,
    NODES,
    SCRATCH,
    SHARE_MIB,
    SHARE_MILLI,
    TYPES,
    WEIGHTS,
    WORTH,
)

_BIG = np.float32(1e9)
_TINY = np.float32(1e-3)


@inlined
def _set_needs(capacity, amounts, needs):
    """MiB that a share of each type takes (T,) on a GPU of this capacity."""
    for t in range(needs.size):
        needs[t] = max(amounts[SHARE_MIB, t] + amounts[SHARE_MILLI, t] * capacity / np.float32(1000), _TINY)


@inlined
def _add_units(compute, memory, needs, amounts, sign, units):
    """Add to ``units`` (T,), ``sign`` times, how many shares of each type a GPU with this much free holds."""
    for t in range(units.size):
        held = np.floor(min(compute / amounts[COMPUTE, t], memory / needs[t]) + np.float32(1e-4))
        units[t] += sign * min(max(held, np.float32(0)), amounts[MOST, t])


@inlined
def _set_limits(n, cpu, node_memory, free, devices, amounts, needed, limits):
    """What is left of CPU, memory and counted devices, in requests of each type (T,), CPU and memory
    unrounded."""
    for t in range(limits.size):  # a tiny amount stands for none: nothing limits that
        by_cpu = cpu / amounts[CPU, t] if amounts[CPU, t] > _TINY else _BIG
        by_memory = node_memory / amounts[MEMORY, t] if amounts[MEMORY, t] > _TINY else _BIG
        limits[t] = max(min(by_cpu, by_memory), np.float32(0))
    for r in range(needed.shape[0]):
        left = np.float32(max(free[r, n] - devices[r], 0))
        for t in range(limits.size):
            limits[t] = min(limits[t], np.floor(left / needed[r, t]))


@kernel(write(I8, 1), NODES, TYPES, INVENTORY, SCRATCH)
def count_slots(seen, nodes, types, inventory, scratch):
    """Recount the slots of every node whose generation is not the one ``seen`` (N,)."""
    generation, cpu, node_memory, model, max_island, overcommitted, blocked = nodes[:7]
    compute, memory, memory_capacity, divisible, free, _, _, divided = nodes[7:]
    amounts, needed, allowed = types
    units, slots, totals = inventory
    limits, needs, held, _, devices = scratch
    devices[:] = 0
    for n in range(seen.size):
        if seen[n] == generation[n]:
            continue
        seen[n] = generation[n]
        held[:] = 0
        for g in range(compute.shape[0]):
            if divisible[g, n]:
                _set_needs(memory_capacity[g, n], amounts, needs)
                _add_units(compute[g, n], memory[g, n], needs, amounts, np.float32(1), held)
        _set_limits(n, cpu[n], node_memory[n], free, devices, amounts, needed, limits)
        takes_any = blocked[n] == 0 and overcommitted[n] == 0
        for t in range(limits.size):
            shares = amounts[MOST, t] > 0
            if not shares:  # asks for no share: GPUs do not bound it
                held[t] = _BIG
            usable = takes_any and max_island[n] >= amounts[ISLAND, t]
            usable = usable and (not shares or amounts[DIVISION, t] == divided[n])
            now = min(np.floor(held[t] / amounts[COUNT, t]), limits[t])
            now = allowed[model[n], t] * now if usable else np.float32(0)
            totals[t] += now - slots[n, t]
            units[n, t], slots[n, t] = held[t], now


@inlined
def _fill_of(compute, memory, capacity, k, tables):
    """The value in table ``k`` of a GPU with this much free, at the nearest grid point."""
    bins = tables.shape[1] - 1
    i = np.int64(compute * bins / np.float32(1000) + np.float32(0.5))
    j = np.int64(memory * bins / max(capacity, np.float32(1)) + np.float32(0.5))
    return tables[k, min(max(i, 0), bins), min(max(j, 0), bins)]


@inlined
def _softplus(x, width):
    """width * log(1 + exp(x / width)), without overflow and without work far from the bend."""
    return max(x, 0.0) + (width * np.log1p(np.exp(-abs(x) / width)) if abs(x) < 16 * width else 0.0)


@inlined
def _count_lost(chosen, gpu, share, amounts, needs, lost):
    """Shares of each type (T,) that the ``chosen`` GPUs no longer hold once ``share`` milli of each goes."""
    lost[:] = 0
    for g in range(gpu.shape[1]):
        if (chosen >> g) & 1:
            compute, memory = gpu[FREE_COMPUTE, g], gpu[FREE_MEMORY, g]
            _set_needs(gpu[CAPACITY, g], amounts, needs)
            _add_units(compute, memory, needs, amounts, np.float32(1), lost)
            _add_units(compute - share, memory - gpu[TAKES, g], needs, amounts, np.float32(-1), lost)


@inlined
def _price_lost(n, units, slots, amounts, prices, limits, lost):
    """Priced slots of a node that go with the ``lost`` shares and the new ``limits``; overwrites ``lost``.

    Summed apart from the loop that vectorises, always in the same order.
    """
    for t in range(lost.size):
        after = min(np.floor((units[n, t] - lost[t]) / amounts[COUNT, t]), limits[t])
        lost[t] = prices[t] * max(slots[n, t] - after, np.float32(0))
    gone = 0.0
    for t in range(lost.size):
        gone += lost[t]
    return gone


@inlined
def _fill_gained(chosen, gpu, share, memory_mib, tables):
    """Rise of the fill if ``share`` milli of each of the ``chosen`` GPUs is taken."""
    fill = 0.0
    for g in range(gpu.shape[1]):
        if (chosen >> g) & 1:
            compute, memory, capacity = gpu[FREE_COMPUTE, g], gpu[FREE_MEMORY, g], gpu[CAPACITY, g]
            k = 0
            while k + 1 < memory_mib.size and memory_mib[k + 1] <= capacity:
                k += 1
            fill -= _fill_of(compute, memory, capacity, k, tables)
            fill += _fill_of(compute - share, memory - gpu[TAKES, g], capacity, k, tables)
    return fill


@inlined
def _taken(n, chosen, gpu, share, asked_devices, device_gpu, divides, devices):
    """GPU taken, in GPUs, by shares and counted devices; ``devices`` (R,) become what goes of each pool.

    A pool of whole divisible GPUs loses every GPU that is cut for the first time.
    """
    size, fresh = 0.0, 0
    for g in range(gpu.shape[1]):
        if (chosen >> g) & 1:
            size += 0.5 * (share / 1000.0 + gpu[TAKES, g] / max(gpu[CAPACITY, g], np.float32(1)))
            fresh += gpu[FREE, g] > 0.999
    for r in range(devices.size):
        devices[r] = max(asked_devices[r], fresh) if divides[r, n] else asked_devices[r]
        if not divides[r, n]:
            size += asked_devices[r] * device_gpu[r, n]
    return size


@kernel(
    write(I8, 1),
    NODES,
    ASK,
    TYPES,
    INVENTORY,
    WORTH,
    WEIGHTS,
    SCRATCH,
    write(F4, 1),
    write(I8, 1),
    write(F4, 2),
)
def inventory_cost(seen, nodes, ask, types, inventory, worth, weights, scratch, cost, gpus, terms):
    """Cost (N,) in GPUs of the request where a node changed since ``seen``, infinite where it does not fit.

    ``gpus`` (N,) are the GPUs it takes, as a bit mask; ``terms`` (3, N) slots, fill and stranding as they
    add up to the cost before rounding.
    """
    generation, cpu, node_memory, model, max_island, overcommitted, blocked = nodes[:7]
    compute, memory, memory_capacity, divisible, free, device_gpu, divides, divided = nodes[7:]
    asked, allowed, asked_devices = ask
    amounts, needed, _ = types
    units, slots, _ = inventory
    prices, tables, memory_mib = worth
    limits, needs, lost, gpu, devices = scratch
    for n in range(seen.size):
        if seen[n] == generation[n]:
            continue
        seen[n], cost[n], gpus[n] = generation[n], np.inf, 0
        if not node_fits(
            n, cpu, node_memory, model, max_island, overcommitted, blocked, free, divided,
            asked, allowed, asked_devices,
        ):  # fmt: skip
            continue
        count, share, mib, milli = as_shares(n, asked, asked_devices, divides)
        if load(n, compute, memory, memory_capacity, divisible, share, mib, milli, gpu) < count:
            continue
        left, unused = cpu[n] - asked[CPU], free_gpu(gpu)
        stranded = _softplus(unused - cpu[n] / weights.cpu_per_gpu, weights.width)
        least = np.inf
        for g in range(gpu.shape[1] if count == 1 else 1):
            if count == 1 and (gpu[TAKES, g] < 0 or like_another(g, gpu)):
                continue
            chosen = np.int64(1) << g if count == 1 else tightest(gpu, count)
            size = _taken(n, chosen, gpu, share, asked_devices, device_gpu, divides, devices)
            _set_limits(n, left, node_memory[n] - asked[MEMORY], free, devices, amounts, needed, limits)
            _count_lost(chosen, gpu, share, amounts, needs, lost)
            gone = _price_lost(n, units, slots, amounts, prices, limits, lost)
            fill = -weights.fill * _fill_gained(chosen, gpu, share, memory_mib, tables)
            over = unused - size - left / weights.cpu_per_gpu
            strand = weights.stranding * (_softplus(over, weights.width) - stranded)
            if gone + fill + strand < least - 1e-6:
                least, gpus[n] = gone + fill + strand, chosen
                terms[0, n], terms[1, n], terms[2, n] = gone, fill, strand
        cost[n] = np.ceil(least / weights.step) * weights.step
