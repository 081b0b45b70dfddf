"""The arrays that the kernels of the victim search take, as records.

Sizes: V victims, K gangs, U = V + K *units* (unit V + k is the gang k as a whole), R rows of a node (see
``holdings``) and V more (row R + v is the demand that victim v leaves), G GPUs, T targets, C components of a
cost. Scratch of one type is one array, because the time to compile a kernel grows with its arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from packing.fleet.fleet import Fleet
from packing.jit import (
    Float32Array2D,
    Float64Array,
    Float64Array2D,
    Float64Array3D,
    Int32Array2D,
    Int64Array,
    Int64Array2D,
    Int64Array3D,
    UInt8Array2D,
    checked,
)


class View(NamedTuple):
    """The arrays of a fleet that say what is free: see ``NodeArrays``."""

    free_cpu: Int64Array
    free_memory: Int64Array
    free_devices: Int32Array2D
    compute: Float32Array2D
    memory: Float32Array2D
    compute_capacity: Float32Array2D
    memory_capacity: Float32Array2D
    shareable: UInt8Array2D
    share_slots: Int32Array2D
    island: UInt8Array2D


class Asked(NamedTuple):
    """What a request needs."""

    cpu_and_memory: Int64Array
    devices: Int64Array2D
    """(2, D) numbers of resources, and how many devices."""
    share: Int64Array
    """Count of GPUs (0 for none), compute milli, MiB and thousandths of memory of a share, 1 if the GPUs
    must be in one island, and as how many of the pods of a GPU it counts."""
    whole: Int64Array
    """The same of a whole GPU."""


class Held(NamedTuple):
    """What the victims of a node hold, by victim and by row, and how the node's rows are numbered."""

    start: Int64Array
    by_victim: Int64Array2D
    """(V + 1,), (2, E): rows and amounts that victim v frees, from start[v] to start[v + 1]."""
    gpus: Int64Array
    """(V,) how many GPUs a victim holds parts of, at least 1."""
    row_start: Int64Array
    by_row: Int64Array2D
    """(R + 1,), (2, E): victims and amounts of row r, from row_start[r] to row_start[r + 1]."""
    first: Int64Array
    """(G + 1,) the first row of each GPU."""
    slices: Int64Array
    """(G,) rows of slices, 0 where the GPU is not divided into MIG instances."""
    places: Int64Array2D
    """(4, P) windows that MIG instances may take: GPU, compute milli and MiB of the instance, and mask."""
    pools: Int64Array
    """Numbers of the counted resources, from row 2."""
    divisible: Int64Array2D
    """(2, Q) numbers of the resources whose devices are GPUs that are placed one by one, and masks of those
    GPUs."""


class Leaving(NamedTuple):
    """Who may leave at what cost, and what must be met besides the request."""

    numbers: Int64Array
    """Row of the node, mask of the GPUs that the request may take, most steps."""
    cost: Float64Array2D
    """(V, C)"""
    victims: Int64Array2D
    """(3, V) index of the victim's gang or -1; 1 where the victim must leave; 1 where it must stay."""
    gangs: Int64Array2D
    """(2, K) ``spare`` of ``GangCost``, and 0 where ``whole`` is None."""
    whole: Float64Array2D
    """(K, C)"""
    rows: Int64Array2D
    """(2, R) pods that hold a slice now, and what must be freed before the node holds no more than it has."""


# Rows of ``Work.ints``. By unit: start of its entries, gang (-1 where that does not limit), whether it can be
# chosen, and 1 for chosen, 2 for left out; units of the best set; units that the covering search decides.
UNIT_START, UNIT_GANG, UNIT_ACTIVE, STATE, BEST, ITEM = range(6)
# Entries of units: row and amount. By gang: members, spare ones, members taken. By victim: a mark.
UNIT_ROW, UNIT_AMOUNT, GANG_SIZE, GANG_SPARE, GANG_TAKEN, MARK = range(6, 12)
# By row: what all victims free, what is needed in any case, what for the chosen targets, column of the
# covering search or -1; the rows with a need. By column: what is wanted, what the chosen items free, and
# the rest.
AVAILABLE, BASE, NEED, SLOT, ACTIVE_ROW, WANTED, HAVE, REST = range(12, 20)
# By target: GPU, island, start of its needs; targets in order. Needs: row and amount.
TARGET_GPU, TARGET_ISLAND, TARGET_START, ORDER, TARGET_ROW, TARGET_NEED = range(20, 26)
# By choice: GPUs, first target, end. By level of the search: its choice, place in order.
CHOICE_COUNT, CHOICE_FIRST, CHOICE_END, LEVEL_CHOICE, LEVEL_AT = range(26, 31)
_INTS = 31
# Tables of ``Work.costs``: of units, least cost of a victim in any unit, bounds of targets and of levels,
# cost at each depth of the covering search, other vectors, and (component 0 only) what an item frees in sum.
UNIT_COST, LEAST_COST, TARGET_BOUND, LEVEL_BOUND, COST_AT, VECTORS, WEIGHT = range(7)
_COSTS = 7
# Tables of ``Work.tables``: (item, column) amounts, (column, place) items in order, (item, earlier item) 1 if
# that one could replace it.
MATRIX, COLUMN_ORDER, DOMINATED = range(3)
# Places of ``Work.scalars``.
FOUND, STEPS, VICTIMS, UNITS, ROWS, TARGETS, NEEDS, CHOICES = range(8)


class Work(NamedTuple):
    """Scratch of the kernels, and the answer: ``scalars[FOUND]``, ``ints[BEST]`` and ``best_cost``. The
    search was cut if ``scalars[STEPS]`` is below 0."""

    scalars: Int64Array
    ints: Int64Array2D
    costs: Float64Array3D
    tables: Int64Array3D
    best_cost: Float64Array


class Sizes(NamedTuple):
    """How much scratch a search needs: the longest list of integers and of costs, and the side of a table."""

    ints: int
    costs: int
    side: int
    width: int


def view_of(fleet: Fleet) -> View:
    """The arrays of a fleet."""
    return checked(View(*(getattr(fleet.arrays, name) for name in View._fields)))


def sizes_for(held: Held, leaving: Leaving, choices: int, slices: int) -> Sizes:
    """The scratch for a node. ``slices``: at most so many has one of its GPUs."""
    victims, gangs = leaving.victims.shape[1], leaving.gangs.shape[1]
    gpus, places = len(held.slices), held.places.shape[1]
    rows, targets = len(held.row_start) + victims, choices * (gpus + places)
    entries = 2 * (held.by_victim.shape[1] + victims)
    needs = choices * (3 * gpus + places * (1 + slices))
    levels = choices * gpus
    most = max(victims + gangs, entries, rows, targets, needs, levels)
    return Sizes(
        most + 1,
        max(victims + gangs, targets, levels, 8) + 1,
        max(victims + gangs, rows),
        leaving.cost.shape[1],
    )


def work_for(sizes: Sizes) -> Work:
    """Scratch of these sizes."""
    return checked(
        Work(
            np.zeros(8, np.int64),
            np.zeros((_INTS, sizes.ints), np.int64),
            np.zeros((_COSTS, sizes.costs, sizes.width)),
            np.empty((3, sizes.side, sizes.side), np.int64),
            np.zeros(sizes.width),
        )
    )
