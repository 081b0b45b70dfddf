"""The arrays of a fleet: which rows, GPUs and resources there are, and how they grow.

GPU-major, (G, N) and C-contiguous, because that is how the kernels are fast. Nothing is taken or given back
here, and nothing is asked.
"""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

from packing.reasons import Reason
from packing.shape import NodeShape

Floats = npt.NDArray[np.float32]
KINDS = 17
LARGEST = (1 << 24) - 1
"""The largest whole number below which float32 has every one."""
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
_PER_RESOURCE = ("free", "total", "device_gpu", "most", "divides")


class Arrays:
    """Nodes as rows of arrays. Rows are stable; a removed node's row is reused.

    Shapes: G GPUs a node at most, N rows allocated, R resources. ``compute`` and ``memory`` (G, N) are free
    milli-GPU and MiB, ``compute_capacity`` and ``memory_capacity`` (G, N) what a GPU has (0: no such GPU),
    ``divisible`` (G, N) 1 where another share may be placed, ``shareable`` (G, N) where one ever may,
    ``slots`` (G, N) shares that a GPU can still take, ``identified`` (G, N) 1 where its UUID is in
    ``uuids``, ``free`` and ``total`` (R, N) devices of each pool, ``device_gpu`` (R, N) the size of one of
    them in GPUs, ``cpu`` and ``node_memory`` (N,) free milli and MiB, ``cpu_capacity`` (N,) milli,
    ``model`` (N,) an index into ``model_names``, ``max_island`` (N,) GPUs, ``overcommitted`` (N,) 1 where
    GPU is handed out twice, ``blocked`` (N,) a reason code, ``order`` (N,) a fixed order of nodes for ties,
    ``generation`` (N,) counts changes of a node and ``changes`` those of all, ``replaced`` counts nodes that
    came or went, ``grown`` changes of the arrays' shapes and new ids, ``most`` (R, N) devices of a
    pool for one container (0: any number), ``divides`` (R, N) 1 where they are whole divisible GPUs,
    ``divided`` (N,) an index into ``divisions``, ``cuda`` (N,) versions, ``hosted`` (KINDS, N) pods by the
    number of GPUs that they have (the last: so many or more), 0 for parts of GPUs; ``permits`` keeps which
    models requests may run on, ``permits_size`` is how large that is (see ``feasible.allowed``).
    """

    def __init__(self, nodes: int = 64, gpus: int = 8) -> None:
        self.shapes: list[NodeShape | None] = []
        self.changes = self.replaced = self.grown = 0
        self.rows: dict[str, int] = {}
        self.resources: dict[str, int] = {}
        self.model_names: list[str | None] = [None]
        self.products: list[str] = [""]
        self.modes: list[str] = [""]
        self.divisions: dict[str, int] = {"": 0}
        self.uuids: dict[str, tuple[int, int]] = {}
        self.permits: dict[tuple[object, ...], npt.NDArray[np.uint8]] = {}
        self.permits_size = 0
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
        self.hosted = np.zeros((KINDS, nodes), np.int32)
        self.order, self.generation = np.zeros(nodes, np.uint32), np.zeros(nodes, np.int64)

    @property
    def capacity(self) -> int:
        """Rows allocated (N); rows without a node are blocked as unknown."""
        return self.blocked.size

    def touch(self, row: int) -> None:
        """Note that a row changed, for whoever keeps something derived from it."""
        self.generation[row] += 1
        self.changes += 1

    def _division(self, name: str) -> int:
        if name not in self.divisions:
            self.divisions[name] = len(self.divisions)
            self.grown += 1
        return self.divisions[name]

    def _empty(self, row: int, shape: NodeShape) -> None:
        self.replaced += 1
        self.cpu[row] = self.cpu_capacity[row] = min(shape.cpu_milli, LARGEST)
        self.node_memory[row] = min(shape.memory_mib, LARGEST)
        self.free[:, row] = self.total[:, row] = self.device_gpu[:, row] = self.most[:, row] = 0
        self.divides[:, row] = 0
        self.compute_capacity[:, row] = self.memory_capacity[:, row] = 0
        self.shareable[:, row] = self.slots[:, row] = self.identified[:, row] = 0
        for gpu, has in enumerate(shape.gpus):
            self.compute_capacity[gpu, row] = has.compute_milli
            self.memory_capacity[gpu, row] = min(has.memory_mib, LARGEST)
            self.shareable[gpu, row] = has.divisible
            self.slots[gpu, row] = has.slots
            if has.uuid:
                self.uuids[has.uuid], self.identified[gpu, row] = (gpu, row), 1
        self.divisible[:, row] = self.shareable[:, row] * (self.slots[:, row] > 0)
        self.compute[:, row] = self.compute_capacity[:, row]
        self.memory[:, row] = self.memory_capacity[:, row]
        self.overcommitted[row] = self.hosted[:, row] = 0

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
        self.grown += 1
        for name, array in vars(self).items():
            if isinstance(array, np.ndarray):
                filler = Reason.UNKNOWN_NODE if name == "blocked" else 0
                widths = [(0, 0)] * (array.ndim - 1) + [(0, more)]
                setattr(self, name, np.pad(array, widths, constant_values=filler))

    def _reserve_gpus(self, gpus: int) -> None:
        more = gpus - self.compute.shape[0]
        if more > 0:
            self.grown += 1
            for name in _PER_GPU:
                setattr(self, name, np.pad(getattr(self, name), [(0, more), (0, 0)]))

    def _resource(self, name: str) -> int:
        if name not in self.resources:
            self.resources[name] = len(self.resources)
            self.grown += 1
            for array in _PER_RESOURCE:
                setattr(self, array, np.pad(getattr(self, array), [(0, 1), (0, 0)]))
        return self.resources[name]

    def _model(self, model: str | None, product: str, mode: str) -> int:
        known = zip(self.model_names, self.products, self.modes, strict=True)
        for index, kind in enumerate(known):
            if kind == (model, product, mode):
                return index
        self.model_names.append(model)
        self.products.append(product)
        self.modes.append(mode)
        self.grown += 1
        return len(self.products) - 1


def _floats(*shape: int) -> Floats:
    return np.zeros(shape, np.float32)
