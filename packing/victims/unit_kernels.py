"""Units that leave together, single victims and whole gangs, and what they free: parts of the search."""

from packing.jit import inlined
from packing.victims.cost_kernels import assign, compare

ALL_GONE = 1 << 20
"""``gang_taken`` of a gang that leaves as a whole."""


@inlined
def list_units(held, leaving, work):
    """Write the units of the node: which can be chosen, what they cost and free."""
    victims, gangs = held.gpus.size, leaving.spare.size
    rows = held.row_start.size - 1
    work.gang_size[:gangs] = 0
    for v in range(victims):
        if leaving.gang[v] >= 0:
            work.gang_size[leaving.gang[v]] += 1
    end = 0
    for v in range(victims):
        gang = leaving.gang[v]
        if gang >= 0 and work.gang_size[gang] <= leaving.spare[gang]:
            gang = -1
        work.unit_gang[v] = gang
        work.unit_active[v] = gang < 0 or leaving.spare[gang] > 0
        assign(work.unit_cost[v], leaving.cost[v])
        work.unit_start[v] = end
        for e in range(held.start[v], held.start[v + 1]):
            work.unit_row[end], work.unit_amount[end] = held.row[e], held.amount[e]
            end += 1
        if leaving.required[v]:
            work.unit_row[end], work.unit_amount[end] = rows + v, 1
            end += 1
    work.unit_start[victims] = end
    for k in range(gangs):
        u = victims + k
        work.unit_gang[u] = k
        work.unit_active[u] = leaving.may_leave[k] and work.gang_size[k] > leaving.spare[k]
        assign(work.unit_cost[u], leaving.whole[k])
        if work.unit_active[u]:
            end = _join_members(work, victims, k, end)
        work.unit_start[u + 1] = end


@inlined
def _join_members(work, victims, gang, end):
    """Write what a gang frees as a whole; ``slot_of_row`` is -1 before and after."""
    first = end
    for v in range(victims):
        if work.unit_gang[v] != gang:
            continue
        for e in range(work.unit_start[v], work.unit_start[v + 1]):
            row = work.unit_row[e]
            if work.slot_of_row[row] < 0:
                work.slot_of_row[row] = end
                work.unit_row[end], work.unit_amount[end] = row, 0
                end += 1
            work.unit_amount[work.slot_of_row[row]] += work.unit_amount[e]
    for e in range(first, end):
        work.slot_of_row[work.unit_row[e]] = -1
    return end


@inlined
def can_leave(work, victims, v):
    """Whether a victim can leave, alone or with its gang."""
    gang = work.unit_gang[v]
    return work.unit_active[v] != 0 or (gang >= 0 and work.unit_active[victims + gang] != 0)


@inlined
def sum_available(held, leaving, work):
    """Write what all victims together free, and the least that each costs in any unit."""
    victims, rows = held.gpus.size, held.row_start.size - 1
    work.available[: rows + victims] = 0
    for v in range(victims):
        if not can_leave(work, victims, v):
            continue
        for e in range(work.unit_start[v], work.unit_start[v + 1]):
            work.available[work.unit_row[e]] += work.unit_amount[e]
        least = work.least_cost[v]
        assign(least, leaving.cost[v])
        gang = work.unit_gang[v]
        if gang >= 0 and work.unit_active[victims + gang]:
            part = work.vectors[0]
            for c in range(least.size):
                part[c] = leaving.whole[gang, c] / work.gang_size[gang]
            if not work.unit_active[v] or compare(part, least) < 0:
                assign(least, part)


@inlined
def may_choose(leaving, work, victims, u):
    """Whether the gang's rule still allows a unit."""
    gang = work.unit_gang[u]
    if gang < 0:
        return True
    if u >= victims:
        return work.gang_taken[gang] == 0
    return work.gang_taken[gang] < leaving.spare[gang]


@inlined
def note_choice(work, victims, u, sign):
    """Note in its gang that a unit is chosen (sign 1) or is not any more (-1)."""
    gang = work.unit_gang[u]
    if gang >= 0:
        work.gang_taken[gang] += sign * (ALL_GONE if u >= victims else 1)
