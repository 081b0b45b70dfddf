"""The holdings of a node's pods, and the amounts that must be freed before a request fits there, by row.

Each exhaustible quantity of a node is a *row*: CPU, memory, each counted pool, and for each GPU the number of
further shares, then compute (milli) and memory (MiB), or, where it is divided into MIG instances on demand,
one row for each slice, with one unit for each holder.

A *choice* is a number of GPUs, in one NVLink island or anywhere. A *target* of a choice is a GPU with the
amounts that must be freed on it, and for MIG on demand one of the instance's possible windows. Amounts that
do not depend on the chosen GPUs are a choice with one target.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import numpy as np

from packing.fleet.arrays import Doubles
from packing.fleet.feasibility import separation
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.permitted import permitted_on
from packing.jit import Float64Array, Int64Array, Int64Array2D
from packing.model.mig_instances import Instances, every_slice
from packing.model.node_spec import NodeSpec
from packing.model.request import Request, Shares, whole_gpus

CPU_ROW, MEMORY_ROW, FIRST_POOL = 0, 1, 2


class NodeRows:
    """The numbering of a node's rows: ``pools`` by the number of the resource, ``gpus`` the first row of each
    GPU, which is that of its shares, ``slices`` of each GPU (0: its compute and memory are rows), and
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
        """Whether amounts are sufficient to decide: not if shares and counted devices are on the same
        GPUs."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """The holdings of each of V pods on one node: ``amounts`` (V, R) by row, and ``parts`` (G, V): 1 divided
    by the number of GPUs on which it holds shares, for these GPUs. It is valid as long as it ``is_of`` the
    node and the pods' allocations do not change."""

    layout: tuple[int, int, int]
    spec: NodeSpec
    rows: NodeRows
    amounts: Doubles
    parts: Doubles
    allocations: Sequence[tuple[Allocation, ...]]

    @classmethod
    def of(cls, fleet: Fleet, row: int, allocations: Sequence[tuple[Allocation, ...]]) -> Holdings:
        """The holdings of pods on a node of the fleet; allocations on other rows are ignored."""
        spec = fleet.specs[row]
        assert spec is not None
        rows = NodeRows(fleet, spec)
        amounts = np.zeros((len(allocations), rows.count))
        for freed, held in zip(amounts, allocations, strict=True):
            _add_amounts(freed, rows, (allocation for allocation in held if allocation.row == row))
        parts = np.zeros((len(rows.gpus), len(allocations)))
        if rows.gpus:
            parts[:] = np.add.reduceat(amounts, rows.gpus, axis=1).T > 0
        parts /= np.maximum(parts.sum(axis=0), 1)
        return cls(fleet.layout, spec, rows, amounts, parts, allocations)

    def is_of(self, fleet: Fleet, row: int) -> bool:
        """Whether the node is still the one for which this was built."""
        return self.layout == fleet.layout and self.spec is fleet.specs[row]


def _add_amounts(freed: Doubles, rows: NodeRows, held: Iterable[Allocation]) -> None:
    for allocation in held:
        freed[CPU_ROW] += allocation.cpu_milli
        freed[MEMORY_ROW] += allocation.memory_bytes
        for resource, count in allocation.devices:
            if resource in rows.pools:
                freed[rows.pools[resource]] += count
        for gpu, milli, mib in allocation.shares:
            first = rows.gpus[gpu]
            freed[first] += 1
            if not rows.slices[gpu]:
                freed[first + 1 : first + 3] += milli, mib
        for gpu, more in allocation.further:
            freed[rows.gpus[gpu]] += more
        for gpu, mask in allocation.slices:
            for place in range(min(mask.bit_length(), rows.slices[gpu])):
                freed[rows.gpus[gpu] + 1 + place] += mask >> place & 1


_Least: TypeAlias = list[tuple[int, int]]
"""Rows, and the amounts that must be free."""
_Target: TypeAlias = tuple[int, int, _Least]
"""Island, GPU, and its required amounts."""


class Demand(NamedTuple):
    """J choices, T targets ordered by choice, island and GPU, and E missing amounts."""

    choices: Int64Array2D
    """(J, 2): number of different GPUs, and the end of its targets."""
    targets: Int64Array2D
    """(T, 3): island, GPU, and the end of its amounts."""
    rows: Int64Array
    missing: Float64Array
    """(E,) rows, and the amounts that must be freed there."""


def demand_of(fleet: Fleet, request: Request, row: int, rows: NodeRows) -> Demand:
    """The amounts that must be freed on the node in this row of the fleet."""
    free, needs = _free_amounts(fleet, row, rows), _Needs(fleet, request, row, rows)
    choices: list[tuple[int, int]] = []
    targets: list[tuple[int, int, int]] = []
    missing: list[tuple[int, float]] = []
    for count, of_choice in needs.choices():
        for island, gpu, least in sorted(of_choice):
            missing += [(r, amount - free[r]) for r, amount in least if amount > free[r]]
            targets.append((island, gpu, len(missing)))
        choices.append((count, len(targets)))
    numbers, amounts = zip(*missing, strict=True) if missing else ((), ())
    return Demand(
        np.array(choices, np.int64),
        np.array(targets, np.int64).reshape(len(targets), 3),
        np.array(numbers, np.int64),
        np.array(amounts, np.float64),
    )


