"""Compiled functions that look at one node at a time: what placing a request there would change.

A placement changes one node, so a policy keeps its cost per request and node and asks again only where the
node's generation moved on. These kernels therefore branch per node and vectorise over request types.
They know of a node only what ``Nodes`` holds, of a request only ``RequestArgs``, of the demand mix only ``MixTypes``.
"""

from __future__ import annotations

import numpy as np

from packing.cost.kernel_args import (
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
    TWINS,
    TYPES,
    WEIGHTS,
    WORTH,
)
from packing.cost.node_kernels import (
    CAPACITY,
    FREE,
    FREE_COMPUTE,
    FREE_MEMORY,
    TAKES,
    as_shares,
    free_gpu,
    keep_one_island,
    like_another,
    load,
    node_fits,
    tightest,
)
from packing.jit import F4, I8, inlined, kernel, write

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
def _set_limits(n, cpu, node_memory, free, devices, amounts, needed, needs_any, limits):
    """What is left of CPU, memory and counted devices, in requests of each type (T,), CPU and memory
    unrounded, but 0 where it is less than one."""
    for t in range(limits.size):  # a tiny amount stands for none: nothing limits that
        by_cpu = cpu / amounts[CPU, t] if amounts[CPU, t] > _TINY else _BIG
        by_memory = node_memory / amounts[MEMORY, t] if amounts[MEMORY, t] > _TINY else _BIG
        left = min(by_cpu, by_memory)
        limits[t] = left if left >= np.float32(1) else np.float32(0)
    for i in range(needs_any.size):
        r = needs_any[i]
        devices_left = np.float32(max(free[r, n] - devices[r], 0))
        for t in range(limits.size):
            by_devices = np.floor(devices_left / needed[r, t]) if needed[r, t] > 0 else _BIG
            limits[t] = min(limits[t], by_devices)


@inlined
def _twin(n, generation, first, since):
    """A node before ``n`` that is still in the same state, or ``n``."""
    twin = first[n]
    return twin if since[n] == generation[n] and since[twin] == generation[twin] else n


@inlined
def _recount(
    seen, generation, cpu, node_memory, model, max_island, overcommitted, blocked, compute, memory,
    memory_capacity, divisible, free, divided, amounts, needed, allowed, needs_any,
    units, slots, totals, first, since, limits, needs, held, devices,
):  # fmt: skip
    """See ``count_slots``."""
    devices[:] = 0
    for n in range(seen.size):
        if seen[n] == generation[n]:
            continue
        seen[n] = generation[n]
        twin = _twin(n, generation, first, since)
        if twin != n:
            for t in range(limits.size):
                totals[t] += slots[twin, t] - slots[n, t]
                units[n, t], slots[n, t] = units[twin, t], slots[twin, t]
            continue
        held[:] = 0
        capacity = np.float32(-1)
        for g in range(compute.shape[0]):
            if divisible[g, n]:
                if memory_capacity[g, n] != capacity:
                    capacity = memory_capacity[g, n]
                    _set_needs(capacity, amounts, needs)
                _add_units(compute[g, n], memory[g, n], needs, amounts, np.float32(1), held)
        _set_limits(n, cpu[n], node_memory[n], free, devices, amounts, needed, needs_any, limits)
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


@kernel(write(I8, 1), *NODES, *TYPES, *INVENTORY, *TWINS, *SCRATCH)
def count_slots(
    counted, generation, cpu, node_memory, model, max_island, overcommitted, blocked, compute, memory,
    memory_capacity, divisible, free, device_gpu, divides, divided, free_cpu, free_memory, island,
    amounts, needed, allowed, needs_any,
    units, slots, totals, first, since, limits, needs, held, gpu, devices, states, gone,
):  # fmt: skip
    """Recount the slots of every node whose generation is not the one ``counted`` (N,); the rest are fields
    of ``Nodes``, ``MixTypes``, ``Inventory``, ``IdenticalNodes`` and ``Scratch``."""
    _recount(
        counted, generation, cpu, node_memory, model, max_island, overcommitted, blocked, compute, memory,
        memory_capacity, divisible, free, divided, amounts, needed, allowed, needs_any,
        units, slots, totals, first, since, limits, needs, held, devices,
    )  # fmt: skip


@inlined
def _fill_of(compute, memory, capacity, k, tables):
    """The value in table ``k`` of a GPU with this much free, at the nearest grid point."""
    bins = tables.shape[1] - 1
    i = np.int64(compute * bins / np.float32(1000) + np.float32(0.5))
    j = np.int64(memory * bins / max(capacity, np.float32(1)) + np.float32(0.5))
    return tables[k, min(max(i, 0), bins), min(max(j, 0), bins)]


