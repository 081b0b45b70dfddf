"""What the pods of a node hold, as amounts by row for the search.

Each thing that can run out on a node is a *row*: CPU, memory, each counted pool, and for each GPU the shares
that it still takes, then compute (milli) and memory (MiB), or, where it is divided into MIG instances on
demand, one row for each slice, with one unit for each holder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from packing.fleet.arrays import Doubles
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.model.mig_instances import every_slice
from packing.model.node_spec import NodeSpec

CPU_ROW, MEMORY_ROW, FIRST_POOL = 0, 1, 2


class NodeRows:
    """How the rows of a node are numbered: ``pools`` by the number of the resource, ``gpus`` the first row of
    each GPU, which is that of its shares, ``slices`` of each GPU (0: its compute and memory are rows), and
    ``count`` of all rows."""

    def __init__(self, fleet: Fleet, spec: NodeSpec) -> None:
        counted = [pool for pool in spec.pools if not spec.is_divisible(pool)]
        numbers = dict.fromkeys(fleet.names.resources[pool.resource] for pool in counted)
        self.pools = {number: FIRST_POOL + place for place, number in enumerate(numbers)}
        self.slices = [every_slice(gpu.instances).bit_length() for gpu in spec.gpus]
        widths = (1 + (slices or 2) for slices in self.slices)
        *self.gpus, self.count = accumulate(widths, initial=FIRST_POOL + len(self.pools))
        self.decide = len(numbers) == len(counted) and not any(
            spec.gpus[gpu].divisible and not spec.gpus[gpu].instances for pool in counted for gpu in pool.gpus
        )
        """Whether amounts decide: not where shares and counted devices are of the same GPUs."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """What each victim holds of one node: (V, R) ``amounts`` by row, and (G, V) ``parts``: 1 divided by the
    number of GPUs of which it holds parts, on these GPUs. It can be kept as long as the fleet's layout, the
    node's spec, the victims and what they hold stay the same; ``VictimSearch`` checks that."""

    layout: tuple[int, int, int]
    spec: NodeSpec
    allocations: tuple[tuple[Allocation, ...], ...]
    rows: NodeRows
    amounts: Doubles
    parts: Doubles

    @classmethod
    def of(cls, fleet: Fleet, row: int, allocations: Sequence[tuple[Allocation, ...]]) -> Holdings:
        """The holdings of victims on a node of the fleet; other rows in their allocations are ignored."""
        spec = fleet.specs[row]
        assert spec is not None
        rows = NodeRows(fleet, spec)
        amounts = np.zeros((len(allocations), rows.count))
        for freed, held in zip(amounts, allocations, strict=True):
            _add_amounts(freed, rows, (one for one in held if one.row == row))
        parts = np.zeros((len(rows.gpus), len(allocations)))
        if rows.gpus:
            parts[:] = np.add.reduceat(amounts, rows.gpus, axis=1).T > 0
        parts /= np.maximum(parts.sum(axis=0), 1)
        return cls(fleet.layout, spec, tuple(allocations), rows, amounts, parts)

    def is_for(self, fleet: Fleet, row: int, allocations: Sequence[tuple[Allocation, ...]]) -> bool:
        """Whether the node and what its victims hold are still those for which this was built."""
        same_node = self.layout == fleet.layout and self.spec is fleet.specs[row]
        return same_node and self.allocations == tuple(allocations)


def _add_amounts(freed: Doubles, rows: NodeRows, held: Iterable[Allocation]) -> None:
    """Add what a victim frees in each row."""
    for one in held:
        freed[CPU_ROW] += one.cpu_milli
        freed[MEMORY_ROW] += one.memory_bytes
        for resource, count in one.devices:
            if resource in rows.pools:
                freed[rows.pools[resource]] += count
        for gpu, milli, mib in one.shares:
            first = rows.gpus[gpu]
            freed[first] += 1
            if not rows.slices[gpu]:
                freed[first + 1 : first + 3] += milli, mib
        for gpu, more in one.further:
            freed[rows.gpus[gpu]] += more
        for gpu, mask in one.slices:
            for place in range(min(mask.bit_length(), rows.slices[gpu])):
                freed[rows.gpus[gpu] + 1 + place] += mask >> place & 1
