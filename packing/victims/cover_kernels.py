"""The cheapest units that free what is needed in each row: a covering problem with lexicographic costs.

Victims without whom a row cannot be met are taken first. The others are decided one by one, cheapest for
what it frees first, in a depth-first search: it leaves a branch if the rest cannot free enough, or if its
cost plus a fractional covering of one row is not below the best set so far. An item is not taken where one
that is at least as good was left out.
"""

from packing.jit import inlined
from packing.victims.cost_kernels import add, assign, compare, compare_ratios
from packing.victims.unit_kernels import may_choose, note_choice


@inlined
def cover(held, leaving, work, active):
    """Search the cheapest units for ``need`` of the first ``active`` rows in ``active_rows``, and keep them
    if they are cheaper than the best so far."""
    victims, gangs = held.gpus.size, leaving.spare.size
    units = victims + gangs
    work.state[:units] = 0
    work.gang_taken[:gangs] = 0
    work.cost_at[0] = 0
    if not _take_indispensable(held, leaving, work, active):
        return
    if compare(work.cost_at[0], work.best_cost) >= 0:
        return
    columns = 0
    for i in range(active):
        row = work.active_rows[i]
        if work.need[row] > 0:
            work.wanted[columns], work.have[columns], work.rest[columns] = work.need[row], 0, 0
            work.slot_of_row[row] = columns
            columns += 1
    if columns == 0:
        keep_best(work, units, 0)
        return
    items = _list_items(leaving, work, victims, units)
    _fill_matrix(work, items, columns)
    for i in range(active):
        work.slot_of_row[work.active_rows[i]] = -1
    _sort_columns(work, items, columns)
    _note_dominated(work, victims, items, columns)
    _search(leaving, work, victims, units, items, columns)


@inlined
def keep_best(work, units, depth):
    """Keep the chosen units as the best so far."""
    work.outcome[0] = 1
    assign(work.best_cost, work.cost_at[depth])
    for u in range(units):
        work.best_units[u] = work.state[u] == 1


@inlined
def _take_indispensable(held, leaving, work, active):
    """Take the units without which a row cannot be met. False if their gangs do not allow it."""
    victims, rows = held.gpus.size, held.row_start.size - 1
    for i in range(active):
        row = work.active_rows[i]
        if work.available[row] < work.need[row]:
            return False
        if row >= rows:
            if not _take(leaving, work, victims, row - rows):
                return False
            continue
        for e in range(held.row_start[row], held.row_start[row + 1]):
            if work.available[row] - held.holder_amount[e] < work.need[row] and not _take(
                leaving, work, victims, held.holder[e]
            ):
                return False
    for u in range(victims + leaving.spare.size):
        if work.state[u] == 1:
            add(work.cost_at[0], work.unit_cost[u], 1.0)
            for e in range(work.unit_start[u], work.unit_start[u + 1]):
                work.need[work.unit_row[e]] -= work.unit_amount[e]
    return True


@inlined
def _take(leaving, work, victims, v):
    """Take the only unit in which a victim can leave; where there are two, the search decides."""
    gang = work.unit_gang[v]
    u = v
    if gang >= 0 and work.unit_active[victims + gang]:
        if work.unit_active[v]:
            return True
        u = victims + gang
    if not work.unit_active[u]:  # it cannot leave and counts for nothing
        return True
    if work.state[u] == 0:
        if not may_choose(leaving, work, victims, u):
            return False
        work.state[u] = 1
        note_choice(work, victims, u, 1)
    return True


@inlined
def _list_items(leaving, work, victims, units):
    """The units that free something that is needed, the cheapest for what they free first."""
    items = 0
    for u in range(units):
        if not work.unit_active[u] or work.state[u] or not may_choose(leaving, work, victims, u):
            continue
        weight = 0.0
        for e in range(work.unit_start[u], work.unit_start[u + 1]):
            column = work.slot_of_row[work.unit_row[e]]
            if column >= 0:
                weight += min(work.unit_amount[e], work.wanted[column]) / work.wanted[column]
        if weight == 0.0:
            continue
        work.weight[u] = weight
        at = items
        while at > 0 and (
            compare_ratios(
                work.unit_cost[u], weight, work.unit_cost[work.item[at - 1]], work.weight[work.item[at - 1]]
            )
            < 0
        ):
            work.item[at] = work.item[at - 1]
            at -= 1
        work.item[at] = u
        items += 1
    return items


