"""The fleet: every node and GPU as arrays, and the only place where something is taken or given back.

A GPU request is met in one of two ways. *Counted* devices (whole GPUs, replicas, existing MIG instances
behind a device plugin) live in pools: the plugin chooses the physical device, so the pool's count is the
truth and the GPU arrays show the pool as if it were filled GPU by GPU. *Divisible* GPUs are placed device
by device, and there the arrays are the truth; of a GPU that is divided into MIG instances they show the
largest instance that can still be made.

What is taken of each node is counted in Python's whole numbers, of which no one overflows or is rounded. The
arrays are written from them at every move, cut to what their types hold, so giving back restores every array
bit by bit, whatever was taken and in whatever order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from packing.fleet import feasibility as feasible
from packing.fleet import feasibility_kernels as kernels
from packing.fleet.arrays import KINDS, LARGEST, MOST_GPUS, Arrays, TooMany
from packing.fleet.arrays import Floats as Floats
from packing.fleet.feasibility import Reasons
from packing.model.mig_instances import every_slice, room, smallest
from packing.model.node_spec import Gpu as Gpu
from packing.model.node_spec import NodeSpec as NodeSpec
from packing.model.node_spec import Pool as Pool
from packing.model.node_spec import in_one_island, meaning
from packing.model.reasons import Reason
from packing.model.request import MOST_DEVICES, WHOLE, Request, share_memory_mib

ALMOST = 0.999
"""A device at least this large is a whole GPU; the others are replicas and MIG instances."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one pod holds on one node: CPU, memory, (pool row, devices), (GPU, compute milli, memory MiB), and
    of GPUs that are divided into MIG instances (GPU, mask of slices)."""

    row: int
    cpu_milli: int
    memory_bytes: int
    devices: tuple[tuple[int, int], ...] = ()
    shares: tuple[tuple[int, int, int], ...] = ()
    slices: tuple[tuple[int, int], ...] = ()

    @property
    def memory_mib(self) -> int:
        """Memory of the node that it holds, in MiB, rounded up."""
        return -(-self.memory_bytes >> 20)


@dataclass(slots=True)
class _Taken:
    """What is taken of one node: CPU, memory, devices by pool row, (compute milli, memory MiB) by GPU for
    shares and for the devices that are shown there, and the holders of each slice (GPU, place)."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    devices: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    compute: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    memory: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    shown: dict[int, tuple[int, int]] = field(default_factory=dict)
    slices: defaultdict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))


