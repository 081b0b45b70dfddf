"""The figures of all nodes as arrays for the kernels: shapes, growth, and the columns of a node.

GPU-major, (G, N) and C-contiguous: the fast order for kernels that loop over nodes.
"""

from __future__ import annotations

from copy import copy

import numpy as np

from packing.jit import Doubles as Doubles
from packing.jit import Flags as Flags
from packing.jit import Floats as Floats
from packing.jit import Longs as Longs
from packing.model.node_spec import ALMOST_WHOLE as ALMOST_WHOLE
from packing.model.node_spec import FOR_MACHINES, UNLIMITED, Gpu, NodeSpec
from packing.model.nvlink import sure_peers
from packing.model.reasons import Reason
from packing.model.request import MOST, MOST_DEVICES, WHOLE

LARGEST = (1 << 24) - 1
"""Largest integer up to which float32 represents every integer."""
NVLINK_UNKNOWN, ONE_ISLAND, SEVERAL_GROUPS, MIXED_GROUPS = range(4)
"""Values of ``nvlink``: unknown; all GPUs of the node are NVLink peers; they are in several groups; they are
in several groups, and the device plugin mixes these."""
IN_PARTS, WHOLE_GPU = 1, 2
"""Values of ``offered``."""
_PER_GPU = (
    "compute", "compute_capacity", "memory", "memory_capacity",
    "divisible", "shareable", "share_slots", "total_slots", "identified", "island", "offered",
    "concurrent_shares",
)  # fmt: skip
_PER_RESOURCE = (
    "free_devices", "total_devices", "free_peers", "total_peers", "device_gpu", "max_per_container",
    "divisible_pool", "surplus_devices", "device_mib", "whole_device",
)  # fmt: skip


