"""The fleet: every node and GPU as arrays, and the only place where something is taken or given back.

A GPU request is met in one of two ways. *Counted* devices (whole GPUs, replicas, existing MIG instances
behind a device plugin) live in pools: the plugin chooses the physical device, so the pool's count is the
truth and the GPU arrays show the pool as if it were filled GPU by GPU. *Divisible* GPUs are placed device
by device, and there the arrays are the truth.

All quantities are whole numbers (milli, MiB) and below 2**24, so float32 holds them exactly and giving
back restores every array bit by bit.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from packing import kernels
from packing.reasons import Reason
from packing.request import ANY, WHOLE, Request
from packing.shape import Gpu as Gpu
from packing.shape import NodeShape as NodeShape
from packing.shape import Pool as Pool
from packing.shape import meaning

Floats = npt.NDArray[np.float32]
Reasons = npt.NDArray[np.int8]
_LARGEST = (1 << 24) - 1
_MOST = 1 << 20
"""More devices than this in one request are as good as any number: no node has them, and they add up."""
_PER_GPU = (
    "compute",
    "compute_capacity",
    "memory",
    "memory_capacity",
    "divisible",
    "shareable",
    "slots",
    "identified",
)


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one pod holds on one node: CPU, memory, (pool row, devices), (GPU, compute milli, memory MiB)."""

    row: int
    cpu_milli: int
    memory_mib: int
    devices: tuple[tuple[int, int], ...] = ()
    shares: tuple[tuple[int, int, int], ...] = ()