class Fleet(Arrays):
    """Nodes and what is free on them. The arrays are described in ``Arrays``."""

    def __init__(self, nodes: int = 64, gpus: int = 8, *, minimum_milli: int = 0) -> None:
        super().__init__(nodes, gpus, minimum_milli)
        self._answered: tuple[Request, int, Reasons] | None = None
        self._taken: defaultdict[int, _Taken] = defaultdict(_Taken)  # by row
        self._promised: defaultdict[int, list[Allocation]] = defaultdict(list)  # by row, of ``holding``

    def put(self, shape: NodeSpec) -> int:
        """Add a node, or replace the one of that name, and return its row. The row is empty afterwards:
        what its pods hold must be taken again.

        Raises TooMany where the fleet would exceed a bound of ``Arrays``: the node is then as it was.
        """
        if len(shape.gpus) > MOST_GPUS:
            raise TooMany(f"{len(shape.gpus)} GPUs on one node, more than {MOST_GPUS}")
        division = self._division(shape.sharing_resource)
        kind = self._gpu_kind((shape.model, shape.product, shape.mode))
        pools = self._resources([pool.resource for pool in shape.pools])
        row = self.rows.get(shape.name)
        if row is None:
            row = self._new_row(shape.name)
        self._reserve_gpus(len(shape.gpus))
        self._forget_uuids(row)
        self.shapes[row] = shape
        self.blocked[row], self.model[row], self.divided[row] = shape.blocked, kind, division
        self.cuda[row] = min(shape.cuda, LARGEST)
        self.max_island[row] = max(map(len, shape.peers), default=0)
        self._taken.pop(row, None)
        self._empty(row, shape)
        for resource, pool in zip(pools, shape.pools, strict=True):
            self.free[resource, row] = self.total[resource, row] = min(pool.total, MOST_DEVICES)
            self.most[resource, row] = min(pool.most, MOST_DEVICES)
            self.divides[resource, row] = shape.divides(pool)
            memory = shape.gpus[pool.gpus[0]].memory_mib if pool.gpus else 0
            self.device_gpu[resource, row] = _mean_share(pool.compute_milli, pool.memory_mib, memory)
        self.touch(row)
        return row

    def remove(self, name: str) -> None:
        """Forget a node; its row answers "unknown" until it is reused."""
        row = self.rows.pop(name)
        self._forget_uuids(row)
        self._taken.pop(row, None)
        self._empty(row, NodeSpec(name, 0, 0))
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
            devices = tuple((self.resources[name], count) for name, count in request.devices if name in owned)
        part = request.shares
        shares = tuple((g, part.compute_milli, self.share_mib(row, g, request)) for g in gpus) if part else ()
        slices = tuple(
            (gpu, self._window(row, gpu, milli, mib))
            for gpu, milli, mib in shares
            if shape and shape.gpus[gpu].instances
        )
        return Allocation(row, request.cpu_milli, request.memory_bytes, devices, shares, slices)

    def slices(self, row: int, gpu: int) -> int:
        """The mask of slices of a GPU that are taken."""
        if row not in self._taken:
            return 0
        held = self._taken[row].slices.items()
        return sum(1 << place for (other, place), count in held if other == gpu and count > 0)

    def freest_gpus(self, row: int, request: Request) -> tuple[int, ...]:
        """The GPUs that a promised pod's shares count on: such as have room now, the freest first. A pod that
        needs peers counts on one island, the one with the most such GPUs if none has enough."""
        shape = self.shapes[row]
        wanted = meaning(shape, request) if shape else request
        part = wanted.shares
        if shape is None or part is None or part.resource != shape.sharing_resource:
            return ()
        compute, memory = self.compute[:, row].tolist(), self.memory[:, row].tolist()

        def fits(gpu: int) -> bool:
            enough = compute[gpu] >= max(part.compute_milli, 1)
            enough = enough and memory[gpu] >= self.share_mib(row, gpu, wanted)
            named = request.uuids.permits(shape.gpus[gpu].uuid)
            return bool(self.divisible[gpu, row]) and named and enough

        room = {gpu for gpu in range(len(shape.gpus)) if fits(gpu)}
        gpus: Collection[int] = range(len(shape.gpus))
        if request.island:
            large = [island for island in shape.peers if len(island) >= part.count]
            most = max(large, key=lambda island: len(room.intersection(island)), default=gpus)
            gpus = in_one_island(shape, room, part.count) or most
        ranked = sorted(gpus, key=lambda gpu: (gpu not in room, -compute[gpu], -memory[gpu], gpu))
        return tuple(ranked[: part.count])

    def share_mib(self, row: int, gpu: int, request: Request) -> int:
        """Memory that one share of ``request`` takes on this GPU, in MiB."""
        part = request.shares
        if part is None:
            return 0
        return share_memory_mib(int(self.memory_capacity[gpu, row]), part.memory_mib, part.memory_milli)

    def take(self, held: Allocation) -> None:
        """Take an allocation, even beyond what is free: then the node counts as over-committed."""
        self._move(held, +1)
        self._note_overcommitment(held.row)

    def give_back(self, held: Allocation) -> None:
        """Undo ``take``: every array is again what it was before."""
        self._move(held, -1)
        self._note_overcommitment(held.row)

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

        Each is asked for once those before it are taken, so that it can go by what they leave. They may wait
        for room that others still have: where more is taken than there is nothing is free, but the node does
        not count as over-committed.
        """
        taken: list[Allocation] = []
        try:
            for one in held:
                self._move(one, +1)
                self._promised[one.row].append(one)
                taken.append(one)
            yield
        finally:
            for one in taken:
                self._move(one, -1)
                self._promised[one.row].remove(one)

    def reasons(self, request: Request) -> Reasons:
        """For every row the code of why ``request`` does not fit, 0 where it does: (N,) int8, to read only.

        prioritize asks what filter has just asked, so the last answer is kept until the fleet changes.
        """
        if self._answered is not None:
            asked, changes, reasons = self._answered
            if asked is request and changes == self.changes:
                return reasons
        reasons = feasible.reasons(self, request)
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
        row, taken, shape = held.row, self._taken[held.row], self.shapes[held.row]
        assert shape is not None
        taken.cpu_milli += sign * held.cpu_milli
        taken.memory_bytes += sign * held.memory_bytes
        self._show_node(row, shape.cpu_milli - taken.cpu_milli, shape.memory_bytes - taken.memory_bytes)
        for gpu, milli, mib in held.shares:
            taken.compute[gpu] += sign * milli
            taken.memory[gpu] += sign * mib
            self.slots[gpu, row] -= sign
        for gpu, mask in held.slices:
            for place in range(mask.bit_length()):
                if mask >> place & 1:
                    taken.slices[gpu, place] += sign
        for gpu in {gpu for gpu, *_ in (*held.shares, *held.slices)}:
            self._show_gpu(row, gpu)
        if held.devices:
            self._move_devices(row, held.devices, sign)
        if held.shares:
            self._recount(row)
        if held.devices or held.shares:
            self.pods_by_gpu_count[self._kind(held), row] += sign
        self.touch(row)

    def _move_devices(self, row: int, devices: tuple[tuple[int, int], ...], sign: int) -> None:
        """Take or give back devices of pools, and show them on the GPUs that carry them."""
        shape, taken = self.shapes[row], self._taken[row]
        assert shape is not None
        for resource, count in devices:
            taken.devices[resource] += sign * count
        for pool in shape.pools:
            if not shape.divides(pool):
                resource = self.resources[pool.resource]
                free = pool.total - taken.devices[resource]
                self.free[resource, row] = min(max(free, -MOST_DEVICES), MOST_DEVICES)
        before, taken.shown = taken.shown, self._shown(shape, taken)
        for gpu, use in taken.shown.items():
            if before.get(gpu, (0, 0)) != use:
                self._show_gpu(row, gpu)

    def _show_gpu(self, row: int, gpu: int) -> None:
        """Show what is free of a GPU, below nothing where more is taken than it has. Of one that is divided
        into MIG instances that is the largest that can be made, or less than nothing where a slice is taken
        twice."""
        shape, taken = self.shapes[row], self._taken[row]
        assert shape is not None
        has = shape.gpus[gpu]
        if has.instances:
            twice = any(count > 1 for (other, _), count in taken.slices.items() if other == gpu)
            compute, memory = (-1, -1) if twice else room(has.instances, self.slices(row, gpu))
        else:
            milli, mib = taken.shown.get(gpu, (0, 0))
            compute = has.compute_milli - milli - taken.compute[gpu]
            memory = min(has.memory_mib, LARGEST) - mib - taken.memory[gpu]
        self.compute[gpu, row], self.memory[gpu, row] = max(compute, -LARGEST), max(memory, -LARGEST)

    def _kind(self, held: Allocation) -> int:
        """Index into ``pods_by_gpu_count``."""
        whole = any(milli >= WHOLE for _, milli, _ in held.shares)
        whole = whole or any(self.device_gpu[resource, held.row] > ALMOST for resource, _ in held.devices)
        count = len(held.shares) + sum(count for _, count in held.devices)
        return min(count, KINDS - 1) if whole else 0

    def _shown(self, shape: NodeSpec, taken: _Taken) -> dict[int, tuple[int, int]]:
        """(compute milli, memory MiB) to show as taken by pools, by GPU, as if their devices were taken GPU
        by GPU, lowest index first."""
        together: dict[tuple[int, ...], tuple[int, int]] = {}
        shown: dict[int, tuple[int, int]] = {}
        for pool in shape.pools:
            if shape.divides(pool):
                continue
            devices = taken.devices[self.resources[pool.resource]]
            if not pool.each:
                milli, mib = together.get(pool.gpus, (0, 0))
                together[pool.gpus] = milli + devices * pool.compute_milli, mib + devices * pool.memory_mib
            for gpu, here in zip(pool.gpus, pool.each, strict=False):
                milli, mib = shown.get(gpu, (0, 0))
                there = min(devices, here)
                shown[gpu] = milli + there * pool.compute_milli, mib + there * pool.memory_mib
                devices -= there
        for gpus, (milli, mib) in together.items():
            for gpu in gpus:
                taken_milli, taken_mib = _at_most(shape.gpus[gpu], milli, mib)
                before_milli, before_mib = shown.get(gpu, (0, 0))
                shown[gpu] = before_milli + taken_milli, before_mib + taken_mib
                milli, mib = milli - taken_milli, mib - taken_mib
        return {gpu: _at_most(shape.gpus[gpu], *use) for gpu, use in shown.items()}

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
        """Note whether more of a GPU or a pool is taken than there is, beside what is only promised."""
        promised = self._promised[row]
        for one in promised:
            self._move(one, -1)
        kernels.note_overcommitment(row, self.compute, self.memory, self.free, self.overcommitted)
        for one in promised:
            self._move(one, +1)


def _at_most(gpu: Gpu, milli: int, mib: int) -> tuple[int, int]:
    """So much of a GPU, at most all of it."""
    return min(milli, gpu.compute_milli), min(mib, gpu.memory_mib, LARGEST)


def _mean_share(compute_milli: int, memory_mib: int, capacity_mib: int) -> float:
    compute = compute_milli / WHOLE
    return (compute + memory_mib / capacity_mib) / 2 if capacity_mib else compute
