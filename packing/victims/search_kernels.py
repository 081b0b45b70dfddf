"""The cheapest units whose leaving makes a request fit on a node: the search over GPUs, and its kernel.

A depth-first search over the targets of all choices, with a covering search at each leaf (``cover_kernels``).
Targets of a choice are tried in the order of their lower bounds, so a branch ends at the first one whose
bound, with those of the cheapest others, is not below the best set so far.
"""

import numpy as np

from packing.jit import inlined, record_kernel
from packing.victims.cost_kernels import add, assign, compare
from packing.victims.cover_kernels import cover
from packing.victims.records import (
    ACTIVE_ROW,
    BASE,
    CHOICE_COUNT,
    CHOICE_END,
    CHOICE_FIRST,
    CHOICES,
    FOUND,
    LEVEL_AT,
    LEVEL_BOUND,
    LEVEL_CHOICE,
    MARK,
    NEED,
    ORDER,
    ROWS,
    SLOT,
    STEPS,
    TARGET_BOUND,
    TARGET_GPU,
    TARGET_ISLAND,
    TARGET_NEED,
    TARGET_ROW,
    TARGET_START,
    UNITS,
    VECTORS,
    VICTIMS,
    Asked,
    Held,
    Leaving,
    View,
    Work,
)
from packing.victims.target_kernels import list_choices, set_base
from packing.victims.unit_kernels import list_units, sum_available

_ABOVE_ALL = 1e300


@inlined
def _search_targets(held, work):
    ints, levels, level = work.ints, np.int64(0), np.int64(0)
    for j in range(work.scalars[CHOICES]):
        for _ in range(ints[CHOICE_COUNT, j]):
            ints[LEVEL_CHOICE, levels] = j
            levels += 1
    if levels:
        _enter(work, 0)
    while level >= 0:
        if level == levels:
            _search_leaf(held, work, levels)
            level -= 1
            continue
        work.scalars[STEPS] -= 1
        if work.scalars[STEPS] < 0:
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
    depth, choice = 0, work.ints[LEVEL_CHOICE]
    while depth < level and choice[level - depth - 1] == choice[level]:
        depth += 1
    return depth


@inlined
def _enter(work, level):
    """Start a level before its first candidate."""
    ints, bounds = work.ints, work.costs[LEVEL_BOUND]
    if _depth(work, level) == 0:
        ints[LEVEL_AT, level] = ints[CHOICE_FIRST, ints[LEVEL_CHOICE, level]] - 1
        bounds[level] = 0
        return
    before = ints[LEVEL_AT, level - 1]
    ints[LEVEL_AT, level] = before
    assign(bounds[level], bounds[level - 1])
    add(bounds[level], work.costs[TARGET_BOUND, ints[ORDER, before]], 1.0)


@inlined
def _advance(work, level):
    """Go to the next target of a level that can be part of a cheaper set. False if there is none."""
    ints, depth = work.ints, _depth(work, level)
    j, at = ints[LEVEL_CHOICE, level], ints[LEVEL_AT, level]
    before = ints[LEVEL_AT, level - 1] if depth else ints[CHOICE_FIRST, j] - 1
    end = ints[CHOICE_END, j]
    if at > before and _is_free(work, at):
        at = _end_of_island(work, at, end)  # nothing is cheaper than a GPU that needs no eviction
    else:
        at += 1
    while at < end:
        if depth and _island(work, at) != _island(work, before):
            return False
        if _is_repeated(work, level, depth, at):
            at += 1
        elif _is_too_dear(work, level, at, ints[CHOICE_COUNT, j] - depth, end):
            at = _end_of_island(work, at, end)
        else:
            ints[LEVEL_AT, level] = at
            return True
    return False


@inlined
def _is_free(work, at):
    t = work.ints[ORDER, at]
    return work.ints[TARGET_START, t] == work.ints[TARGET_START, t + 1]


@inlined
def _island(work, at):
    return work.ints[TARGET_ISLAND, work.ints[ORDER, at]]


@inlined
def _end_of_island(work, at, end):
    island = _island(work, at)
    while at < end and _island(work, at) == island:
        at += 1
    return at


@inlined
def _is_repeated(work, level, depth, at):
    """Whether the GPU was chosen before in this choice."""
    ints = work.ints
    for back in range(1, depth + 1):
        other = ints[ORDER, ints[LEVEL_AT, level - back]]
        if ints[TARGET_GPU, other] == ints[TARGET_GPU, ints[ORDER, at]]:
            return True
    return False


@inlined
def _is_too_dear(work, level, at, more, end):
    """Whether this target and the cheapest others after it are not below the best, or too few."""
    bound, island = work.costs[VECTORS, 1], _island(work, at)
    assign(bound, work.costs[LEVEL_BOUND, level])
    for i in range(at, at + more):
        if i >= end or _island(work, i) != island:
            return True
        add(bound, work.costs[TARGET_BOUND, work.ints[ORDER, i]], 1.0)
    return compare(bound, work.best_cost) >= 0


@inlined
def _search_leaf(held, work, levels):
    """Search the cheapest units for the chosen targets."""
    ints, need, active = work.ints, work.ints[NEED], np.int64(0)
    for row in range(work.scalars[ROWS] + work.scalars[VICTIMS]):
        need[row] = ints[BASE, row]
        if need[row] > 0:
            ints[ACTIVE_ROW, active] = row
            active += 1
    for level in range(levels):
        t = ints[ORDER, ints[LEVEL_AT, level]]
        for e in range(ints[TARGET_START, t], ints[TARGET_START, t + 1]):
            row = ints[TARGET_ROW, e]
            if need[row] <= 0:
                ints[ACTIVE_ROW, active] = row
                active += 1
            need[row] = max(need[row], ints[TARGET_NEED, e])
    cover(held, work, active)


@record_kernel(View, Asked, Held, Leaving, Work)
def search_units(view, asked, held, leaving, work):
    """Write the cheapest units, if there are any, into ``work``; see ``Work`` for the answer."""
    scalars = work.scalars
    scalars[FOUND], scalars[STEPS] = 0, leaving.numbers[2]
    scalars[VICTIMS], scalars[ROWS] = held.gpus.size, held.row_start.size - 1
    scalars[UNITS] = held.gpus.size + leaving.gangs.shape[1]
    work.best_cost[:] = _ABOVE_ALL
    work.ints[SLOT, : scalars[ROWS] + scalars[VICTIMS]] = -1
    work.ints[MARK, : scalars[VICTIMS]] = 0
    list_units(held, leaving, work)
    sum_available(work)
    if set_base(view, asked, held, leaving, work) and list_choices(view, asked, held, leaving, work):
        _search_targets(held, work)