class NodeArrays:
    """Arrays with one column per node: N nodes, at most G GPUs per node, R extended resources.

    Values are clipped to the range of their type. Free amounts are negative where more is allocated than
    exists.
    """

    def __init__(self, nodes: int, gpus: int) -> None:
        self.grown = 0
        """Number of times that the arrays were replaced by larger ones."""
        self.first_row = 0
        """The fleet's row of column 0."""
        # (N,) CPU in milli and memory in bytes, to decide whether a request fits.
        self.free_cpu, self.free_memory = np.zeros((2, nodes), np.int64)
        self.total_cpu, self.total_memory = np.zeros((2, nodes), np.int64)
        # (N,) The same for scores: CPU in milli, memory in MiB, rounded down.
        self.cpu, self.cpu_capacity, self.node_memory = _floats(nodes), _floats(nodes), _floats(nodes)
        # (G, N) Free and total milli and MiB of each GPU; a total of 0 means that the GPU does not exist.
        self.compute, self.compute_capacity = _floats(gpus, nodes), _floats(gpus, nodes)
        self.memory, self.memory_capacity = _floats(gpus, nodes), _floats(gpus, nodes)
        # (G, N) 1 where another share may be placed; where one may be placed on the empty node; where the
        # UUID is known.
        self.divisible, self.shareable, self.identified = np.zeros((3, gpus, nodes), np.uint8)
        # (G, N) The lowest GPU of the GPU's NVLink island; the GPU itself if it is in none.
        self.island = np.zeros((gpus, nodes), np.uint8)
        # (G, N) How the GPU can be allocated on the empty node: IN_PARTS, or also whole (WHOLE_GPU); 0 where
        # it cannot (it is unhealthy or cordoned).
        self.offered = np.zeros((gpus, nodes), np.uint8)
        # (G, N) Number of further shares that the GPU accepts, whatever their size.
        self.share_slots, self.total_slots = np.zeros((2, gpus, nodes), np.int32)
        # (G, N) Number of ``concurrent`` shares.
        self.concurrent_shares = np.zeros((gpus, nodes), np.int32)
        # (R, N) Counted devices, the size of one in GPUs, and the maximum per container (0: unlimited).
        self.free_devices, self.total_devices = np.zeros((2, 0, nodes), np.int32)
        self.device_gpu, self.max_per_container = _floats(0, nodes), np.zeros((0, nodes), np.int32)
        # (R, N) Devices behind a device plugin that are guaranteed to be NVLink peers: free ones, and on the
        # empty node.
        self.free_peers, self.total_peers = np.zeros((2, 0, nodes), np.int32)
        # (R, N) 1 where the devices are whole GPUs that the node places one by one.
        self.divisible_pool = np.zeros((0, nodes), np.uint8)
        # (R, N) Number of devices that are not guaranteed to be on separate GPUs, even if none is in use.
        self.surplus_devices = np.zeros((0, nodes), np.int32)
        # (R, N) The memory of a device in MiB (0: unknown), and 1 where it is a whole GPU.
        self.device_mib, self.whole_device = _floats(0, nodes), np.zeros((0, nodes), np.uint8)
        # (N,) Indices into ``Names``: the sharing resource, and the GPUs' model, product and mode.
        self.sharing, self.model = np.zeros(nodes, np.uint8), np.zeros(nodes, np.int16)
        # (N,) The CUDA version, and the number of GPUs in the largest NVLink island.
        self.cuda, self.max_island = np.zeros(nodes, np.int32), np.zeros(nodes, np.int16)
        # (N,) The state of its NVLink islands: NVLINK_UNKNOWN and so on.
        self.nvlink = np.zeros(nodes, np.uint8)
        # (N,) 1 where GPU is over-committed; the reason the node accepts no pods.
        self.overcommitted = np.zeros(nodes, np.uint8)
        self.blocked = np.full(nodes, Reason.UNKNOWN_NODE, np.int8)
        # (N,) The value of one of its GPUs, relative to an A100 with 80 GB.
        self.gpu_value = _floats(nodes)
        # (N,) 1 for spot nodes.
        self.spot = np.zeros(nodes, np.uint8)
        # (N,) A fixed order of nodes for ties, and the number of changes of the node.
        self.order, self.generation = np.zeros(nodes, np.uint32), np.zeros(nodes, np.int64)

    @property
    def capacity(self) -> int:
        """Number of columns (N); those without a node are blocked as unknown."""
        return self.blocked.size

    @property
    def rows(self) -> slice:
        """The fleet's rows of these columns."""
        return slice(self.first_row, self.first_row + self.capacity)

    def only(self, row: int) -> NodeArrays:
        """A copy of one column."""
        column = copy(self)
        for name, array in vars(self).items():
            if isinstance(array, np.ndarray):
                setattr(column, name, array[..., row : row + 1].copy())
        column.first_row = self.first_row + row
        return column

    def reserve_node(self, row: int) -> None:
        if row < self.capacity:
            return
        more = max(64, self.capacity * 2) - self.capacity
        self.grown += 1
        for name, array in vars(self).items():
            if isinstance(array, np.ndarray):
                filler = Reason.UNKNOWN_NODE if name == "blocked" else 0
                widths = [(0, 0)] * (array.ndim - 1) + [(0, more)]
                setattr(self, name, np.pad(array, widths, constant_values=filler))

    def reserve_gpus(self, gpus: int) -> None:
        """Grow to hold nodes with this many GPUs."""
        self._add_rows(_PER_GPU, gpus - len(self.compute))

    def reserve_resources(self, resources: int) -> None:
        """Grow to hold this many extended resources."""
        self._add_rows(_PER_RESOURCE, resources - len(self.free_devices))

    def write_empty(self, row: int, spec: NodeSpec, pools: list[int]) -> None:
        """Write a node without any pods; ``pools`` are the indices of its pools' resources."""
        self.blocked[row], self.cuda[row] = spec.blocked, min(spec.cuda, LARGEST)
        self.spot[row] = spec.spot
        self.nvlink[row] = NVLINK_UNKNOWN
        if spec.islands or spec.no_nvlink:
            several = SEVERAL_GROUPS if spec.plugin_keeps_islands else MIXED_GROUPS
            self.nvlink[row] = ONE_ISLAND if len(spec.peers) == 1 else several
        self.max_island[row] = max(map(len, spec.peers), default=0)
        self.total_cpu[row], self.total_memory[row] = min(spec.cpu_milli, MOST), min(spec.memory_bytes, MOST)
        self.cpu_capacity[row] = min(spec.cpu_milli, LARGEST)
        self.write_cpu_and_memory(row, spec.cpu_milli, spec.memory_bytes)
        self._write_gpus(row, spec)
        for name in _PER_RESOURCE:
            getattr(self, name)[:, row] = 0
        for resource, pool in zip(pools, spec.pools, strict=True):
            total = min(pool.total, MOST_DEVICES)
            self.free_devices[resource, row] = self.total_devices[resource, row] = total
            self.max_per_container[resource, row] = min(pool.most, MOST_DEVICES)
            self.divisible_pool[resource, row] = spec.is_divisible(pool)
            if not spec.is_divisible(pool):
                peers = sure_peers(spec.peer_groups(pool), total)
                self.free_peers[resource, row] = self.total_peers[resource, row] = peers
            separate = total if pool.separate is None else min(pool.separate, total)
            self.surplus_devices[resource, row] = total - separate
            self.device_mib[resource, row] = min(pool.memory_mib, LARGEST)
            self.whole_device[resource, row] = pool.is_whole
            gpu = spec.gpus[pool.gpus[0]] if pool.gpus else Gpu(0)
            many = 1 if pool.is_many_gpus else max(pool.replicas, 1)
            self.device_gpu[resource, row] = _mean_share(*pool.size_of(many, gpu), gpu.memory_mib) / many
        self.overcommitted[row] = 0

    def write_cpu_and_memory(self, row: int, cpu_milli: int, memory_bytes: int) -> None:
        """Write the free CPU and memory of a node."""
        self.free_cpu[row] = min(max(cpu_milli, -MOST), MOST)
        self.free_memory[row] = min(max(memory_bytes, -MOST), MOST)
        self.cpu[row] = min(max(cpu_milli, -LARGEST), LARGEST)
        self.node_memory[row] = min(max(memory_bytes >> 20, -LARGEST), LARGEST)

    def free_parts(self) -> Floats:
        """Free fraction of each GPU (G, N), the mean of compute and memory; 0 where there is no GPU."""
        memory = self.memory / np.maximum(self.memory_capacity, 1)
        return ((self.compute / WHOLE + memory) / 2).astype(np.float32)

    def whole_parts(self) -> Floats:
        """``free_parts`` of an empty fleet: 1 where the node has a GPU."""
        return (self.compute_capacity > 0).astype(np.float32)

    def free_gpu(self) -> float:
        """Free GPU of all nodes, in GPUs, the mean of free compute and free memory."""
        capacity = np.maximum(self.memory_capacity, 1)
        return float((self.compute / WHOLE + self.memory / capacity).sum(dtype=np.float64)) / 2

    def _write_gpus(self, row: int, spec: NodeSpec) -> None:
        for name in _PER_GPU:
            getattr(self, name)[:, row] = 0
        for index, gpu in enumerate(spec.gpus):
            self.compute[index, row] = self.compute_capacity[index, row] = gpu.compute_milli
            self.memory[index, row] = self.memory_capacity[index, row] = min(gpu.memory_mib, LARGEST)
            self.shareable[index, row] = gpu.divisible and gpu.slots > 0
            self.share_slots[index, row] = self.total_slots[index, row] = min(gpu.slots, UNLIMITED)
            self.identified[index, row] = bool(gpu.uuid)
        for index, offered in enumerate(_offered(spec)):
            self.offered[index, row] = offered
        for island in spec.peers:
            self.island[list(island), row] = min(island)
        self.divisible[:, row] = self.shareable[:, row]

    def _add_rows(self, names: tuple[str, ...], more: int) -> None:
        if more > 0:
            self.grown += 1
            for name in names:
                setattr(self, name, np.pad(getattr(self, name), [(0, more), (0, 0)]))


def _floats(*shape: int) -> Floats:
    return np.zeros(shape, np.float32)


def _offered(spec: NodeSpec) -> list[int]:
    """How each GPU can be allocated. GPUs that a device plugin advertises only as replicas or MIG instances
    are not offered whole, and those for virtual machines not at all."""
    if spec.mode == FOR_MACHINES:
        return []
    offered = [(gpu.divisible and gpu.slots > 0) * IN_PARTS for gpu in spec.gpus]
    for index, gpu in enumerate(spec.gpus):
        if offered[index] and gpu.compute_milli >= WHOLE:
            offered[index] = WHOLE_GPU
    for pool in spec.pools:
        if spec.is_divisible(pool):
            continue
        for index in pool.gpus:
            size = _mean_share(pool.compute_milli, pool.memory_mib, spec.gpus[index].memory_mib)
            offered[index] = max(offered[index], WHOLE_GPU if size > ALMOST_WHOLE else IN_PARTS)
    return offered


def _mean_share(compute_milli: int, memory_mib: int, capacity_mib: int) -> float:
    compute = compute_milli / WHOLE
    return (compute + memory_mib / capacity_mib) / 2 if capacity_mib else compute
