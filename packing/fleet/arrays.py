"""The arrays of a fleet: which rows, GPUs and resources there are, and how they grow.

GPU-major, (G, N) and C-contiguous, because that is how the kernels are fast. Nothing is taken or given back
here, and nothing is asked.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from packing.model.node_spec import UNLIMITED, NodeSpec
from packing.model.reasons import Reason
from packing.model.request import MOST

Floats = npt.NDArray[np.float32]
_Kind = tuple[str | None, str, str]
"""(model, product, mode) of a node's GPUs."""
KINDS = 17
LARGEST = (1 << 24) - 1
"""The largest whole number below which float32 has every one."""
MOST_GPUS = 64
"""GPUs of one node. A choice of them is a mask of 64 bits, and all nodes pay for the one with the most."""
MOST_RESOURCES = 128
"""Resources that all nodes together advertise. Real clusters have one or two for each MIG profile."""
MOST_KINDS = 512
"""Different GPUs (model, product and mode) of all nodes together."""
MOST_DIVISIONS = 255
"""Resources as whose shares nodes divide their GPUs: ``divided`` is a byte."""
_PER_GPU = (
    "compute",
    "compute_capacity",
    "memory",
    "memory_capacity",
    "divisible",
    "shareable",
    "slots",
    "identified",
    "island",
)
_PER_RESOURCE = ("free", "total", "device_gpu", "most", "divides")


class TooMany(ValueError):
    """A node that would take the fleet beyond one of its bounds; the text says which, fit for a problem."""


