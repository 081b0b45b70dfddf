"""What the pods of a node hold, as rows of amounts for the search.

Each thing that can run out on a node is a *row*: row 0 CPU, row 1 memory, one row for each counted pool, and
for each GPU the shares that it still takes, then compute (milli) and memory (MiB), or, where it is divided
into MIG instances on demand, one row for each slice, with one unit for each holder.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.jit import checked
from packing.model.mig_instances import Instances, every_slice
from packing.model.node_spec import NodeSpec
from packing.victims.records import Held

CPU_ROW, MEMORY_ROW, FIRST_POOL = 0, 1, 2
MOST_AMOUNT = 1 << 52
"""Larger amounts are left to the slow search: sums of them could overflow."""
MOST_SLICES = 62
"""GPUs with more slices are left to the slow search: a window is a mask of 64 bits."""
MOST_VICTIMS = 256
"""Nodes with more victims are left to the slow search."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """What each victim holds of one node. It can be kept as long as the fleet's layout, the node's spec,
    the victims and what they hold stay the same; ``VictimSearch.on`` checks that.

    ``modelled`` is False where the search cannot describe the node by rows. ``most_slices``: of one GPU.
    """

    layout: tuple[int, int, int]
    spec: NodeSpec
    allocations: tuple[tuple[Allocation, ...], ...]
    held: Held
    modelled: bool
    most_slices: int

    @classmethod
    def of(cls, fleet: Fleet, row: int, allocations: Sequence[tuple[Allocation, ...]]) -> Holdings:
        """The holdings of victims on a node of the fleet; other rows in their allocations are ignored."""
        spec = fleet.specs[row]
        assert spec is not None
        rows = _Rows(fleet, spec)
        entries = [rows.entries_of([a for a in one if a.row == row]) for one in allocations]
        modelled = (
            rows.modelled
            and len(allocations) <= MOST_VICTIMS
            and all(0 <= amount <= MOST_AMOUNT for one in entries for amount in one.values())
        )
        held = rows.record(entries if modelled else [])
        return cls(fleet.layout, spec, tuple(allocations), held, modelled, rows.most_slices)

    def is_for(self, fleet: Fleet, row: int, allocations: Sequence[tuple[Allocation, ...]]) -> bool:
        """Whether the node and what its victims hold are still those for which this was built."""
        same_node = self.layout == fleet.layout and self.spec is fleet.specs[row]
        return same_node and self.allocations == tuple(allocations)


class _Rows:
    """Numbers the rows of a node."""

    def __init__(self, fleet: Fleet, spec: NodeSpec) -> None:
        self._spec = spec
        numbers = [(fleet.names.resources[pool.resource], pool) for pool in spec.pools]
        self._divisible = [(number, pool) for number, pool in numbers if spec.is_divisible(pool)]
        self._counted = {number: i for i, (number, pool) in enumerate(numbers) if not spec.is_divisible(pool)}
        self._pool_rows = {number: FIRST_POOL + i for i, number in enumerate(self._counted)}
        self._slices = [every_slice(gpu.instances).bit_length() for gpu in spec.gpus]
        self.most_slices = max(self._slices, default=0)
        widths = [1 + (slices or 2) for slices in self._slices]
        self._first = list(accumulate(widths, initial=FIRST_POOL + len(self._pool_rows)))
        shared = {gpu for _, pool in numbers if not spec.is_divisible(pool) for gpu in pool.gpus}
        self._counted_gpus = shared
        self.modelled = (
            len(numbers) == len({number for number, _ in numbers})
            and self.most_slices <= MOST_SLICES
            and all(_is_monotone(gpu.instances) for gpu in spec.gpus)
            and not any(spec.gpus[gpu].divisible and not spec.gpus[gpu].instances for gpu in shared)
        )

    def entries_of(self, held: Iterable[Allocation]) -> dict[int, int]:
        """The amount that a victim frees in each row."""
        freed: defaultdict[int, int] = defaultdict(int)
        for one in held:
            freed[CPU_ROW] += one.cpu_milli
            freed[MEMORY_ROW] += one.memory_bytes
            for resource, count in one.devices:
                if resource in self._pool_rows:
                    freed[self._pool_rows[resource]] += count
            for gpu, milli, mib in one.shares:
                first = self._first[gpu]
                freed[first] += 1
                if not self._slices[gpu]:
                    freed[first + 1] += milli
                    freed[first + 2] += mib
                    self.modelled = self.modelled and gpu not in self._counted_gpus
            for gpu, more in one.further:
                freed[self._first[gpu]] += more
            for gpu, mask in one.slices:
                for place in range(min(mask.bit_length(), self._slices[gpu])):
                    freed[self._first[gpu] + 1 + place] += mask >> place & 1
        return {row: amount for row, amount in freed.items() if amount > 0}

    def record(self, entries: Sequence[dict[int, int]]) -> Held:
        flat = [(row, victim, amount) for victim, one in enumerate(entries) for row, amount in one.items()]
        by_row = sorted(flat)
        places = [
            (g, instance.compute_milli, instance.memory_mib, mask)
            for g, gpu in enumerate(self._spec.gpus)
            for instance in gpu.instances
            for mask in instance.windows
        ]
        on_row = Counter(row for row, *_ in flat)
        sizes = [on_row[row] for row in range(self._first[-1])]
        return checked(
            Held(
                _longs(accumulate(map(len, entries), initial=0)),
                _table([(row, amount) for row, _, amount in flat], 2),
                _longs(max(1, len(self._gpus_of(one))) for one in entries),
                _longs(accumulate(sizes, initial=0)),
                _table([(victim, amount) for _, victim, amount in by_row], 2),
                _longs(self._first),
                _longs(self._slices),
                _table([place for place in places if place[3] >> MOST_SLICES == 0], 4),
                _longs(self._pool_rows),
                _table([(number, mask_of(pool.gpus)) for number, pool in self._divisible], 2),
            )
        )

    def _gpus_of(self, freed: Iterable[int]) -> set[int]:
        return {bisect_right(self._first, row) for row in freed if row >= self._first[0]}


def _is_monotone(instances: Instances) -> bool:
    """Whether a larger instance never has less compute or memory than a smaller one."""
    return all(
        a.compute_milli <= b.compute_milli and a.memory_mib <= b.memory_mib for a, b in pairwise(instances)
    )


def mask_of(gpus: Iterable[int]) -> int:
    """The GPUs as bits of a signed 64-bit number."""
    mask = sum(1 << gpu for gpu in set(gpus))
    return mask - (1 << 64) if mask >> 63 else mask


def _longs(numbers: Iterable[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([*numbers], np.int64)


def _table(columns: list[tuple[int, ...]], rows: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    table = np.array(columns, np.int64).reshape(len(columns), rows)
    return np.ascontiguousarray(table.T)
