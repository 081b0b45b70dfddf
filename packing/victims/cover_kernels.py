"""The cheapest units that free what is needed in each row: a covering problem with lexicographic costs.

Victims without whom a row cannot be met are taken first. The others are decided one by one, cheapest for
what it frees first, in a depth-first search: it leaves a branch if the rest cannot free enough, or if its
cost plus a fractional covering of one row is not below the best set so far. An item is not taken where one
that is at least as good was left out.
"""

import numpy as np

from packing.jit import inlined
from packing.victims.cost_kernels import add, assign, compare, compare_ratios
from packing.victims.records import (
    ACTIVE_ROW,
    AVAILABLE,
    COLUMN_ORDER,
    COST_AT,
    DOMINATED,
    GANG_TAKEN,
    HAVE,
    ITEM,
    MATRIX,
    NEED,
    REST,
    ROWS,
    SLOT,
    STATE,
    STEPS,
    UNIT_ACTIVE,
    UNIT_AMOUNT,
    UNIT_COST,
    UNIT_GANG,
    UNIT_ROW,
    UNIT_START,
    UNITS,
    VECTORS,
    VICTIMS,
    WANTED,
    WEIGHT,
)
from packing.victims.unit_kernels import CHOSEN, LEFT_OUT, keep_best, may_choose, note_choice


@inlined
def cover(held, work, active):
    """Search the cheapest units for ``NEED`` of the first ``active`` rows in ``ACTIVE_ROW``, and keep them if
    they are cheaper than the best so far."""
    ints, units = work.ints, work.scalars[UNITS]
    ints[STATE, :units] = 0
    ints[GANG_TAKEN, : units - work.scalars[VICTIMS]] = 0
    work.costs[COST_AT, 0] = 0
    if not _take_indispensable(held, work, active):
        return
    if compare(work.costs[COST_AT, 0], work.best_cost) >= 0:
        return
    columns = np.int64(0)
    for i in range(active):
        row = ints[ACTIVE_ROW, i]
        if ints[NEED, row] > 0:
            ints[WANTED, columns], ints[HAVE, columns], ints[REST, columns] = ints[NEED, row], 0, 0
            ints[SLOT, row] = columns
            columns += 1
    if columns == 0:
        keep_best(work, columns)
        return
    items = _list_items(work)
    _fill_matrix(work, items, columns)
    for i in range(active):
        ints[SLOT, ints[ACTIVE_ROW, i]] = -1
    _sort_columns(work, items, columns)
    _note_dominated(work, items, columns)
    _search(work, items, columns)


@inlined
def _take_indispensable(held, work, active):
    """Take the units without which a row cannot be met. False if their gangs do not allow it."""
    ints, rows = work.ints, work.scalars[ROWS]
    for i in range(active):
        row = ints[ACTIVE_ROW, i]
        if ints[AVAILABLE, row] < ints[NEED, row]:
            return False
        if row >= rows:
            if not _take(work, row - rows):
                return False
            continue
        for e in range(held.row_start[row], held.row_start[row + 1]):
            without = ints[AVAILABLE, row] - held.by_row[1, e]
            if without < ints[NEED, row] and not _take(work, held.by_row[0, e]):
                return False
    for u in range(work.scalars[UNITS]):
        if ints[STATE, u] == CHOSEN:
            add(work.costs[COST_AT, 0], work.costs[UNIT_COST, u], 1.0)
            for e in range(ints[UNIT_START, u], ints[UNIT_START, u + 1]):
                ints[NEED, ints[UNIT_ROW, e]] -= ints[UNIT_AMOUNT, e]
    return True


@inlined
def _take(work, v):
    """Take the only unit in which a victim can leave; where there are two, the search decides."""
    ints, gang, u = work.ints, work.ints[UNIT_GANG, v], v
    if gang >= 0 and ints[UNIT_ACTIVE, work.scalars[VICTIMS] + gang]:
        if ints[UNIT_ACTIVE, v]:
            return True
        u = work.scalars[VICTIMS] + gang
    if not ints[UNIT_ACTIVE, u]:  # it cannot leave and counts for nothing
        return True
    if ints[STATE, u] == 0:
        if not may_choose(work, u):
            return False
        ints[STATE, u] = CHOSEN
        note_choice(work, u, np.int64(1))
    return True


@inlined
def _list_items(work):
    """The units that free something that is needed, the cheapest for what they free first."""
    ints, units, items = work.ints, work.costs[UNIT_COST], np.int64(0)
    for u in range(work.scalars[UNITS]):
        if not ints[UNIT_ACTIVE, u] or ints[STATE, u] or not may_choose(work, u):
            continue
        weight = 0.0
        for e in range(ints[UNIT_START, u], ints[UNIT_START, u + 1]):
            column = ints[SLOT, ints[UNIT_ROW, e]]
            if column >= 0:
                weight += min(ints[UNIT_AMOUNT, e], ints[WANTED, column]) / ints[WANTED, column]
        if weight == 0.0:
            continue
        work.costs[WEIGHT, u, 0] = weight
        at = items
        while at > 0:
            before = ints[ITEM, at - 1]
            if compare_ratios(units[u], weight, units[before], work.costs[WEIGHT, before, 0]) >= 0:
                break
            ints[ITEM, at] = before
            at -= 1
        ints[ITEM, at] = u
        items += 1
    return items