class Arrays:
    """Nodes as rows of arrays. Rows are stable; a removed node's row is reused.

    Shapes: G GPUs a node at most, N rows allocated, R resources. Whether CPU and memory of a node suffice is
    decided by int64: ``free_cpu`` (N,) milli and ``free_memory`` (N,) bytes, below 0 where more is taken than
    there is, ``total_cpu`` and ``total_memory`` (N,) when empty. Policies score with float32 of the same:
    ``cpu`` (N,) free milli and ``node_memory`` (N,) free MiB, rounded down, ``cpu_capacity`` (N,) milli, all
    of them cut to what float32 has exactly. ``compute`` and ``memory`` (G, N) are free milli-GPU and MiB,
    ``compute_capacity`` and ``memory_capacity`` (G, N) what a GPU has (0: no such GPU),
    ``divisible`` (G, N) 1 where another share may be placed, ``shareable`` (G, N) where one ever may,
    ``slots`` (G, N) shares that a GPU can still take, ``identified`` (G, N) 1 where its UUID is in
    ``uuids``, ``island`` (G, N) the lowest GPU of the NVLink island that a GPU is in (itself where it is in
    none), ``free`` and ``total`` (R, N) devices of each pool, ``device_gpu`` (R, N) the size of one of them
    in GPUs, ``model`` (N,) an index into ``model_names``, ``max_island`` (N,) GPUs, ``overcommitted`` (N,) 1
    where GPU is handed out twice, ``blocked`` (N,) a reason code, ``order`` (N,) a fixed order of nodes for
    ties, ``generation`` (N,) counts changes of a node and ``changes`` those of all, ``replaced`` counts nodes
    that came or went, ``grown`` changes of the arrays' shapes and new ids, ``most`` (R, N) devices of a
    pool for one container (0: any number), ``divides`` (R, N) 1 where they are whole divisible GPUs,
    ``divided`` (N,) an index into ``divisions``, ``cuda`` (N,) versions, ``pods_by_gpu_count`` (KINDS, N) pods by the
    number of GPUs that they have (the last: so many or more), 0 for parts of GPUs; ``model_permits`` keeps which
    models requests may run on, ``permits_size`` is how large that is (see ``feasible.allowed``). Shares below
    ``minimum_milli`` thousandths of a GPU are refused; 0 refuses none.

    What nodes advertise is bounded by the constants above; names that no node has any more are forgotten when
    a bound is reached.
    """

    def __init__(self, nodes: int = 64, gpus: int = 8, minimum_milli: int = 0) -> None:
        self.minimum_milli = minimum_milli
        self.shapes: list[NodeSpec | None] = []
        self.changes = self.replaced = self.grown = 0
        self.rows: dict[str, int] = {}
        self.resources: dict[str, int] = {}
        self.model_names: list[str | None] = [None]
        self.products: list[str] = [""]
        self.modes: list[str] = [""]
        self.divisions: dict[str, int] = {"": 0}
        self.uuids: dict[str, tuple[int, int]] = {}
        self.model_permits: dict[tuple[object, ...], npt.NDArray[np.uint8]] = {}
        self._kinds: dict[_Kind, int] = {(None, "", ""): 0}
        self.permits_size = 0
        self._vacant: list[int] = []
        self.free_cpu, self.free_memory = np.zeros((2, nodes), np.int64)
        self.total_cpu, self.total_memory = np.zeros((2, nodes), np.int64)
        self.cpu, self.cpu_capacity, self.node_memory = _floats(nodes), _floats(nodes), _floats(nodes)
        self.compute, self.compute_capacity = _floats(gpus, nodes), _floats(gpus, nodes)
        self.memory, self.memory_capacity = _floats(gpus, nodes), _floats(gpus, nodes)
        self.divisible, self.shareable, self.identified = np.zeros((3, gpus, nodes), np.uint8)
        self.island = np.zeros((gpus, nodes), np.uint8)
        self.slots = np.zeros((gpus, nodes), np.int32)
        self.free, self.total = np.zeros((0, nodes), np.int32), np.zeros((0, nodes), np.int32)
        self.device_gpu, self.most = _floats(0, nodes), np.zeros((0, nodes), np.int32)
        self.divides = np.zeros((0, nodes), np.uint8)
        self.divided, self.cuda = np.zeros(nodes, np.uint8), np.zeros(nodes, np.int32)
        self.model, self.max_island = np.zeros(nodes, np.int16), np.zeros(nodes, np.int16)
        self.overcommitted = np.zeros(nodes, np.uint8)
        self.blocked = np.full(nodes, Reason.UNKNOWN_NODE, np.int8)
        self.pods_by_gpu_count = np.zeros((KINDS, nodes), np.int32)
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
        """Index into ``divisions``. Raises TooMany."""
        if name not in self.divisions:
            if len(self.divisions) >= MOST_DIVISIONS:
                raise TooMany(f"nodes divide their GPUs in more than {MOST_DIVISIONS} ways")
            self.divisions[name] = len(self.divisions)
            self.grown += 1
        return self.divisions[name]

    def _empty(self, row: int, shape: NodeSpec) -> None:
        """Show the node of a row without any pod, and without its pools."""
        self.replaced += 1
        self.total_cpu[row], self.total_memory[row] = (
            min(shape.cpu_milli, MOST),
            min(shape.memory_bytes, MOST),
        )
        self.cpu_capacity[row] = min(shape.cpu_milli, LARGEST)
        self._show_node(row, shape.cpu_milli, shape.memory_bytes)
        self.free[:, row] = self.total[:, row] = self.device_gpu[:, row] = self.most[:, row] = 0
        self.divides[:, row] = 0
        self.compute_capacity[:, row] = self.memory_capacity[:, row] = 0
        self.shareable[:, row] = self.slots[:, row] = self.identified[:, row] = self.island[:, row] = 0
        for gpu, has in enumerate(shape.gpus):
            self.compute_capacity[gpu, row] = has.compute_milli
            self.memory_capacity[gpu, row] = min(has.memory_mib, LARGEST)
            self.shareable[gpu, row] = has.divisible and has.slots > 0
            self.slots[gpu, row] = min(has.slots, UNLIMITED)
            if has.uuid:
                self.uuids[has.uuid], self.identified[gpu, row] = (gpu, row), 1
        for island in shape.peers:
            self.island[list(island), row] = min(island)
        self.divisible[:, row] = self.shareable[:, row]
        self.compute[:, row] = self.compute_capacity[:, row]
        self.memory[:, row] = self.memory_capacity[:, row]
        self.overcommitted[row] = self.pods_by_gpu_count[:, row] = 0

    def _show_node(self, row: int, cpu_milli: int, memory_bytes: int) -> None:
        """Show so much CPU and memory of a node as free."""
        self.free_cpu[row] = min(max(cpu_milli, -MOST), MOST)
        self.free_memory[row] = min(max(memory_bytes, -MOST), MOST)
        self.cpu[row] = min(max(cpu_milli, -LARGEST), LARGEST)
        self.node_memory[row] = min(max(memory_bytes >> 20, -LARGEST), LARGEST)

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

    def _resources(self, names: Collection[str]) -> list[int]:
        """Indices into ``resources``. Raises TooMany."""
        missing = [name for name in dict.fromkeys(names) if name not in self.resources]
        if missing:
            self._add_resources(missing, keep=names)
            self.grown += 1
        return [self.resources[name] for name in names]

    def _add_resources(self, missing: Sequence[str], keep: Collection[str]) -> None:
        if len(self.resources) + len(missing) > MOST_RESOURCES:
            had = {pool.resource for shape in self.shapes if shape for pool in shape.pools}
            kept = {name: index for name, index in self.resources.items() if name in had or name in keep}
            if len(kept) + len(missing) > MOST_RESOURCES:
                raise TooMany(f"nodes advertise more than {MOST_RESOURCES} different resources")
            self.resources = kept
        vacant = sorted(set(range(len(self.free))) - {*self.resources.values()})
        more = max(len(missing) - len(vacant), 0)
        for array in _PER_RESOURCE if more else ():
            setattr(self, array, np.pad(getattr(self, array), [(0, more), (0, 0)]))
        vacant += range(len(self.free) - more, len(self.free))
        self.resources |= zip(missing, vacant, strict=False)

    def _gpu_kind(self, kind: _Kind) -> int:
        """Index into ``model_names``, ``products`` and ``modes``. Raises TooMany."""
        if kind not in self._kinds:
            if len(self._kinds) >= MOST_KINDS:
                self._forget_kinds()
            self._kinds[kind] = index = min(set(range(len(self._kinds) + 1)) - {*self._kinds.values()})
            at = slice(index, index + 1)  # the place of one that is forgotten, or the end
            self.model_names[at], self.products[at], self.modes[at] = [kind[0]], [kind[1]], [kind[2]]
            self.grown += 1
        return self._kinds[kind]

    def _forget_kinds(self) -> None:
        used = {0, *(int(self.model[row]) for row in self.rows.values())}
        if len(used) >= MOST_KINDS:
            raise TooMany(f"nodes have more than {MOST_KINDS} different GPUs")
        self._kinds = {kind: index for kind, index in self._kinds.items() if index in used}


def _floats(*shape: int) -> Floats:
    return np.zeros(shape, np.float32)
