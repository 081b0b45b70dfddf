"""The cheapest units whose leaving makes a request fit on a node: the search over GPUs, and its kernel.

A depth-first search over the targets of all choices, with a covering search at each leaf (``cover_kernels``).
Targets of a choice are tried in the order of their lower bounds, so a branch ends at the first one whose
bound, with those of the cheapest others, is not below the best set so far.
"""

from packing.jit import inlined, record_kernel
from packing.victims.cost_kernels import add, assign, compare
from packing.victims.cover_kernels import cover
from packing.victims.records import Asked, Held, Leaving, View, Work
from packing.victims.target_kernels import list_choices, set_base
from packing.victims.unit_kernels import list_units, sum_available

NONE, FOUND = 0, 1
"""``outcome[0]``. ``outcome[1]`` is below 0 if the search was cut."""


@inlined
def _search_targets(held, leaving, work):
    levels = 0
    for j in range(work.outcome[4]):
        for _ in range(work.choice[j, 0]):
            work.level_choice[levels] = j
            levels += 1
    level = 0
    if levels:
        _enter(work, 0)
    while level >= 0:
        if level == levels:
            _search_leaf(held, leaving, work, levels)
            level -= 1
            continue
        work.outcome[1] -= 1
        if work.outcome[1] < 0:
            return
        if not _advance(work, level):
            level -= 1
            continue
        level += 1
        if level < levels:
            _enter(work, level)


@inlined
def _depth(work, level):
    """How many targets of the level's choice are chosen before it."""
    depth = 0
    while depth < level and work.level_choice[level - depth - 1] == work.level_choice[level]:
        depth += 1
    return depth


@inlined
def _enter(work, level):
    """Start a level before its first candidate."""
    if _depth(work, level) == 0:
        work.level_at[level] = work.choice[work.level_choice[level], 1] - 1
        work.level_bound[level] = 0
        return
    before = work.level_at[level - 1]
    work.level_at[level] = before
    assign(work.level_bound[level], work.level_bound[level - 1])
    add(work.level_bound[level], work.target_bound[work.order[before]], 1.0)


@inlined
def _advance(work, level):
    """Go to the next target of a level that can be part of a cheaper set. False if there is none."""
    j, depth = work.level_choice[level], _depth(work, level)
    first, end = work.choice[j, 1], work.choice[j, 2]
    at = work.level_at[level]
    fresh = at < first if depth == 0 else at == work.level_at[level - 1]
    if not fresh and _is_free(work, at):
        at = _end_of_island(work, at, end)  # nothing is cheaper than a GPU that needs no eviction
    else:
        at += 1
    while at < end:
        island = work.target[work.order[at], 2]
        if depth and island != work.target[work.order[work.level_at[level - 1]], 2]:
            return False
        if _is_repeated(work, level, depth, at):
            at += 1
        elif _is_too_dear(work, level, at, work.choice[j, 0] - depth, end):
            at = _end_of_island(work, at, end)
        else:
            work.level_at[level] = at
            return True
    return False


@inlined
def _is_free(work, at):
    t = work.order[at]
    return work.target_start[t] == work.target_start[t + 1]


@inlined
def _end_of_island(work, at, end):
    island = work.target[work.order[at], 2]
    while at < end and work.target[work.order[at], 2] == island:
        at += 1
    return at


@inlined
def _is_repeated(work, level, depth, at):
    """Whether the GPU was chosen before in this choice."""
    for back in range(1, depth + 1):
        other = work.order[work.level_at[level - back]]
        if work.target[other, 1] == work.target[work.order[at], 1]:
            return True
    return False


@inlined
def _is_too_dear(work, level, at, more, end):
    """Whether this target and the cheapest others after it are not below the best, or too few."""
    bound = work.vectors[1]
    assign(bound, work.level_bound[level])
    island = work.target[work.order[at], 2]
    for i in range(at, at + more):
        if i >= end or work.target[work.order[i], 2] != island:
            return True
        add(bound, work.target_bound[work.order[i]], 1.0)
    return compare(bound, work.best_cost) >= 0


@inlined
def _search_leaf(held, leaving, work, levels):
    """Search the cheapest units for the chosen targets."""
    rows = held.row_start.size - 1 + held.gpus.size
    active = 0
    for row in range(rows):
        work.need[row] = work.base[row]
        if work.base[row] > 0:
            work.active_rows[active] = row
            active += 1
    for level in range(levels):
        t = work.order[work.level_at[level]]
        for e in range(work.target_start[t], work.target_start[t + 1]):
            row = work.target_row[e]
            if work.need[row] <= 0:
                work.active_rows[active] = row
                active += 1
            work.need[row] = max(work.need[row], work.target_need[e])
    cover(held, leaving, work, active)


@record_kernel(View, Asked, Held, Leaving, Work)
def search_units(view, asked, held, leaving, work):
    """Write the outcome, and the cheapest units with their cost if there are any."""
    rows = held.row_start.size - 1 + held.gpus.size
    work.outcome[0], work.outcome[1] = NONE, leaving.numbers[2]
    work.best_cost[:] = 1e300
    work.slot_of_row[:rows] = -1
    work.mark[: held.gpus.size] = 0
    list_units(held, leaving, work)
    sum_available(held, leaving, work)
    if set_base(view, asked, held, leaving, work) and list_choices(view, asked, held, leaving, work):
        _search_targets(held, leaving, work)
