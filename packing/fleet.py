"""The fleet: every node and GPU as arrays, and the only place where something is taken or given back.

A GPU request is met in one of two ways. *Counted* devices (whole GPUs, replicas, existing MIG instances
behind a device plugin) live in pools: the plugin chooses the physical device, so the pool's count is the
truth and the GPU arrays show the pool as if it were filled GPU by GPU. *Divisible* GPUs are placed device
by device, and there the arrays are the truth; of a GPU that is divided into MIG instances they show the
largest instance that can still be made.

All quantities are whole numbers (milli, MiB) and below 2**24, so float32 holds them exactly and giving
back restores every array bit by bit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from packing import feasible, kernels
from packing.arrays import KINDS, LARGEST, Arrays
from packing.arrays import Floats as Floats
from packing.feasible import Reasons
from packing.instances import every_slice, room, smallest
from packing.reasons import Reason
from packing.request import WHOLE, Request
from packing.shape import Gpu as Gpu
from packing.shape import NodeShape as NodeShape
from packing.shape import Pool as Pool
from packing.shape import meaning

ALMOST = 0.999
"""A device at least this large is a whole GPU; the others are replicas and MIG instances."""
_MOST = 1 << 20
"""More devices than this in one request are as good as any number: no node has them, and they add up."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one pod holds on one node: CPU, memory, (pool row, devices), (GPU, compute milli, memory MiB), and
    of GPUs that are divided into MIG instances (GPU, mask of slices)."""

    row: int
    cpu_milli: int
    memory_mib: int
    devices: tuple[tuple[int, int], ...] = ()
    shares: tuple[tuple[int, int, int], ...] = ()
    slices: tuple[tuple[int, int], ...] = ()


class Fleet(Arrays):
    """Nodes and what is free on them. The arrays are described in ``Arrays``.

    Shares below ``minimum_milli`` thousandths of a GPU are refused; 0 refuses none.
    """

    def __init__(self, nodes: int = 64, gpus: int = 8, *, minimum_milli: int = 0) -> None:
        super().__init__(nodes, gpus)
        self.minimum_milli = minimum_milli
        self._answered: tuple[Request, int, Reasons] | None = None
        self._slices: defaultdict[int, Counter[tuple[int, int]]] = defaultdict(Counter)  # holders, by row

    def put(self, shape: NodeShape) -> int:
        """Add a node, or replace the one of that name, and return its row. The row is empty afterwards:
        what its pods hold must be taken again."""
        row = self.rows.get(shape.name)
        if row is None:
            row = self._new_row(shape.name)
        self._reserve_gpus(len(shape.gpus))
        pools = self._add_resources([pool.resource for pool in shape.pools])
        self._forget_uuids(row)
        self.shapes[row] = shape
        self.blocked[row] = shape.blocked
        self.model[row] = self._model(shape.model, shape.product, shape.mode)
        self.divided[row] = self._division(shape.divided_as)
        self.cuda[row] = shape.cuda
        self.max_island[row] = max(map(len, shape.islands), default=min(1, len(shape.gpus)))
        self._slices.pop(row, None)
        self._empty(row, shape)
        for resource, pool in zip(pools, shape.pools, strict=True):
            self.free[resource, row] = self.total[resource, row] = pool.total
            self.most[resource, row] = pool.most
            self.divides[resource, row] = shape.divides(pool)
            memory = shape.gpus[pool.gpus[0]].memory_mib if pool.gpus else 0
            self.device_gpu[resource, row] = _mean_share(pool.compute_milli, pool.memory_mib, memory)
        self.touch(row)
        return row

    def remove(self, name: str) -> None:
        """Forget a node; its row answers "unknown" until it is reused."""
        row = self.rows.pop(name)
        self._forget_uuids(row)
        self._slices.pop(row, None)
        self._empty(row, NodeShape(name, 0, 0))
        self.shapes[row] = None
        self.blocked[row] = Reason.UNKNOWN_NODE
        self._vacant.append(row)
        self.touch(row)

    def block(self, row: int, reason: Reason) -> None:
        """Close a node for this reason until further notice; ``FITS`` opens it."""
        if self.blocked[row] != reason:
            self.blocked[row] = reason
            self.touch(row)

    def allocation(self, row: int, request: Request, gpus: Sequence[int] = ()) -> Allocation:
        """What ``request``, as the node takes it, takes there; ``gpus`` are the indices its shares go to.

        Whether it fits is not checked: a pod that runs holds what it holds. Devices that the node does not
        have are left out (the kubelet gave it none of them).
        """
        shape = self.shapes[row]
        if shape is not None:
            request = meaning(shape, request)
        devices: tuple[tuple[int, int], ...] = ()
        if request.devices and shape:
            owned = {pool.resource for pool in shape.pools}
            devices = tuple(
                (self.resources[name], min(count, _MOST)) for name, count in request.devices if name in owned
            )
        part = request.shares
        shares = tuple((g, part.compute_milli, self.share_mib(row, g, request)) for g in gpus) if part else ()
        slices = tuple(
            (gpu, self._window(row, gpu, milli, mib))
            for gpu, milli, mib in shares
            if shape and shape.gpus[gpu].instances
        )
        cpu, memory = min(request.cpu_milli, LARGEST // 2), min(request.memory_mib, LARGEST // 2)
        return Allocation(row, cpu, memory, devices, shares, slices)

    def slices(self, row: int, gpu: int) -> int:
        """The mask of slices of a GPU that are taken."""
        if row not in self._slices:  # as almost everywhere
            return 0
        held = self._slices[row].items()
        return sum(1 << place for (other, place), count in held if other == gpu and count > 0)

    def roomiest(self, row: int, request: Request) -> tuple[int, ...]:
        """The GPUs that a promised pod's shares count on: such as have room now, the freest first."""
        shape = self.shapes[row]
        part = meaning(shape, request).shares if shape else None
        if shape is None or part is None or part.resource != shape.divided_as:
            return ()
        compute, memory = self.compute[:, row].tolist(), self.memory[:, row].tolist()

        def rank(gpu: int) -> tuple[bool, float, float, int]:
            need = part.memory_mib + shape.gpus[gpu].memory_mib * part.memory_milli // WHOLE
            fits = self.divisible[gpu, row] and compute[gpu] >= part.compute_milli and memory[gpu] >= need
            return not fits, -compute[gpu], -memory[gpu], gpu

        return tuple(sorted(range(len(shape.gpus)), key=rank)[: part.count])

    def share_mib(self, row: int, gpu: int, request: Request) -> int:
        """Memory that one share of ``request`` takes on this GPU, in MiB."""
        part = request.shares
        if part is None:
            return 0
        capacity = int(self.memory_capacity[gpu, row])
        return min(part.memory_mib + capacity * part.memory_milli // WHOLE, LARGEST // 2)

    def take(self, held: Allocation) -> None:
        """Take an allocation, even beyond what is free: then the node counts as over-committed."""
        self._move(held, -1)

    def give_back(self, held: Allocation) -> None:
        """Undo ``take``: every array is again what it was before."""
        self._move(held, +1)

    @contextmanager
    def without(self, held: Sequence[Allocation]) -> Iterator[None]:
        """What if these were gone? The fleet inside the block; the exact old state after it."""
        for one in held:
            self.give_back(one)
        try:
            yield
        finally:
            for one in held:
                self.take(one)

    @contextmanager
    def holding(self, held: Iterable[Allocation]) -> Iterator[None]:
        """What if these were taken, too? (Nominated pods.) The exact old state after the block.

        Each is asked for once those before it are taken, so that it can go by what they leave.
        """
        taken: list[Allocation] = []
        try:
            for one in held:
                self.take(one)
                taken.append(one)
            yield
        finally:
            for one in taken:
                self.give_back(one)

    def reasons(self, request: Request) -> Reasons:
        """For every row the code of why ``request`` does not fit, 0 where it does: (N,) int8, to read only.

        prioritize asks what filter has just asked, so the last answer is kept until the fleet changes.
        """
        if self._answered is not None:
            asked, changes, reasons = self._answered
            if asked is request and changes == self.changes:
                return reasons
        reasons = feasible.reasons(self, request, self.minimum_milli)
        reasons.setflags(write=False)
        self._answered = request, self.changes, reasons
        return reasons

    def sizes(self, request: Request) -> Floats:
        """GPUs that ``request`` takes on each node, the mean of compute and memory share: (N,) float32."""
        return feasible.sizes(self, request)

    def allowed(self, request: Request) -> npt.NDArray[np.uint8]:
        """Per model id (an index into ``model_names``) 1 where the request may run."""
        return feasible.allowed(self, request)

    def free_gpu(self) -> float:
        """Free GPU of all nodes in GPUs, the mean of free compute and free memory."""
        capacity = np.maximum(self.memory_capacity, 1)
        return float((self.compute / WHOLE + self.memory / capacity).sum(dtype=np.float64)) / 2

    def _window(self, row: int, gpu: int, compute_milli: int, memory_mib: int) -> int:
        """The slices that a share gets now; all of them where there is no room."""
        shape = self.shapes[row]
        assert shape is not None
        instances = shape.gpus[gpu].instances
        found = smallest(instances, self.slices(row, gpu), compute_milli, memory_mib)
        return found[1] if found else every_slice(instances)

    def _move(self, held: Allocation, sign: int) -> None:
        row = held.row
        self.cpu[row] += sign * held.cpu_milli
        self.node_memory[row] += sign * held.memory_mib
        for resource, count in held.devices:
            self.free[resource, row] += sign * count
        for gpu, milli, mib in held.shares:
            self.compute[gpu, row] += sign * milli
            self.memory[gpu, row] += sign * mib
            self.slots[gpu, row] += sign
        for gpu, mask in held.slices:
            self._move_slices(row, gpu, mask, sign)
        if held.devices:
            self._mirror(row)
        if held.shares:
            self._recount(row)
        if held.devices or held.shares:
            self.hosted[self._kind(held), row] -= sign
            self._note_overcommitment(row)
        self.touch(row)

    def _move_slices(self, row: int, gpu: int, mask: int, sign: int) -> None:
        """Take or give back slices; then the GPU shows the largest instance that can be made, or less than
        nothing where a slice is taken twice."""
        shape, holders = self.shapes[row], self._slices[row]
        assert shape is not None
        for place in range(mask.bit_length()):
            if mask >> place & 1:
                holders[gpu, place] -= sign
        twice = any(count > 1 for (other, _), count in holders.items() if other == gpu)
        free = (-1, -1) if twice else room(shape.gpus[gpu].instances, self.slices(row, gpu))
        self.compute[gpu, row], self.memory[gpu, row] = free

    def _kind(self, held: Allocation) -> int:
        """Index into ``hosted``."""
        whole = any(milli >= WHOLE for _, milli, _ in held.shares)
        whole = whole or any(self.device_gpu[resource, held.row] > ALMOST for resource, _ in held.devices)
        count = len(held.shares) + sum(count for _, count in held.devices)
        return min(count, KINDS - 1) if whole else 0

    def _mirror(self, row: int) -> None:
        """Show the pools in the GPU arrays, as if their devices were taken GPU by GPU, lowest index first."""
        shape = self.shapes[row]
        assert shape is not None
        together: dict[tuple[int, ...], tuple[int, int]] = {}
        alone: dict[int, tuple[int, int]] = {}
        for pool in shape.pools:
            if shape.divides(pool):
                continue
            devices = pool.total - int(self.free[self.resources[pool.resource], row])
            if not pool.each:
                milli, mib = together.get(pool.gpus, (0, 0))
                together[pool.gpus] = (
                    milli + devices * pool.compute_milli,
                    mib + devices * pool.memory_mib,
                )
            for gpu, here in zip(pool.gpus, pool.each, strict=False):
                milli, mib = alone.get(gpu, (0, 0))
                taken = min(max(devices, 0), here)
                alone[gpu] = (milli + taken * pool.compute_milli, mib + taken * pool.memory_mib)
                devices -= taken
        for gpus, (milli, mib) in together.items():
            for gpu in gpus:
                here_milli, here_mib = self._show(row, gpu, milli, mib)
                milli, mib = milli - here_milli, mib - here_mib
        for gpu, (milli, mib) in alone.items():
            self._show(row, gpu, milli, mib)

    def _show(self, row: int, gpu: int, milli: int, mib: int) -> tuple[int, int]:
        """Show so much of a GPU as taken, at most all of it; how much that is."""
        shape = self.shapes[row]
        assert shape is not None
        memory = shape.gpus[gpu].memory_mib
        milli, mib = min(max(milli, 0), WHOLE), min(max(mib, 0), memory)
        self.compute[gpu, row], self.memory[gpu, row] = WHOLE - milli, memory - mib
        return milli, mib

    def _recount(self, row: int) -> None:
        """Which GPUs can still take a share, and how many of them nobody has a part of."""
        shape = self.shapes[row]
        assert shape is not None
        untouched = np.empty(len(self.compute), np.uint8)
        kernels.note_untouched(
            row, self.compute, self.memory, self.compute_capacity, self.memory_capacity,
            self.shareable, self.slots, self.divisible, untouched,
        )  # fmt: skip
        for pool in shape.pools:
            if shape.divides(pool):
                whole = int(untouched[list(pool.gpus)].sum())
                self.free[self.resources[pool.resource], row] = min(whole, pool.total)

    def _note_overcommitment(self, row: int) -> None:
        kernels.note_overcommitment(row, self.compute, self.memory, self.free, self.overcommitted)


def _mean_share(compute_milli: int, memory_mib: int, capacity_mib: int) -> float:
    compute = compute_milli / WHOLE
    return (compute + memory_mib / capacity_mib) / 2 if capacity_mib else compute
