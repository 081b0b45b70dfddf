"""Units that leave together, single victims and whole gangs, and what they free: parts of the search."""

import numpy as np

from packing.jit import inlined
from packing.victims.cost_kernels import assign, compare
from packing.victims.records import (
    AVAILABLE,
    BEST,
    COST_AT,
    FOUND,
    GANG_SIZE,
    GANG_SPARE,
    GANG_TAKEN,
    LEAST_COST,
    ROWS,
    SLOT,
    STATE,
    UNIT_ACTIVE,
    UNIT_AMOUNT,
    UNIT_COST,
    UNIT_GANG,
    UNIT_ROW,
    UNIT_START,
    UNITS,
    VECTORS,
    VICTIMS,
)

CHOSEN, LEFT_OUT = 1, 2
"""``STATE`` of a unit."""
ALL_GONE = 1 << 20
"""``GANG_TAKEN`` of a gang that leaves as a whole."""


@inlined
def list_units(held, leaving, work):
    """Write the units of the node: which can be chosen, what they cost and free."""
    ints, victims, end = work.ints, work.scalars[VICTIMS], np.int64(0)
    _count_members(leaving, work)
    for v in range(victims):
        gang = leaving.victims[0, v]
        if gang >= 0 and ints[GANG_SIZE, gang] <= ints[GANG_SPARE, gang]:
            gang = -1
        ints[UNIT_GANG, v] = gang
        may_leave_alone = gang < 0 or ints[GANG_SPARE, gang] > 0
        ints[UNIT_ACTIVE, v] = leaving.victims[2, v] == 0 and may_leave_alone
        assign(work.costs[UNIT_COST, v], leaving.cost[v])
        ints[UNIT_START, v] = end
        for e in range(held.start[v], held.start[v + 1]):
            ints[UNIT_ROW, end], ints[UNIT_AMOUNT, end] = held.by_victim[0, e], held.by_victim[1, e]
            end += 1
        if leaving.victims[1, v]:
            ints[UNIT_ROW, end], ints[UNIT_AMOUNT, end] = work.scalars[ROWS] + v, 1
            end += 1
    ints[UNIT_START, victims] = end
    for u in range(victims, work.scalars[UNITS]):
        k = u - victims
        ints[UNIT_GANG, u] = k
        ints[UNIT_ACTIVE, u] = leaving.gangs[1, k] != 0 and ints[GANG_SIZE, k] > ints[GANG_SPARE, k]
        assign(work.costs[UNIT_COST, u], leaving.whole[k])
        if ints[UNIT_ACTIVE, u]:
            end = _join_members(work, k, end)
        ints[UNIT_START, u + 1] = end


@inlined
def _count_members(leaving, work):
    for k in range(leaving.gangs.shape[1]):
        work.ints[GANG_SIZE, k], work.ints[GANG_SPARE, k] = 0, leaving.gangs[0, k]
    for v in range(work.scalars[VICTIMS]):
        if leaving.victims[0, v] >= 0:
            work.ints[GANG_SIZE, leaving.victims[0, v]] += 1


@inlined
def _join_members(work, gang, end):
    """Write what a gang frees as a whole; ``SLOT`` is -1 before and after."""
    ints, first = work.ints, end
    for v in range(work.scalars[VICTIMS]):
        if ints[UNIT_GANG, v] != gang:
            continue
        for e in range(ints[UNIT_START, v], ints[UNIT_START, v + 1]):
            row = ints[UNIT_ROW, e]
            if ints[SLOT, row] < 0:
                ints[SLOT, row] = end
                ints[UNIT_ROW, end], ints[UNIT_AMOUNT, end] = row, 0
                end += 1
            ints[UNIT_AMOUNT, ints[SLOT, row]] += ints[UNIT_AMOUNT, e]
    for e in range(first, end):
        ints[SLOT, ints[UNIT_ROW, e]] = -1
    return end


@inlined
def can_leave(work, v):
    """Whether a victim can leave, alone or with its gang."""
    gang = work.ints[UNIT_GANG, v]
    with_gang = gang >= 0 and work.ints[UNIT_ACTIVE, work.scalars[VICTIMS] + gang] != 0
    return with_gang or work.ints[UNIT_ACTIVE, v] != 0


@inlined
def sum_available(work):
    """Write what all victims together free, and the least that each costs in any unit."""
    ints, victims = work.ints, work.scalars[VICTIMS]
    ints[AVAILABLE, : work.scalars[ROWS] + victims] = 0
    part = work.costs[VECTORS, 0]
    for v in range(victims):
        if not can_leave(work, v):
            continue
        for e in range(ints[UNIT_START, v], ints[UNIT_START, v + 1]):
            ints[AVAILABLE, ints[UNIT_ROW, e]] += ints[UNIT_AMOUNT, e]
        least = work.costs[LEAST_COST, v]
        assign(least, work.costs[UNIT_COST, v])
        gang = ints[UNIT_GANG, v]
        if gang >= 0 and ints[UNIT_ACTIVE, victims + gang]:
            for c in range(part.size):
                part[c] = work.costs[UNIT_COST, victims + gang, c] / ints[GANG_SIZE, gang]
            if not ints[UNIT_ACTIVE, v] or compare(part, least) < 0:
                assign(least, part)


@inlined
def may_choose(work, u):
    """Whether the gang's rule still allows a unit."""
    gang = work.ints[UNIT_GANG, u]
    if gang < 0:
        return True
    if u >= work.scalars[VICTIMS]:
        return work.ints[GANG_TAKEN, gang] == 0
    return work.ints[GANG_TAKEN, gang] < work.ints[GANG_SPARE, gang]


@inlined
def note_choice(work, u, sign):
    """Note in its gang that a unit is chosen (sign 1) or is not any more (-1)."""
    gang = work.ints[UNIT_GANG, u]
    if gang >= 0:
        work.ints[GANG_TAKEN, gang] += sign * (ALL_GONE if u >= work.scalars[VICTIMS] else 1)


@inlined
def keep_best(work, depth):
    """Keep the chosen units as the best so far."""
    work.scalars[FOUND] = 1
    assign(work.best_cost, work.costs[COST_AT, depth])
    for u in range(work.scalars[UNITS]):
        work.ints[BEST, u] = work.ints[STATE, u] == CHOSEN