def _free_amounts(fleet: Fleet, row: int, rows: NodeRows) -> list[float]:
    """The free amount of each row, negative where more is allocated than exists."""
    arrays = fleet.arrays
    free = [float(arrays.free_cpu[row]), float(arrays.free_memory[row])]
    free += [float(arrays.free_devices[resource, row]) for resource in rows.pools]
    of_gpus = (arrays.share_slots, arrays.compute, arrays.memory)
    columns = (array[: len(rows.gpus), row].tolist() for array in of_gpus)
    for slices, slots, compute, memory in zip(rows.slices, *columns, strict=True):
        free += (slots, *[1.0] * slices) if slices else (slots, compute, memory)
    if any(rows.slices):
        for gpu, place, holders in fleet.usage[row].slice_holders():
            if place < rows.slices[gpu]:
                free[rows.gpus[gpu] + 1 + place] = 1 - holders
    return free


class _Needs:
    """The amounts that a request needs on one node."""

    def __init__(self, fleet: Fleet, request: Request, row: int, rows: NodeRows) -> None:
        spec = fleet.specs[row]
        assert spec is not None
        self._fleet, self._request, self._row, self._rows, self._spec = fleet, request, row, rows, spec

    def choices(self) -> Iterator[tuple[int, Iterable[_Target]]]:
        """Each choice with its targets."""
        arrays, request, row = self._fleet.arrays, self._request, self._row
        yield 1, [(0, 0, list(self._of_any_gpu()))]
        permitted = permitted_on(self._fleet, request, row)
        gpus = [gpu for gpu in arrays.shareable[:, row].nonzero()[0].tolist() if gpu in permitted]
        if part := request.shares:
            yield part.count, self._targets(gpus, part, island=request.island)
        for name, count in request.devices:
            for pool in self._spec.pools:
                if pool.resource != name or not self._spec.is_divisible(pool):
                    continue
                if request.island:
                    yield count, self._targets(gpus, whole_gpus(1), island=True)
                yield count, self._targets([gpu for gpu in gpus if gpu in pool.gpus], None, island=False)

    def _of_any_gpu(self) -> Iterator[tuple[int, int]]:
        """Amounts that must be free whichever GPUs are chosen."""
        fleet, request, row = self._fleet, self._request, self._row
        if request.cpu_milli:
            yield CPU_ROW, request.cpu_milli
        if request.memory_bytes:
            yield MEMORY_ROW, request.memory_bytes
        for name, count in request.devices:
            resource = fleet.names.resources.get(name, -1)
            if (pool := self._rows.pools.get(resource)) is None:
                continue
            yield pool, count
            if count > 1 and separation(fleet, request) == "require":
                yield pool, count + int(fleet.arrays.surplus_devices[resource, row])
            if request.island:
                free = int(fleet.arrays.free_devices[resource, row])
                yield pool, free + fleet.usage[row].missing_peers(resource, count)

    def _targets(self, gpus: Iterable[int], part: Shares | None, *, island: bool) -> Iterator[_Target]:
        """Targets for this share of each GPU; without ``part``, for whole empty GPUs."""
        arrays, row = self._fleet.arrays, self._row
        capacity, islands = arrays.memory_capacity[:, row].tolist(), arrays.island[:, row].tolist()
        known, windows = None, list[list[int]]()
        for gpu in gpus:
            first, slots = self._rows.gpus[gpu], part.slots if part else 1
            milli = max(part.compute_milli, 1) if part else int(arrays.compute_capacity[gpu, row])
            mib = part.mib_of(int(capacity[gpu])) if part else int(capacity[gpu])
            together = islands[gpu] if island else 0
            if not self._rows.slices[gpu]:
                yield together, gpu, [(first, slots), (first + 1, milli), (first + 2, mib)]
                continue
            if (asked := (self._spec.gpus[gpu].instances, milli, mib)) != known:
                known, windows = asked, _smallest_windows(*asked)
            for places in windows:
                yield together, gpu, [(first, slots), *((first + 1 + place, 1) for place in places)]


@lru_cache(maxsize=4096)
def _smallest_windows(instances: Instances, compute_milli: int, memory_mib: int) -> list[list[int]]:
    """The places of slices in the windows of all sufficiently large instances, without windows that contain
    another one."""
    windows = {
        window
        for instance in instances
        if instance.compute_milli >= compute_milli and instance.memory_mib >= memory_mib
        for window in instance.windows
    }
    smallest = (
        window for window in windows if not any(other != window and other & ~window == 0 for other in windows)
    )
    return [[place for place in range(window.bit_length()) if window >> place & 1] for window in smallest]
