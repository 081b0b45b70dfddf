"""Lower bounds of what targets cost, and their order: parts of the kernels of the victim search."""

from packing.jit import inlined
from packing.victims.cost_kernels import add, assign, compare, compare_ratios
from packing.victims.records import (
    AVAILABLE,
    LEAST_COST,
    MARK,
    ORDER,
    TARGET_BOUND,
    TARGET_ISLAND,
    TARGET_NEED,
    TARGET_ROW,
    TARGET_START,
    TARGETS,
    VECTORS,
)
from packing.victims.unit_kernels import can_leave

_INDISPENSABLE, _COUNTED = 1, 2


@inlined
def set_bound(held, work, t, count):
    """Write a lower bound of what a target costs. A victim on several GPUs counts with a part of its cost,
    so that the bounds of different targets of a choice of ``count`` GPUs add up."""
    ints, bound, best = work.ints, work.costs[TARGET_BOUND, t], work.costs[VECTORS, 2]
    bound[:] = 0
    first, end = ints[TARGET_START, t], ints[TARGET_START, t + 1]
    _add_indispensable(held, work, bound, first, end, count)
    assign(best, bound)
    for e in range(first, end):
        row, missing = ints[TARGET_ROW, e], ints[TARGET_NEED, e]
        for h in range(held.row_start[row], held.row_start[row + 1]):
            if ints[MARK, held.by_row[0, h]] == _INDISPENSABLE:
                missing -= held.by_row[1, h]
        if missing > 0:
            with_fraction = work.costs[VECTORS, 1]
            assign(with_fraction, bound)
            _add_fraction(held, work, with_fraction, row, missing, count)
            if compare(with_fraction, best) > 0:
                assign(best, with_fraction)
    assign(bound, best)
    for e in range(first, end):
        row = ints[TARGET_ROW, e]
        for h in range(held.row_start[row], held.row_start[row + 1]):
            ints[MARK, held.by_row[0, h]] = 0


@inlined
def _add_indispensable(held, work, bound, first, end, count):
    """Mark the victims without whom a row of a target cannot be met, and add what they cost."""
    ints = work.ints
    for e in range(first, end):
        row = ints[TARGET_ROW, e]
        for h in range(held.row_start[row], held.row_start[row + 1]):
            v = held.by_row[0, h]
            left = ints[AVAILABLE, row] - held.by_row[1, h]
            if ints[MARK, v] == 0 and left < ints[TARGET_NEED, e] and can_leave(work, v):
                ints[MARK, v] = _INDISPENSABLE
                add(bound, work.costs[LEAST_COST, v], 1.0 / min(held.gpus[v], count))


@inlined
def _add_fraction(held, work, bound, row, missing, count):
    """Add the cost of the cheapest fractions of unmarked victims that free so much of a row."""
    mark, least = work.ints[MARK], work.costs[LEAST_COST]
    first, end = held.row_start[row], held.row_start[row + 1]
    while missing > 0:
        chosen, size = -1, 1.0
        for h in range(first, end):
            v = held.by_row[0, h]
            if mark[v] != 0 or not can_leave(work, v):
                continue
            amount = float(held.by_row[1, h] * min(held.gpus[v], count))
            if chosen < 0 or compare_ratios(least[v], amount, least[held.by_row[0, chosen]], size) < 0:
                chosen, size = h, amount
        if chosen < 0:
            break
        v = held.by_row[0, chosen]
        part = min(missing, held.by_row[1, chosen])
        add(bound, least[v], part / size)
        mark[v] = _COUNTED
        missing -= part
    for h in range(first, end):
        if mark[held.by_row[0, h]] == _COUNTED:
            mark[held.by_row[0, h]] = 0


@inlined
def sort_targets(work, first):
    """Order the targets from ``first`` by island and then by their bound."""
    ints, bounds = work.ints, work.costs[TARGET_BOUND]
    for t in range(first, work.scalars[TARGETS]):
        at = t
        while at > first:
            other = ints[ORDER, at - 1]
            same = ints[TARGET_ISLAND, t] == ints[TARGET_ISLAND, other]
            dearer = same and compare(bounds[t], bounds[other]) >= 0
            if dearer or ints[TARGET_ISLAND, t] > ints[TARGET_ISLAND, other]:
                break
            ints[ORDER, at] = other
            at -= 1
        ints[ORDER, at] = t