@inlined
def _fill_matrix(work, items, columns):
    """Write what each item frees in each column, at most what is wanted, and the sum of all."""
    for i in range(items):
        work.matrix[i, :columns] = 0
        u = work.item[i]
        for e in range(work.unit_start[u], work.unit_start[u + 1]):
            column = work.slot_of_row[work.unit_row[e]]
            if column >= 0:
                amount = min(work.unit_amount[e], work.wanted[column])
                work.matrix[i, column] = amount
                work.rest[column] += amount


@inlined
def _sort_columns(work, items, columns):
    """For each column the items that free it, the cheapest for the amount first; then -1."""
    for column in range(columns):
        count = 0
        for i in range(items):
            if work.matrix[i, column] == 0:
                continue
            at = count
            while at > 0:
                other = work.column_order[column, at - 1]
                if (
                    compare_ratios(
                        work.unit_cost[work.item[i]], float(work.matrix[i, column]),
                        work.unit_cost[work.item[other]], float(work.matrix[other, column]),
                    )
                    >= 0
                ):  # fmt: skip
                    break
                work.column_order[column, at] = other
                at -= 1
            work.column_order[column, at] = i
            count += 1
        work.column_order[column, count:items] = -1


@inlined
def _note_dominated(work, victims, items, columns):
    """Note for each item which earlier ones free as much, cost no more, and could replace it."""
    for j in range(items):
        for i in range(j):
            gang, other = work.unit_gang[work.item[i]], work.unit_gang[work.item[j]]
            both_single = work.item[i] < victims and work.item[j] < victims
            better = gang < 0 or (gang == other and both_single)
            if better:
                better = compare(work.unit_cost[work.item[i]], work.unit_cost[work.item[j]]) <= 0
            column = 0
            while better and column < columns:
                better = work.matrix[i, column] >= work.matrix[j, column]
                column += 1
            work.dominated[j, i] = better


@inlined
def _search(leaving, work, victims, units, items, columns):
    """Decide item after item. ``rest`` is what those after the current one free together."""
    i = 0
    while True:
        work.outcome[1] -= 1
        if work.outcome[1] < 0:
            return
        met = _is_met(work, columns)
        if met and compare(work.cost_at[i], work.best_cost) < 0:
            keep_best(work, units, i)
        if met or i == items or _is_hopeless(leaving, work, victims, items, columns, i):
            i = _go_back(work, victims, columns, i)
            if i == 0:
                return
            continue
        u = work.item[i]
        assign(work.cost_at[i + 1], work.cost_at[i])
        if may_choose(leaving, work, victims, u) and _helps(work, columns, i):
            work.state[u] = 1
            note_choice(work, victims, u, 1)
            add(work.cost_at[i + 1], work.unit_cost[u], 1.0)
            for column in range(columns):
                work.have[column] += work.matrix[i, column]
        else:
            work.state[u] = 2
        for column in range(columns):
            work.rest[column] -= work.matrix[i, column]
        i += 1


@inlined
def _go_back(work, victims, columns, i):
    """Leave out the last item that was taken; the depth after it, 0 if there is none."""
    while i > 0:
        i -= 1
        u = work.item[i]
        if work.state[u] == 1:
            note_choice(work, victims, u, -1)
            for column in range(columns):
                work.have[column] -= work.matrix[i, column]
            work.state[u] = 2
            assign(work.cost_at[i + 1], work.cost_at[i])
            return i + 1
        work.state[u] = 0
        for column in range(columns):
            work.rest[column] += work.matrix[i, column]
    return 0


@inlined
def _is_met(work, columns):
    for column in range(columns):  # noqa: SIM110 (numba would compile a generator)
        if work.have[column] < work.wanted[column]:
            return False
    return True


@inlined
def _helps(work, columns, i):
    """Whether an item frees something that is missing, and no item that could replace it was left out."""
    for j in range(i):
        if work.dominated[i, j] and work.state[work.item[j]] == 2:
            return False
    for column in range(columns):
        if work.have[column] < work.wanted[column] and work.matrix[i, column] > 0:
            return True
    return False


@inlined
def _is_hopeless(leaving, work, victims, items, columns, i):
    """Whether the items from i on cannot make a set that is cheaper than the best."""
    for column in range(columns):
        missing = work.wanted[column] - work.have[column]
        if missing > work.rest[column]:
            return True
        bound = work.vectors[0]
        assign(bound, work.cost_at[i])
        at = 0
        while missing > 0 and at < items and work.column_order[column, at] >= 0:
            j = work.column_order[column, at]
            at += 1
            if j < i or not may_choose(leaving, work, victims, work.item[j]):
                continue
            part = min(missing, work.matrix[j, column])
            add(bound, work.unit_cost[work.item[j]], part / work.matrix[j, column])
            missing -= part
        if missing > 0 or compare(bound, work.best_cost) >= 0:
            return True
    return False
