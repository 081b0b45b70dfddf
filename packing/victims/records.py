"""The arrays that the kernels of the victim search take, as records.

Sizes: V victims, K gangs, U = V + K *units* (unit V + k is the gang k as a whole), R rows of a node (see
``holdings``) and V more (row R + v is the demand that victim v leaves), G GPUs, T targets, C components of a
cost.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from packing.fleet.fleet import Fleet
from packing.jit import (
    Float32Array2D,
    Float64Array,
    Float64Array2D,
    Int32Array,
    Int32Array2D,
    Int64Array,
    Int64Array2D,
    UInt8Array,
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
    """What a request needs: CPU and memory, counted devices, and the shares of GPUs (``count`` may be 0)."""

    cpu_and_memory: Int64Array
    devices: Int32Array
    """(D,) numbers of resources."""
    device_counts: Int32Array
    share: Int64Array
    """Count, compute milli, MiB and thousandths of memory, and 1 if the GPUs must be in one island."""
    whole: Int64Array
    """The same of a whole GPU."""


class Held(NamedTuple):
    """What the victims of a node hold, by victim and by row, and how the node's rows are numbered."""

    start: Int32Array
    row: Int32Array
    amount: Int64Array
    """(V + 1,), (E,), (E,): victim v frees ``amount[e]`` of ``row[e]`` for start[v] <= e < start[v + 1]."""
    gpus: Int32Array
    """(V,) how many GPUs a victim holds parts of, at least 1."""
    row_start: Int32Array
    holder: Int32Array
    holder_amount: Int64Array
    """(R + 1,), (E,), (E,): the same by row."""
    first: Int32Array
    """(G + 1,) the first row of each GPU."""
    slices: Int32Array
    """(G,) rows of slices, 0 where the GPU is not divided into MIG instances."""
    place_gpu: Int32Array
    place_milli: Int32Array
    place_mib: Int32Array
    place_mask: Int64Array
    """(P,) windows that MIG instances may take, with the size of the instance."""
    pools: Int32Array
    """Numbers of the counted resources, from row 2."""
    divisible: Int32Array
    divisible_gpus: Int64Array
    """Numbers of the resources whose devices are GPUs that are placed one by one, and masks of those GPUs."""


class Leaving(NamedTuple):
    """Who may leave at what cost, and what must be met besides the request."""

    numbers: Int64Array
    """Row of the node, mask of the GPUs that the request may take, most steps."""
    cost: Float64Array2D
    """(V, C)"""
    gang: Int32Array
    """(V,) index of the victim's gang or -1."""
    spare: Int32Array
    may_leave: UInt8Array
    whole: Float64Array2D
    """(K,), (K,), (K, C): see ``GangCost``; ``may_leave`` is 0 where the cost is None."""
    required: UInt8Array
    """(V,) 1 where the victim must leave."""
    slice_holders: Int32Array
    """(R,) pods that hold a slice now, by its row."""
    overcommitted: Int64Array
    """(R,) what must be freed before the node holds no more than it has."""


class Work(NamedTuple):
    """Scratch of the kernels, and the answer."""

    outcome: Int64Array
    """Status (see ``search_kernels``), steps left, number of targets, of entries of targets, of choices."""
    best_units: UInt8Array
    best_cost: Float64Array
    # Units: entries, by unit; gang (-1 where it does not limit), whether the unit can be chosen, its cost.
    unit_start: Int32Array
    unit_row: Int32Array
    unit_amount: Int64Array
    unit_gang: Int32Array
    unit_active: UInt8Array
    unit_cost: Float64Array2D
    gang_size: Int32Array
    gang_taken: Int32Array
    # By victim: the least that it costs in any unit, and marks.
    least_cost: Float64Array2D
    mark: UInt8Array
    # By row: what all victims free, what is needed at least, what is needed for the chosen targets.
    available: Int64Array
    base: Int64Array
    need: Int64Array
    active_rows: Int32Array
    slot_of_row: Int32Array
    # Targets: choice, GPU, island, needs by row, lower bound of the cost; their order; choices of them.
    target: Int32Array2D
    target_start: Int32Array
    target_row: Int32Array
    target_need: Int64Array
    target_bound: Float64Array2D
    order: Int32Array
    choice: Int32Array2D
    # The depth-first search over targets, by level.
    level_choice: Int32Array
    level_at: Int32Array
    level_bound: Float64Array2D
    # The covering search: items are units, columns the rows that are still needed.
    item: Int32Array
    state: UInt8Array
    matrix: Int64Array2D
    column_order: Int32Array2D
    wanted: Int64Array
    have: Int64Array
    rest: Int64Array
    dominated: UInt8Array2D
    weight: Float64Array
    cost_at: Float64Array2D
    # Vectors of a cost's length.
    vectors: Float64Array2D


def view_of(fleet: Fleet) -> View:
    """The arrays of a fleet."""
    return checked(View(*(getattr(fleet.arrays, name) for name in View._fields)))


class Sizes(NamedTuple):
    """How much scratch a search needs at most."""

    victims: int
    gangs: int
    entries: int
    rows: int
    gpus: int
    choices: int
    targets: int
    needs: int
    width: int


def work_for(s: Sizes) -> Work:
    """Scratch for these sizes."""
    units, rows, width = s.victims + s.gangs, s.rows + s.victims, s.width
    entries = 2 * (s.entries + s.victims)

    def ints(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
        return np.zeros(shape, np.int32)

    def longs(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        return np.zeros(shape, np.int64)

    def doubles(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return np.zeros(shape, np.float64)

    def flags(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        return np.zeros(shape, np.uint8)

    levels = s.choices * s.gpus + 1
    return checked(
        Work(
            longs(8), flags(units), doubles(width),
            ints(units + 1), ints(entries), longs(entries), ints(units), flags(units), doubles(units, width),
            ints(s.gangs), ints(s.gangs),
            doubles(s.victims, width), flags(s.victims),
            longs(rows), longs(rows), longs(rows), ints(rows), ints(rows),
            ints(s.targets, 3), ints(s.targets + 1), ints(s.needs), longs(s.needs), doubles(s.targets, width),
            ints(s.targets), ints(s.choices, 4),
            ints(levels), ints(levels), doubles(levels + 1, width),
            ints(units), flags(units), longs(units, rows), ints(rows, units),
            longs(rows), longs(rows), longs(rows), flags(units, units), doubles(units),
            doubles(units + 1, width), doubles(8, width),
        )
    )  # fmt: skip
