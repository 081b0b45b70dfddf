"""Allocations of pods on one node, counted in Python integers, which neither overflow nor round."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from packing.fleet.arrays import LARGEST
from packing.model.mig_instances import every_slice, largest_free, smallest
from packing.model.node_spec import Gpu, NodeSpec
from packing.model.nvlink import sure_peers
from packing.model.request import MOST_DEVICES


@dataclass(frozen=True, slots=True)
class Allocation:
    """The resources that one pod holds on one node: CPU, memory, (resource number, devices), (GPU, compute
    milli, memory MiB), and on GPUs that are divided into MIG instances (GPU, mask of slices). ``together``:
    its devices are NVLink peers. ``further``: (GPU, number), the number of additional slots that it takes of
    the GPU's pod limit. ``concurrent``: as in ``Shares``."""

    row: int
    cpu_milli: int
    memory_bytes: int
    devices: tuple[tuple[int, int], ...] = ()
    shares: tuple[tuple[int, int, int], ...] = ()
    slices: tuple[tuple[int, int], ...] = ()
    together: bool = False
    further: tuple[tuple[int, int], ...] = ()
    concurrent: bool = False

    @property
    def has_gpus(self) -> bool:
        """Whether it has devices, or shares of GPUs."""
        return bool(self.devices or self.shares or self.slices)

    @property
    def memory_mib(self) -> int:
        """Host memory that it holds, in MiB, rounded up."""
        return -(-self.memory_bytes >> 20)


