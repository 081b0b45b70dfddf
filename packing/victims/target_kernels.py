"""What must be freed before a request fits: rows that every answer needs, and GPUs among which it may choose.

A *choice* is a number of GPUs (in one NVLink island, or any). A *target* of a choice is a GPU with what must
be freed of it, and for MIG on demand one of the windows that the instance could take.
"""

import numpy as np

from packing.fleet.fit_kernels import enough, share_mib
from packing.jit import inlined
from packing.victims.bound_kernels import set_bound, sort_targets
from packing.victims.records import (
    AVAILABLE,
    BASE,
    CHOICE_COUNT,
    CHOICE_END,
    CHOICE_FIRST,
    CHOICES,
    NEEDS,
    ORDER,
    ROWS,
    TARGET_GPU,
    TARGET_ISLAND,
    TARGET_NEED,
    TARGET_ROW,
    TARGET_START,
    TARGETS,
    VICTIMS,
)

_CPU, _MEMORY, _FIRST_POOL = 0, 1, 2


@inlined
def set_base(view, asked, held, leaving, work):
    """Write what is needed whatever GPU is chosen. False if the victims do not free it."""
    base, victims, rows, n = work.ints[BASE], work.scalars[VICTIMS], work.scalars[ROWS], leaving.numbers[0]
    for row in range(rows):
        base[row] = leaving.rows[1, row]
    for v in range(victims):
        base[rows + v] = leaving.victims[1, v]
    cpu, memory = asked.cpu_and_memory[0], asked.cpu_and_memory[1]
    if not enough(view.free_cpu[n], cpu):
        base[_CPU] = max(base[_CPU], cpu - view.free_cpu[n])
    if not enough(view.free_memory[n], memory):
        base[_MEMORY] = max(base[_MEMORY], memory - view.free_memory[n])
    for d in range(asked.devices.shape[1]):
        for i in range(held.pools.size):
            if held.pools[i] == asked.devices[0, d]:
                missing = asked.devices[1, d] - np.int64(view.free_devices[held.pools[i], n])
                base[_FIRST_POOL + i] = max(base[_FIRST_POOL + i], missing)
    for row in range(rows + victims):  # noqa: SIM110 (numba would compile a generator)
        if base[row] > work.ints[AVAILABLE, row]:
            return False
    return True


@inlined
def list_choices(view, asked, held, leaving, work):
    """Write all choices and their targets. False if one of them cannot be met."""
    n, named, island = leaving.numbers[0], leaving.numbers[1], asked.share[4]
    no, yes = np.int64(0), np.int64(1)
    work.scalars[TARGETS] = work.scalars[NEEDS] = work.scalars[CHOICES] = 0
    if asked.share[0] > 0 and not _add_choice(
        view, held, leaving, work, asked.share[0], asked.share, named, island, no
    ):
        return False
    for d in range(asked.devices.shape[1]):
        resource, count = asked.devices[0, d], asked.devices[1, d]
        for i in range(held.divisible.shape[1]):
            if held.divisible[0, i] != resource:
                continue
            if island and not _add_choice(view, held, leaving, work, count, asked.whole, named, yes, no):
                return False
            gpus = held.divisible[1, i]
            if view.free_devices[resource, n] < count and not _add_choice(
                view, held, leaving, work, count, asked.whole, gpus, no, yes
            ):
                return False
    return True


@inlined
def _add_choice(view, held, leaving, work, count, share, gpus, island, untouched):
    """Add the choice of ``count`` of these ``gpus`` (a mask) for such a share each, or without any share."""
    ints, n, choice, first = work.ints, leaving.numbers[0], work.scalars[CHOICES], work.scalars[TARGETS]
    work.scalars[CHOICES] += 1
    for g in range(held.slices.size):
        if (gpus >> g) & 1 == 0 or view.shareable[g, n] == 0:
            continue
        milli = max(share[1], 1)
        mib = np.int64(share_mib(view.memory_capacity[g, n], np.float32(share[2]), np.float32(share[3])))
        if untouched:
            milli = np.int64(view.compute_capacity[g, n])
            mib = np.int64(view.memory_capacity[g, n])
        island_of_gpu = np.int64(view.island[g, n]) if island else np.int64(0)
        if held.slices[g] == 0:
            _add_target(view, held, leaving, work, g, island_of_gpu, share[5], milli, mib, np.int64(0), count)
            continue
        for p in range(held.places.shape[1]):
            if _is_smallest_place(held, g, p, milli, mib):
                window = held.places[3, p]
                _add_target(view, held, leaving, work, g, island_of_gpu, share[5], milli, mib, window, count)
    ints[CHOICE_COUNT, choice], ints[CHOICE_FIRST, choice] = count, first
    ints[CHOICE_END, choice] = work.scalars[TARGETS]
    sort_targets(work, first)
    return _has_enough(work, first, work.scalars[TARGETS], count)


@inlined
def _is_smallest_place(held, g, p, milli, mib):
    """Whether a place is on this GPU, large enough, and no other such place takes only a part of it."""
    places = held.places
    if places[0, p] != g or places[1, p] < milli or places[2, p] < mib:
        return False
    for q in range(places.shape[1]):
        if q == p or places[0, q] != g or places[1, q] < milli or places[2, q] < mib:
            continue
        inside = places[3, q] & ~places[3, p] == 0
        if inside and (places[3, q] != places[3, p] or q < p):
            return False
    return True


@inlined
def _add_target(view, held, leaving, work, g, island, slots, milli, mib, window, count):
    """Add what must be freed of a GPU, unless the victims cannot free it."""
    ints, t, n, row = work.ints, work.scalars[TARGETS], leaving.numbers[0], held.first[g]
    start = ints[TARGET_START, t] = work.scalars[NEEDS]
    _add_need(work, row, slots - np.int64(view.share_slots[g, n]))
    if held.slices[g] == 0:
        _add_need(work, row + 1, milli - np.int64(view.compute[g, n]))
        _add_need(work, row + 2, mib - np.int64(view.memory[g, n]))
    for place in range(held.slices[g]):
        if (window >> place) & 1:
            _add_need(work, row + 1 + place, leaving.rows[0, row + 1 + place])
    ints[TARGET_START, t + 1] = work.scalars[NEEDS]
    for e in range(start, work.scalars[NEEDS]):
        if ints[TARGET_NEED, e] > ints[AVAILABLE, ints[TARGET_ROW, e]]:
            work.scalars[NEEDS] = start
            return
    ints[TARGET_GPU, t], ints[TARGET_ISLAND, t] = g, island
    set_bound(held, work, t, count)
    work.scalars[TARGETS] += 1


@inlined
def _add_need(work, row, amount):
    if amount > 0:
        end = work.scalars[NEEDS]
        work.ints[TARGET_ROW, end], work.ints[TARGET_NEED, end] = row, amount
        work.scalars[NEEDS] += 1


@inlined
def _has_enough(work, first, end, count):
    """Whether an island has so many different GPUs among these targets."""
    ints, at = work.ints, first
    while at < end:
        island, seen, different = ints[TARGET_ISLAND, ints[ORDER, at]], np.int64(0), 0
        while at < end and ints[TARGET_ISLAND, ints[ORDER, at]] == island:
            bit = np.int64(1) << ints[TARGET_GPU, ints[ORDER, at]]
            different += seen & bit == 0
            seen |= bit
            at += 1
        if different >= count:
            return True
    return False
