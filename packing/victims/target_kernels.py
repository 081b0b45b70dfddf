"""What must be freed before a request fits: rows that every answer needs, and GPUs among which it may choose.

A *choice* is a number of GPUs (in one NVLink island, or any). A *target* of a choice is a GPU with what must
be freed of it, and for MIG on demand one of the windows that the instance could take.
"""

import numpy as np

from packing.fleet.fit_kernels import enough, share_mib
from packing.jit import inlined
from packing.victims.cost_kernels import add, assign, compare, compare_ratios
from packing.victims.unit_kernels import can_leave

_CPU, _MEMORY, _FIRST_POOL = 0, 1, 2


@inlined
def set_base(view, asked, held, leaving, work):
    """Write what is needed whatever GPU is chosen. False if the victims do not free it."""
    victims, rows, n = held.gpus.size, held.row_start.size - 1, leaving.numbers[0]
    assign(work.base[:rows], leaving.overcommitted)
    for v in range(victims):
        work.base[rows + v] = leaving.required[v]
    cpu, memory = asked.cpu_and_memory[0], asked.cpu_and_memory[1]
    if not enough(view.free_cpu[n], cpu):
        work.base[_CPU] = max(work.base[_CPU], cpu - view.free_cpu[n])
    if not enough(view.free_memory[n], memory):
        work.base[_MEMORY] = max(work.base[_MEMORY], memory - view.free_memory[n])
    for d in range(asked.devices.size):
        for i in range(held.pools.size):
            if held.pools[i] == asked.devices[d]:
                missing = asked.device_counts[d] - np.int64(view.free_devices[asked.devices[d], n])
                work.base[_FIRST_POOL + i] = max(work.base[_FIRST_POOL + i], missing)
    for row in range(rows + victims):  # noqa: SIM110 (numba would compile a generator)
        if work.base[row] > work.available[row]:
            return False
    return True


@inlined
def list_choices(view, asked, held, leaving, work):
    """Write all choices and their targets. False if one of them cannot be met."""
    n, named = leaving.numbers[0], leaving.numbers[1]
    work.outcome[2:5] = 0
    island = asked.share[4] != 0
    if asked.share[0] > 0 and not _add_choice(
        view, held, leaving, work, asked.share[0], asked.share, named, island, False
    ):
        return False
    for d in range(asked.devices.size):
        for i in range(held.divisible.size):
            if held.divisible[i] != asked.devices[d]:
                continue
            count = np.int64(asked.device_counts[d])
            if island and not _add_choice(view, held, leaving, work, count, asked.whole, named, True, False):
                return False
            if view.free_devices[asked.devices[d], n] < count and not _add_choice(
                view, held, leaving, work, count, asked.whole, held.divisible_gpus[i], False, True
            ):
                return False
    return True


@inlined
def _add_choice(view, held, leaving, work, count, share, gpus, island, untouched):
    """Add the choice of ``count`` of these ``gpus`` (a mask) for such a share each, or without any share."""
    n, choice, first = leaving.numbers[0], work.outcome[4], work.outcome[2]
    work.outcome[4] += 1
    for g in range(held.slices.size):
        if (gpus >> g) & 1 == 0 or view.shareable[g, n] == 0:
            continue
        milli = max(share[1], 1)
        mib = np.int64(share_mib(view.memory_capacity[g, n], np.float32(share[2]), np.float32(share[3])))
        if untouched:
            milli = np.int64(view.compute_capacity[g, n])
            mib = np.int64(view.memory_capacity[g, n])
        group = np.int64(view.island[g, n]) if island else 0
        if held.slices[g] == 0:
            _add_target(view, held, leaving, work, choice, g, group, milli, mib, np.int64(0), count)
            continue
        for p in range(held.place_gpu.size):
            if _is_smallest_place(held, g, p, milli, mib):
                _add_target(
                    view, held, leaving, work, choice, g, group, milli, mib, held.place_mask[p], count
                )
    end = work.outcome[2]
    work.choice[choice, 0], work.choice[choice, 1] = count, first
    work.choice[choice, 2], work.choice[choice, 3] = end, island
    _sort_targets(work, first, end)
    return _has_enough(work, first, end, count)


@inlined
def _is_smallest_place(held, g, p, milli, mib):
    """Whether a place is on this GPU, large enough, and no other such place takes only a part of it."""
    if held.place_gpu[p] != g or held.place_milli[p] < milli or held.place_mib[p] < mib:
        return False
    for q in range(held.place_gpu.size):
        if q == p or held.place_gpu[q] != g or held.place_milli[q] < milli or held.place_mib[q] < mib:
            continue
        inside = held.place_mask[q] & ~held.place_mask[p] == 0
        if inside and (held.place_mask[q] != held.place_mask[p] or q < p):
            return False
    return True