class Fleet:
    """Nodes as rows of arrays. Rows are stable; a removed node's row is reused.

    Shapes: G GPUs a node at most, N rows allocated, R resources. ``compute`` and ``memory`` (G, N) are free
    milli-GPU and MiB, ``compute_capacity`` and ``memory_capacity`` (G, N) what a GPU has (0: no such GPU),
    ``divisible`` (G, N) 1 where another share may be placed, ``shareable`` (G, N) where one ever may,
    ``slots`` (G, N) shares that a GPU can still take, ``identified`` (G, N) 1 where its UUID is in
    ``uuids``, ``free`` and ``total`` (R, N) devices of each pool, ``device_gpu`` (R, N) the size of one of
    them in GPUs, ``cpu`` and ``node_memory`` (N,) free milli and MiB, ``cpu_capacity`` (N,) milli,
    ``model`` (N,) an index into ``model_names``, ``max_island`` (N,) GPUs, ``overcommitted`` (N,) 1 where
    GPU is handed out twice, ``blocked`` (N,) a reason code, ``order`` (N,) a fixed order of nodes for ties,
    ``generation`` (N,) counts changes of a node and ``changes`` all, ``most`` (R, N) devices of a pool for one
    container (0: any number), ``divides`` (R, N) 1 where they are whole divisible GPUs, ``divided`` (N,) an index into ``divisions``,
    ``cuda`` (N,) versions.
    """

    def __init__(self, nodes: int = 64, gpus: int = 8) -> None:
        self.shapes: list[NodeShape | None] = []
        self.changes = 0
        self.rows: dict[str, int] = {}
        self.resources: dict[str, int] = {}
        self.model_names: list[str | None] = [None]
        self.products: list[str] = [""]
        self.divisions: dict[str, int] = {"": 0}
        self.uuids: dict[str, tuple[int, int]] = {}
        self._vacant: list[int] = []
        self.cpu, self.cpu_capacity, self.node_memory = _floats(nodes), _floats(nodes), _floats(nodes)
        self.compute, self.compute_capacity = _floats(gpus, nodes), _floats(gpus, nodes)
        self.memory, self.memory_capacity = _floats(gpus, nodes), _floats(gpus, nodes)
        self.divisible, self.shareable, self.identified = np.zeros((3, gpus, nodes), np.uint8)
        self.slots = np.zeros((gpus, nodes), np.int32)
        self.free, self.total = np.zeros((0, nodes), np.int32), np.zeros((0, nodes), np.int32)
        self.device_gpu, self.most = _floats(0, nodes), np.zeros((0, nodes), np.int32)
        self.divides = np.zeros((0, nodes), np.uint8)
        self.divided, self.cuda = np.zeros(nodes, np.uint8), np.zeros(nodes, np.int32)
        self.model, self.max_island = np.zeros(nodes, np.int16), np.zeros(nodes, np.int16)
        self.overcommitted = np.zeros(nodes, np.uint8)
        self.blocked = np.full(nodes, Reason.UNKNOWN_NODE, np.int8)
        self.order, self.generation = np.zeros(nodes, np.uint32), np.zeros(nodes, np.int64)

    @property
    def capacity(self) -> int:
        """Rows allocated (N); rows without a node are blocked as unknown."""
        return self.blocked.size

    def put(self, shape: NodeShape) -> int:
        """Add a node, or replace the one of that name, and return its row. The row is empty afterwards:
        what its pods hold must be taken again."""
        row = self.rows.get(shape.name)
        if row is None:
            row = self._new_row(shape.name)
        self._reserve_gpus(len(shape.gpus))
        pools = [self._resource(pool.resource) for pool in shape.pools]
        self._forget_uuids(row)
        self.shapes[row] = shape
        self.blocked[row] = shape.blocked
        self.model[row] = self._model(shape.model, shape.product)
        self.divided[row] = self.divisions.setdefault(shape.divided_as, len(self.divisions))
        self.cuda[row] = shape.cuda
        self.max_island[row] = max(map(len, shape.islands), default=min(1, len(shape.gpus)))
        self._reset(row, shape)
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
        self._reset(row, NodeShape(name, 0, 0))
        self.shapes[row] = None
        self.blocked[row] = Reason.UNKNOWN_NODE
        self._vacant.append(row)
        self.touch(row)

    def allocation(self, row: int, request: Request, gpus: Sequence[int] = ()) -> Allocation:
        """What ``request``, as the node takes it, takes there; ``gpus`` are the indices its shares go to.

        Whether it fits is not checked: a pod that runs holds what it holds. Devices that the node does not
        have are left out (the kubelet gave it none of them).
        """
        shape = self.shapes[row]
        if shape is not None:
            request = meaning(shape, request)
        owned = {pool.resource for pool in shape.pools} if shape else set()
        devices = tuple(
            (self.resources[name], min(count, _MOST)) for name, count in request.devices if name in owned
        )
        part = request.shares
        shares = tuple((g, part.compute_milli, self.share_mib(row, g, request)) for g in gpus) if part else ()
        cpu, memory = min(request.cpu_milli, _LARGEST // 2), min(request.memory_mib, _LARGEST // 2)
        return Allocation(row, cpu, memory, devices, shares)

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
        return min(part.memory_mib + capacity * part.memory_milli // WHOLE, _LARGEST // 2)

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
    def holding(self, held: Sequence[Allocation]) -> Iterator[None]:
        """What if these were taken, too? (Nominated pods.) The exact old state after the block."""
        for one in held:
            self.take(one)
        try:
            yield
        finally:
            for one in held:
                self.give_back(one)

    def reasons(self, request: Request) -> Reasons:
        """For every row the reason code why ``request`` does not fit, 0 where it does: (N,) int8."""
        reasons = np.empty(self.capacity, np.int8)
        kernels.node_reasons(self.cpu, self.node_memory, request.cpu_milli, request.memory_mib, reasons)
        for name, count in request.devices:
            self._device_reasons(name, count, request.together, reasons)
        if request.shares:
            self._share_reasons(request, reasons)
        if request.cuda:
            reasons[(self.cuda < request.cuda) & (reasons != Reason.NO_SUCH_DEVICE)] = Reason.OLD_DRIVER
        wanted = sum(count for _, count in request.devices) + (request.shares.count if request.shares else 0)
        island = min(wanted, 32767) if request.island else 0
        kernels.standing_reasons(
            self.model,
            self.allowed(request),
            self.max_island,
            island,
            self.overcommitted,
            self.blocked,
            reasons,
        )
        return reasons

    def sizes(self, request: Request) -> Floats:
        """GPUs that ``request`` takes on each node, the mean of compute and memory share: (N,) float32."""
        sizes = np.zeros(self.capacity, np.float32)
        for name, count in request.devices:
            if name in self.resources:
                sizes += count * self.device_gpu[self.resources[name]]
        if request.shares:
            part = request.shares
            memory = part.memory_milli / WHOLE + part.memory_mib / np.maximum(self.memory_capacity[0], 1)
            sizes += (part.count / 2) * (part.compute_milli / WHOLE + memory).astype(np.float32)
        return sizes

    def free_gpu(self) -> float:
        """Free GPU of all nodes in GPUs, the mean of free compute and free memory."""
        capacity = np.maximum(self.memory_capacity, 1)
        return float((self.compute / WHOLE + self.memory / capacity).sum(dtype=np.float64)) / 2

    def touch(self, row: int) -> None:
        """Note that a row changed, for whoever keeps something derived from it."""
        self.generation[row] += 1
        self.changes += 1

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
        if held.devices:
            self._mirror(row)
        if held.shares:
            self._recount(row)
        if held.devices or held.shares:
            self._note_overcommitment(row)
        self.touch(row)

    def _mirror(self, row: int) -> None:
        """Show the pools in the GPU arrays, as if their devices were taken GPU by GPU, lowest index first."""
        shape = self.shapes[row]
        assert shape is not None
        taken: dict[tuple[int, ...], tuple[int, int]] = {}
        for pool in shape.pools:
            if shape.divides(pool):
                continue
            devices = pool.total - int(self.free[self.resources[pool.resource], row])
            milli, mib = taken.get(pool.gpus, (0, 0))
            taken[pool.gpus] = (milli + devices * pool.compute_milli, mib + devices * pool.memory_mib)
        for gpus, (milli, mib) in taken.items():
            for gpu in gpus:
                here = min(max(milli, 0), WHOLE), min(max(mib, 0), shape.gpus[gpu].memory_mib)
                self.compute[gpu, row] = WHOLE - here[0]
                self.memory[gpu, row] = shape.gpus[gpu].memory_mib - here[1]
                milli, mib = milli - here[0], mib - here[1]

    def _recount(self, row: int) -> None:
        """Which GPUs can still take a share, and how many of them nobody has a part of."""
        shape = self.shapes[row]
        assert shape is not None
        self.divisible[:, row] = self.shareable[:, row] * (self.slots[:, row] > 0)
        untouched = (
            (self.divisible[:, row] != 0)
            & (self.compute[:, row] >= self.compute_capacity[:, row])
            & (self.memory[:, row] >= self.memory_capacity[:, row])
        )
        for pool in shape.pools:
            if shape.divides(pool):
                whole = int(untouched[list(pool.gpus)].sum())
                self.free[self.resources[pool.resource], row] = min(whole, pool.total)

    def _note_overcommitment(self, row: int) -> None:
        shares = (self.compute[:, row] < 0).any() or (self.memory[:, row] < 0).any()
        self.overcommitted[row] = bool(shares or (self.free[:, row] < 0).any())

    def _reset(self, row: int, shape: NodeShape) -> None:
        self.cpu[row] = self.cpu_capacity[row] = min(shape.cpu_milli, _LARGEST)
        self.node_memory[row] = min(shape.memory_mib, _LARGEST)
        self.free[:, row] = self.total[:, row] = self.device_gpu[:, row] = self.most[:, row] = 0
        self.divides[:, row] = 0
        self.compute_capacity[:, row] = self.memory_capacity[:, row] = 0
        self.shareable[:, row] = self.slots[:, row] = self.identified[:, row] = 0
        for gpu, has in enumerate(shape.gpus):
            self.compute_capacity[gpu, row] = has.compute_milli
            self.memory_capacity[gpu, row] = min(has.memory_mib, _LARGEST)
            self.shareable[gpu, row] = has.divisible
            self.slots[gpu, row] = has.slots
            if has.uuid:
                self.uuids[has.uuid], self.identified[gpu, row] = (gpu, row), 1
        self.divisible[:, row] = self.shareable[:, row] * (self.slots[:, row] > 0)
        self.compute[:, row] = self.compute_capacity[:, row]
        self.memory[:, row] = self.memory_capacity[:, row]
        self.overcommitted[row] = 0

    def _device_reasons(self, name: str, count: int, together: int, reasons: Reasons) -> None:
        resource = self.resources.get(name)
        if resource is None:
            reasons[:] = Reason.NO_SUCH_DEVICE
        else:
            wanted = min(count, np.iinfo(np.int32).max)
            kernels.device_reasons(self.free[resource], self.total[resource], wanted, reasons)
            if together > 1:
                limit = self.most[resource]
                reasons[(limit > 0) & (limit < together)] = Reason.ONE_REPLICA

    def _share_reasons(self, request: Request, reasons: Reasons) -> None:
        part = request.shares
        assert part is not None
        counts, frees = np.empty((2, self.capacity), np.int32), np.empty((2, self.capacity), np.float32)
        divisible, shareable = self.divisible, self.shareable
        if request.uuids is not ANY:
            named = self._named(request)
            divisible, shareable = divisible * named, shareable * named
        kernels.share_reasons(
            self.compute, self.memory, self.compute_capacity, self.memory_capacity, divisible, shareable,
            min(part.count, 32767), part.compute_milli, part.memory_mib, part.memory_milli / WHOLE,
            reasons, *counts, *frees,
        )  # fmt: skip
        reasons[self.divided != self.divisions.get(part.resource, -1)] = Reason.NO_SUCH_DEVICE

    def _named(self, request: Request) -> npt.NDArray[np.uint8]:
        """(G, N) 1 for the GPUs whose UUID the request permits."""
        allow, deny = request.uuids.allow, request.uuids.deny
        named = np.zeros_like(self.identified) if allow else self.identified.copy()
        for uuid in frozenset.intersection(*allow) if allow else deny:
            if uuid in self.uuids:
                named[self.uuids[uuid]] = uuid not in deny
        return named

    def allowed(self, request: Request) -> npt.NDArray[np.uint8]:
        """Per model id (an index into ``model_names``) 1 where the request may run."""
        models, products = request.models, request.products
        return np.array(
            [
                (models is None or model in models)
                and products.permits_match(" ".join(filter(None, (model, product))))
                for model, product in zip(self.model_names, self.products, strict=True)
            ],
            np.uint8,
        )

    def _forget_uuids(self, row: int) -> None:
        shape = self.shapes[row]
        for gpu, had in enumerate(shape.gpus if shape else ()):
            if self.uuids.get(had.uuid) == (gpu, row):
                del self.uuids[had.uuid]

    def _new_row(self, name: str) -> int:
        if self._vacant:
            row = self._vacant.pop()
        else:
            row = len(self.shapes)
            self.shapes.append(None)
            if row >= self.capacity:
                self._widen(max(64, self.capacity * 2))
        self.rows[name] = row
        self.order[row] = zlib.crc32(name.encode())  # the same whatever order nodes arrive in
        return row

    def _widen(self, nodes: int) -> None:
        more = nodes - self.capacity
        for name, array in vars(self).items():
            if isinstance(array, np.ndarray):
                filler = Reason.UNKNOWN_NODE if name == "blocked" else 0
                widths = [(0, 0)] * (array.ndim - 1) + [(0, more)]
                setattr(self, name, np.pad(array, widths, constant_values=filler))

    def _reserve_gpus(self, gpus: int) -> None:
        more = gpus - self.compute.shape[0]
        if more > 0:
            for name in _PER_GPU:
                setattr(self, name, np.pad(getattr(self, name), [(0, more), (0, 0)]))

    def _resource(self, name: str) -> int:
        if name not in self.resources:
            self.resources[name] = len(self.resources)
            for array in ("free", "total", "device_gpu", "most", "divides"):
                setattr(self, array, np.pad(getattr(self, array), [(0, 1), (0, 0)]))
        return self.resources[name]

    def _model(self, model: str | None, product: str) -> int:
        known = zip(self.model_names, self.products, strict=True)
        for index, pair in enumerate(known):
            if pair == (model, product):
                return index
        self.model_names.append(model)
        self.products.append(product)
        return len(self.products) - 1


def _floats(*shape: int) -> Floats:
    return np.zeros(shape, np.float32)


def _mean_share(compute_milli: int, memory_mib: int, capacity_mib: int) -> float:
    compute = compute_milli / WHOLE
    return (compute + memory_mib / capacity_mib) / 2 if capacity_mib else compute