@inlined
def _lost_on(g, gpu, share, amounts, needs, states, gone):
    """Where in ``gone`` (S, T) it stands how many shares of each type GPU ``g`` no longer holds once
    ``share`` milli of it goes. Counted only if GPUs in other states have taken the place since the last
    time: most GPUs are in one of a few states."""
    compute, memory, capacity, takes = (
        gpu[FREE_COMPUTE, g],
        gpu[FREE_MEMORY, g],
        gpu[CAPACITY, g],
        gpu[TAKES, g],
    )
    mixed = np.int64(compute) * 7 + np.int64(memory) * 5 + np.int64(share) * 3 + np.int64(takes)
    at = (mixed ^ (mixed >> 5)) & (states.shape[0] - 1)
    known, lost = states[at], gone[at]
    if not (
        known[0] == compute
        and known[1] == memory
        and known[2] == capacity
        and known[3] == share
        and known[4] == takes
    ):
        known[0], known[1], known[2], known[3], known[4] = compute, memory, capacity, share, takes
        lost[:] = 0
        _set_needs(capacity, amounts, needs)
        _add_units(compute, memory, needs, amounts, np.float32(1), lost)
        _add_units(compute - share, memory - takes, needs, amounts, np.float32(-1), lost)
    return at


@inlined
def _count_lost(chosen, gpu, share, amounts, needs, states, gone, lost):
    """Shares of each type (T,) that the ``chosen`` GPUs no longer hold once ``share`` milli of each goes."""
    lost[:] = 0
    for g in range(gpu.shape[1]):
        if (chosen >> g) & 1:
            at = _lost_on(g, gpu, share, amounts, needs, states, gone)
            for t in range(lost.size):
                lost[t] += gone[at, t]


@inlined
def _price_lost(n, units, slots, amounts, prices, limits, lost):
    """Priced slots of a node that go with the ``lost`` shares and the new ``limits``; overwrites ``lost``.

    Summed apart from the loop that vectorises, always in the same order: four sums, as one would wait for
    every addition. The number of types is a multiple of ``records.LANES``.
    """
    for t in range(lost.size):
        after = min(np.floor((units[n, t] - lost[t]) / amounts[COUNT, t]), limits[t])
        lost[t] = prices[t] * max(slots[n, t] - after, np.float32(0))
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    for t in range(0, lost.size, 4):
        a, b, c, d = a + lost[t], b + lost[t + 1], c + lost[t + 2], d + lost[t + 3]
    return (a + b) + (c + d)


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
    write(F4, 1),
    write(I8, 1),
    write(F4, 2),
    write(I8, 1),
    *NODES,
    *ASK,
    *TYPES,
    *INVENTORY,
    *WORTH,
    *WEIGHTS,
    *TWINS,
    *SCRATCH,
)
def inventory_cost(
    seen, cost, gpus, terms, counted,
    generation, cpu, node_memory, model, max_island, overcommitted, blocked, compute, memory,
    memory_capacity, divisible, free, device_gpu, divides, divided, free_cpu, free_memory, island,
    exact, asked, allowed, asked_devices, amounts, needed, permitted, needs_any,
    units, slots, totals, prices, tables, memory_mib, fill_weight, stranding, cpu_per_gpu, step, first, since,
    limits, needs, lost, gpu, devices, states, gone,
):  # fmt: skip
    """Cost (N,) in GPUs of the request where a node changed since ``seen``, infinite where it does not fit.

    ``gpus`` (N,) are the GPUs it takes, as a bit mask; ``terms`` (3, N) slots, fill and stranding as they
    add up to the cost before rounding. The slots are recounted first (see ``count_slots``). The rest are
    fields of ``Nodes``, ``RequestArgs``, ``MixTypes``, ``Inventory``, ``ValueTables``, ``Weights``, ``IdenticalNodes`` and ``Scratch``.
    """
    _recount(
        counted, generation, cpu, node_memory, model, max_island, overcommitted, blocked, compute, memory,
        memory_capacity, divisible, free, divided, amounts, needed, permitted, needs_any,
        units, slots, totals, first, since, limits, needs, lost, devices,
    )  # fmt: skip
    for n in range(seen.size):
        if seen[n] == generation[n]:
            continue
        seen[n], cost[n], gpus[n] = generation[n], np.inf, 0
        twin = _twin(n, generation, first, since)
        if twin != n:
            cost[n], gpus[n] = cost[twin], gpus[twin]
            terms[0, n], terms[1, n], terms[2, n] = terms[0, twin], terms[1, twin], terms[2, twin]
            continue
        if not node_fits(
            n, free_cpu, free_memory, model, max_island, overcommitted, blocked, free, divided,
            exact, asked, allowed, asked_devices,
        ):  # fmt: skip
            continue
        count, share, mib, milli = as_shares(n, asked, asked_devices, divides)
        fitting = load(n, compute, memory, memory_capacity, divisible, share, mib, milli, gpu)
        if count > 0 and asked[ISLAND] > 0:
            fitting = keep_one_island(n, island, count, gpu)
        if fitting < count:
            continue
        left, unused = cpu[n] - asked[CPU], free_gpu(gpu)
        stranded = max(unused - cpu[n] / cpu_per_gpu, 0.0)
        least = np.inf
        for g in range(gpu.shape[1] if count == 1 else 1):
            if count == 1 and (gpu[TAKES, g] < 0 or like_another(g, gpu)):
                continue
            chosen = np.int64(1) << g if count == 1 else tightest(gpu, count)
            size = _taken(n, chosen, gpu, share, asked_devices, device_gpu, divides, devices)
            memory_left = node_memory[n] - asked[MEMORY]
            _set_limits(n, left, memory_left, free, devices, amounts, needed, needs_any, limits)
            _count_lost(chosen, gpu, share, amounts, needs, states, gone, lost)
            priced = _price_lost(n, units, slots, amounts, prices, limits, lost)
            fill = -fill_weight * _fill_gained(chosen, gpu, share, memory_mib, tables)
            over = unused - size - left / cpu_per_gpu
            strand = stranding * (max(over, 0.0) - stranded)
            if priced + fill + strand < least - 1e-6:
                least, gpus[n] = priced + fill + strand, chosen
                terms[0, n], terms[1, n], terms[2, n] = priced, fill, strand
        rest = unused + cpu[n] / cpu_per_gpu
        cost[n] = (np.ceil(least / step) + rest / (1 + rest)) * step