@inlined
def _add_target(view, held, leaving, work, choice, g, group, milli, mib, window, count):
    """Add what must be freed of a GPU, unless the victims cannot free it."""
    t, n, row = work.outcome[2], leaving.numbers[0], held.first[g]
    work.target_start[t] = work.outcome[3]
    _add_need(work, row, 1 - np.int64(view.share_slots[g, n]))
    if held.slices[g] == 0:
        _add_need(work, row + 1, milli - np.int64(view.compute[g, n]))
        _add_need(work, row + 2, mib - np.int64(view.memory[g, n]))
    for place in range(held.slices[g]):
        if (window >> place) & 1:
            _add_need(work, row + 1 + place, np.int64(leaving.slice_holders[row + 1 + place]))
    work.target_start[t + 1] = work.outcome[3]
    for e in range(work.target_start[t], work.target_start[t + 1]):
        if work.target_need[e] > work.available[work.target_row[e]]:
            work.outcome[3] = work.target_start[t]
            return
    work.target[t, 0], work.target[t, 1], work.target[t, 2] = choice, g, group
    _set_bound(held, work, t, count)
    work.outcome[2] += 1


@inlined
def _add_need(work, row, amount):
    if amount > 0:
        end = work.outcome[3]
        work.target_row[end], work.target_need[end] = row, amount
        work.outcome[3] += 1


@inlined
def _set_bound(held, work, t, count):
    """Write a lower bound of what a target costs. A victim on several GPUs counts with a part of its cost,
    so that the bounds of different targets of a choice add up."""
    bound, best = work.target_bound[t], work.vectors[2]
    bound[:] = 0
    first, end = work.target_start[t], work.target_start[t + 1]
    _add_indispensable(held, work, bound, first, end, count)
    assign(best, bound)
    for e in range(first, end):
        row = work.target_row[e]
        missing = work.target_need[e]
        for h in range(held.row_start[row], held.row_start[row + 1]):
            if work.mark[held.holder[h]] == 1:
                missing -= held.holder_amount[h]
        if missing > 0:
            assign(work.vectors[1], bound)
            _add_fraction(held, work, row, missing, count)
            if compare(work.vectors[1], best) > 0:
                assign(best, work.vectors[1])
    assign(bound, best)
    for e in range(first, end):
        row = work.target_row[e]
        for h in range(held.row_start[row], held.row_start[row + 1]):
            work.mark[held.holder[h]] = 0


@inlined
def _add_indispensable(held, work, bound, first, end, count):
    """Mark the victims without whom a row of a target cannot be met, and add what they cost."""
    victims = held.gpus.size
    for e in range(first, end):
        row = work.target_row[e]
        for h in range(held.row_start[row], held.row_start[row + 1]):
            v = held.holder[h]
            left = work.available[row] - held.holder_amount[h]
            if not work.mark[v] and left < work.target_need[e] and can_leave(work, victims, v):
                work.mark[v] = 1
                add(bound, work.least_cost[v], 1.0 / min(held.gpus[v], count))


@inlined
def _add_fraction(held, work, row, missing, count):
    """Add the cost of the cheapest fractions of unmarked victims that free so much of a row."""
    victims, first, end = held.gpus.size, held.row_start[row], held.row_start[row + 1]
    while missing > 0:
        chosen = -1
        for h in range(first, end):
            v = held.holder[h]
            if work.mark[v] or not can_leave(work, victims, v):
                continue
            amount = float(held.holder_amount[h]) * min(held.gpus[v], count)
            if chosen >= 0:
                c = held.holder[chosen]
                other = float(held.holder_amount[chosen]) * min(held.gpus[c], count)
                if compare_ratios(work.least_cost[v], amount, work.least_cost[c], other) >= 0:
                    continue
            chosen = h
        if chosen < 0:
            break
        v = held.holder[chosen]
        part = min(missing, held.holder_amount[chosen])
        factor = part / held.holder_amount[chosen] / min(held.gpus[v], count)
        add(work.vectors[1], work.least_cost[v], factor)
        work.mark[v] = 2
        missing -= part
    for h in range(first, end):
        if work.mark[held.holder[h]] == 2:
            work.mark[held.holder[h]] = 0


@inlined
def _sort_targets(work, first, end):
    """Order the targets of a choice by island and then by their bound."""
    for t in range(first, end):
        at = t
        while at > first:
            other = work.order[at - 1]
            earlier = work.target[t, 2] < work.target[other, 2]
            same = work.target[t, 2] == work.target[other, 2]
            if not (earlier or (same and compare(work.target_bound[t], work.target_bound[other]) < 0)):
                break
            work.order[at] = other
            at -= 1
        work.order[at] = t


@inlined
def _has_enough(work, first, end, count):
    """Whether an island has so many different GPUs among these targets."""
    at = first
    while at < end:
        island, seen, different = work.target[work.order[at], 2], np.int64(0), 0
        while at < end and work.target[work.order[at], 2] == island:
            bit = np.int64(1) << work.target[work.order[at], 1]
            different += seen & bit == 0
            seen |= bit
            at += 1
        if different >= count:
            return True
    return False