@inlined
def _fill_matrix(work, items, columns):
    """Write what each item frees in each column, at most what is wanted, and the sum of all."""
    ints, matrix = work.ints, work.tables[MATRIX]
    for i in range(items):
        matrix[i, :columns] = 0
        u = ints[ITEM, i]
        for e in range(ints[UNIT_START, u], ints[UNIT_START, u + 1]):
            column = ints[SLOT, ints[UNIT_ROW, e]]
            if column >= 0:
                amount = min(ints[UNIT_AMOUNT, e], ints[WANTED, column])
                matrix[i, column] = amount
                ints[REST, column] += amount


@inlined
def _sort_columns(work, items, columns):
    """For each column the items that free it, the cheapest for the amount first; then -1."""
    item, units = work.ints[ITEM], work.costs[UNIT_COST]
    matrix, order = work.tables[MATRIX], work.tables[COLUMN_ORDER]
    for column in range(columns):
        count = 0
        for i in range(items):
            amount = float(matrix[i, column])
            if amount == 0.0:
                continue
            at = count
            while at > 0:
                other = order[column, at - 1]
                less = float(matrix[other, column])
                if compare_ratios(units[item[i]], amount, units[item[other]], less) >= 0:
                    break
                order[column, at] = other
                at -= 1
            order[column, at] = i
            count += 1
        order[column, count:items] = -1


@inlined
def _note_dominated(work, items, columns):
    """Note for each item which earlier ones free as much, cost no more, and could replace it."""
    item, units, matrix = work.ints[ITEM], work.costs[UNIT_COST], work.tables[MATRIX]
    for j in range(items):
        for i in range(j):
            gang, other = work.ints[UNIT_GANG, item[i]], work.ints[UNIT_GANG, item[j]]
            both_single = max(item[i], item[j]) < work.scalars[VICTIMS]
            better = gang < 0 or (gang == other and both_single)
            if better:
                better = compare(units[item[i]], units[item[j]]) <= 0
            column = 0
            while better and column < columns:
                better = matrix[i, column] >= matrix[j, column]
                column += 1
            work.tables[DOMINATED, j, i] = better


@inlined
def _search(work, items, columns):
    """Decide item after item. ``REST`` is what those after the current one free together."""
    ints, cost_at, matrix, i = work.ints, work.costs[COST_AT], work.tables[MATRIX], np.int64(0)
    while True:
        work.scalars[STEPS] -= 1
        if work.scalars[STEPS] < 0:
            return
        met = _is_met(work, columns)
        if met and compare(cost_at[i], work.best_cost) < 0:
            keep_best(work, i)
        if met or i == items or _is_hopeless(work, items, columns, i):
            i = _go_back(work, columns, i)
            if i == 0:
                return
            continue
        u = ints[ITEM, i]
        assign(cost_at[i + 1], cost_at[i])
        ints[STATE, u] = LEFT_OUT
        if may_choose(work, u) and _helps(work, columns, i):
            ints[STATE, u] = CHOSEN
            note_choice(work, u, np.int64(1))
            add(cost_at[i + 1], work.costs[UNIT_COST, u], 1.0)
            for column in range(columns):
                ints[HAVE, column] += matrix[i, column]
        for column in range(columns):
            ints[REST, column] -= matrix[i, column]
        i += 1


@inlined
def _go_back(work, columns, i):
    """Leave out the last item that was taken; the depth after it, 0 if there is none."""
    ints, matrix = work.ints, work.tables[MATRIX]
    while i > 0:
        i -= 1
        u = ints[ITEM, i]
        if ints[STATE, u] == CHOSEN:
            note_choice(work, u, np.int64(-1))
            for column in range(columns):
                ints[HAVE, column] -= matrix[i, column]
            ints[STATE, u] = LEFT_OUT
            assign(work.costs[COST_AT, i + 1], work.costs[COST_AT, i])
            return i + 1
        ints[STATE, u] = 0
        for column in range(columns):
            ints[REST, column] += matrix[i, column]
    return i


@inlined
def _is_met(work, columns):
    for column in range(columns):  # noqa: SIM110 (numba would compile a generator)
        if work.ints[HAVE, column] < work.ints[WANTED, column]:
            return False
    return True


@inlined
def _helps(work, columns, i):
    """Whether an item frees something that is missing, and no item that could replace it was left out."""
    ints = work.ints
    for j in range(i):
        if work.tables[DOMINATED, i, j] and ints[STATE, ints[ITEM, j]] == LEFT_OUT:
            return False
    for column in range(columns):
        if ints[HAVE, column] < ints[WANTED, column] and work.tables[MATRIX, i, column] > 0:
            return True
    return False


@inlined
def _is_hopeless(work, items, columns, i):
    """Whether the items from i on cannot make a set that is cheaper than the best."""
    ints, matrix, bound = work.ints, work.tables[MATRIX], work.costs[VECTORS, 0]
    for column in range(columns):
        missing = ints[WANTED, column] - ints[HAVE, column]
        if missing > ints[REST, column]:
            return True
        assign(bound, work.costs[COST_AT, i])
        for at in range(items):
            j = work.tables[COLUMN_ORDER, column, at]
            if missing <= 0 or j < 0:
                break
            if j < i or not may_choose(work, ints[ITEM, j]):
                continue
            part = min(missing, matrix[j, column])
            add(bound, work.costs[UNIT_COST, ints[ITEM, j]], part / matrix[j, column])
            missing -= part
        if missing > 0 or compare(bound, work.best_cost) >= 0:
            return True
    return False