class NodeUsage:
    """The sum of the allocations on one node. ``pools`` are the numbers of its pools' resources."""

    def __init__(self, spec: NodeSpec, pools: Sequence[int]) -> None:
        self._spec, self._pools = spec, tuple(zip(pools, spec.pools, strict=True))
        self._cpu_milli = self._memory_bytes = 0
        self._devices: defaultdict[int, int] = defaultdict(int)
        self._together: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._peer_groups = {
            resource: spec.peer_groups(pool) for resource, pool in self._pools if not spec.is_divisible(pool)
        }
        self._compute: defaultdict[int, int] = defaultdict(int)
        self._memory: defaultdict[int, int] = defaultdict(int)
        self._from_pools: dict[int, tuple[int, int]] = {}
        self._slice_holders: defaultdict[tuple[int, int], int] = defaultdict(int)

    def add(self, held: Iterable[Allocation], sign: int) -> set[int]:
        """Add allocations (sign 1) or remove them (-1). Returns the GPUs whose free amount changes."""
        changed, has_devices = set[int](), False
        for allocation in held:
            self._add_one(allocation, sign)
            changed.update([gpu for gpu, *_ in allocation.shares], [gpu for gpu, _ in allocation.slices])
            has_devices = has_devices or bool(allocation.devices)
        if has_devices:
            before, self._from_pools = self._from_pools, self._spread_over_gpus()
            changed |= {g for g, use in self._from_pools.items() if before.get(g, (0, 0)) != use}
        return changed

    def _add_one(self, held: Allocation, sign: int) -> None:
        self._cpu_milli += sign * held.cpu_milli
        self._memory_bytes += sign * held.memory_bytes
        for gpu, milli, mib in held.shares:
            self._compute[gpu] += sign * milli
            self._memory[gpu] += sign * mib
        for gpu, mask in held.slices:
            for place in range(mask.bit_length()):
                if mask >> place & 1:
                    self._slice_holders[gpu, place] += sign
        for resource, count in held.devices:
            self._devices[resource] += sign * count
            if held.together:
                self._together[resource, count] += sign

    def free_cpu_and_memory(self) -> tuple[int, int]:
        """CPU in milli and memory in bytes, negative where more is allocated than exists."""
        return self._spec.cpu_milli - self._cpu_milli, self._spec.memory_bytes - self._memory_bytes

    def free_devices(self) -> Iterator[tuple[int, int]]:
        """(Resource number, free devices) of the pools behind a device plugin."""
        for resource, pool in self._pools:
            if not self._spec.is_divisible(pool):
                free = pool.total - self._devices[resource]
                yield resource, min(max(free, -MOST_DEVICES), MOST_DEVICES)

    def free_peers(self) -> Iterator[tuple[int, int]]:
        """(Resource number, free devices that are guaranteed to be NVLink peers) of counted pools."""
        for resource, free in self.free_devices():
            yield resource, sure_peers(self._peer_groups[resource], free, self._together_on(resource))

    def missing_peers(self, resource: int, count: int) -> int:
        """Number of additional devices that must be free before ``count`` of them are guaranteed to be NVLink
        peers."""
        groups, free = self._peer_groups[resource], dict(self.free_devices())[resource]
        for more in range(sum(groups) - free + 1):
            if sure_peers(groups, free + more, self._together_on(resource)) >= count:
                return more
        return 0

    def _together_on(self, resource: int) -> tuple[int, ...]:
        """The number of devices of each pod whose devices of this resource are peers."""
        if not self._together:
            return ()
        known = ((count,) * pods for (of, count), pods in self._together.items() if of == resource)
        return tuple(sorted(chain.from_iterable(known)))

    def free_on_gpu(self, gpu: int) -> tuple[int, int]:
        """Compute milli and MiB, negative where more is allocated than exists.

        With MIG instances on demand: the size of the largest one that can still be created, or (-1, -1) where
        a slice is allocated twice.
        """
        spec = self._spec.gpus[gpu]
        if spec.instances:
            twice = any(count > 1 for (other, _), count in self._slice_holders.items() if other == gpu)
            return (-1, -1) if twice else largest_free(spec.instances, self.slices(gpu))
        milli, mib = self._from_pools.get(gpu, (0, 0))
        compute = spec.compute_milli - milli - self._compute[gpu]
        memory = min(spec.memory_mib, LARGEST) - mib - self._memory[gpu]
        return max(compute, -LARGEST), max(memory, -LARGEST)

    def slices(self, gpu: int) -> int:
        """The mask of allocated MIG slices of a GPU."""
        held = self._slice_holders.items()
        return sum(1 << place for (other, place), count in held if other == gpu and count > 0)

    def slice_holders(self) -> Iterator[tuple[int, int, int]]:
        """(GPU, place, holders) of the allocated MIG slices; two holders where a slice is allocated twice."""
        for (gpu, place), count in self._slice_holders.items():
            if count > 0:
                yield gpu, place, count

    def slices_for(self, gpu: int, compute_milli: int, memory_mib: int) -> int:
        """The mask of slices that a share would be allocated now; all slices if no instance is free for
        it."""
        instances = self._spec.gpus[gpu].instances
        found = smallest(instances, self.slices(gpu), compute_milli, memory_mib)
        return found[1] if found else every_slice(instances)

    def _spread_over_gpus(self) -> dict[int, tuple[int, int]]:
        """(Compute milli, MiB) that counted devices take of each GPU, as if they filled one GPU after
        another."""
        together: dict[tuple[int, ...], tuple[int, int]] = {}
        used: dict[int, tuple[int, int]] = {}
        for resource, pool in self._pools:
            if self._spec.is_divisible(pool):
                continue
            devices = self._devices[resource]
            if not pool.each and pool.gpus:
                milli, mib = together.get(pool.gpus, (0, 0))
                more_milli, more_mib = pool.size_of(devices, self._spec.gpus[pool.gpus[0]])
                together[pool.gpus] = milli + more_milli, mib + more_mib
            for gpu, on_gpu in zip(pool.gpus, pool.each, strict=False):
                milli, mib = used.get(gpu, (0, 0))
                taken = min(devices, on_gpu)
                more_milli, more_mib = pool.size_of(taken, self._spec.gpus[gpu])
                used[gpu] = milli + more_milli, mib + more_mib
                devices -= taken
        for gpus, (milli, mib) in together.items():
            for gpu in gpus:
                taken_milli, taken_mib = _at_most(self._spec.gpus[gpu], milli, mib)
                before_milli, before_mib = used.get(gpu, (0, 0))
                used[gpu] = before_milli + taken_milli, before_mib + taken_mib
                milli, mib = milli - taken_milli, mib - taken_mib
        return {gpu: _at_most(self._spec.gpus[gpu], *use) for gpu, use in used.items()}


def _at_most(gpu: Gpu, milli: int, mib: int) -> tuple[int, int]:
    """The given amount of a GPU, at most all of it."""
    return min(milli, gpu.compute_milli), min(mib, gpu.memory_mib, LARGEST)