@inlined
def _state_hash(n, cpu, node_memory, compute, memory, free):
    """A number that equal nodes have in common, and others hardly."""
    found = np.int64(cpu[n]) * 1_000_003 + np.int64(node_memory[n])
    for g in range(compute.shape[0]):
        found = found * 1_000_003 + np.int64(compute[g, n]) * 65_537 + np.int64(memory[g, n])
    for r in range(free.shape[0]):
        found = found * 1_000_003 + free[r, n]
    return found ^ (found >> 29)


@inlined
def _same_state(
    n, m, cpu, node_memory, model, max_island, overcommitted, blocked, compute, memory, memory_capacity,
    divisible, free, device_gpu, divides, divided, free_cpu, free_memory, island,
):  # fmt: skip
    """Whether nodes ``n`` and ``m`` do not differ in anything but their generation."""
    same = cpu[n] == cpu[m] and node_memory[n] == node_memory[m] and model[n] == model[m]
    same = same and free_cpu[n] == free_cpu[m] and free_memory[n] == free_memory[m]
    same = same and max_island[n] == max_island[m] and overcommitted[n] == overcommitted[m]
    same = same and blocked[n] == blocked[m] and divided[n] == divided[m]
    if not same:
        return False
    for g in range(compute.shape[0]):
        same = same and compute[g, n] == compute[g, m] and memory[g, n] == memory[g, m]
        same = same and memory_capacity[g, n] == memory_capacity[g, m] and divisible[g, n] == divisible[g, m]
        same = same and island[g, n] == island[g, m]
    for r in range(free.shape[0]):
        same = same and free[r, n] == free[r, m] and device_gpu[r, n] == device_gpu[r, m]
        same = same and divides[r, n] == divides[r, m]
    return same


@kernel(write(I8, 1), *TWINS, *NODES)
def find_twins(
    table, first, since, generation, cpu, node_memory, model, max_island, overcommitted, blocked, compute,
    memory, memory_capacity, divisible, free, device_gpu, divides, divided, free_cpu, free_memory, island,
):  # fmt: skip
    """Find for every node the first one in the same state. ``table`` is scratch of a size that is a power of
    2 above N; the rest are fields of ``IdenticalNodes`` and ``Nodes``."""
    table[:] = -1
    for n in range(first.size):
        first[n], since[n] = n, generation[n]
        at = _state_hash(n, cpu, node_memory, compute, memory, free) & (table.size - 1)
        while table[at] >= 0:
            m = table[at]
            if _same_state(
                n, m, cpu, node_memory, model, max_island, overcommitted, blocked, compute, memory,
                memory_capacity, divisible, free, device_gpu, divides, divided, free_cpu, free_memory, island,
            ):  # fmt: skip
                first[n] = m
                break
            at = (at + 1) & (table.size - 1)
        else:
            table[at] = n
