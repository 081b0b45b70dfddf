"""The devices that one node can use, and their availability given the existing allocations."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from extender.dra.allocator import AvailableDevices, CounterAmounts
from extender.dra.pools import Counts, DevicePool, Slots, slots_of
from extender.k8s.resource_claims import AllocationResult
from extender.k8s.resource_slices import Device, DeviceId, Version
from packing.model.gpu_catalog import find_model

_GPU_DRIVER = re.compile(r"(?:[\w-]+-)?gpu\.")
"""Prefix of the names of GPU drivers: gpu.nvidia.com (NVIDIA/k8s-dra-driver-gpu), gpu.amd.com
(ROCm/k8s-gpu-dra-driver), gpu.intel.com (intel/intel-resource-drivers-for-kubernetes), and
hami-core-gpu.project-hami.io (Project-HAMi/k8s-dra-driver)."""
_IDENTITY = re.compile("(parent)?(uuid|uid|pci(address|addr|busid))", re.IGNORECASE)
"""Attributes that name a physical GPU: uuid, parentUUID, pciAddr, parentPciAddr, pciBusID, ..."""


class GpuFacts(NamedTuple):
    """What its driver publishes of a GPU or a part of one; ``memory_mib`` and ``cuda`` (12.4 is 12004) are 0
    if unknown. ``whole``: neither a part nor shared."""

    product: str
    memory_mib: int
    cuda: int
    whole: bool


class GpuPart(NamedTuple):
    """The physical GPU that a device is, or is a part of, and its ``fraction`` of that GPU (0 to 1)."""

    gpu: str
    fraction: float
    facts: GpuFacts


def is_gpu(driver: str, device: Device) -> bool:
    """Whether a device is a GPU or a part of one, by the name of its driver, its type, its UUID, or a product
    that is in the catalog of GPUs."""
    texts = map(device.attribute_text, ("type", "uuid", "parentUUID"))
    if _GPU_DRIVER.match(driver) or any("gpu" in text.lower() for text in texts):
        return True
    return find_model(device.attribute_text("productName").replace(" ", "-")) is not None


def _facts(device: Device, *, whole: bool) -> GpuFacts:
    shared = device.allow_multiple_allocations
    product = device.attribute_text("productName") or device.attribute_text("model")  # Intel's
    values = (of_domain.get("cudaDriverVersion") for of_domain in device.attributes.values())
    cuda = next((v.key[0] * 1000 + v.key[1] for v in values if isinstance(v, Version)), 0)
    return GpuFacts(product.replace(" ", "-"), int(device.memory) >> 20, cuda, whole and not shared)


def _identities(device: Device) -> tuple[list[str], list[str]]:
    own, parent = list[str](), list[str]()
    for name, value in chain.from_iterable(of_domain.items() for of_domain in device.attributes.values()):
        if isinstance(value, str) and value and (match := _IDENTITY.fullmatch(name)):
            (parent if match[1] else own).append(value)
    return own, parent


@dataclass(frozen=True, slots=True)
class PoolAvailability:
    """Availability of a pool: whole devices are ``allocated``, parts of others (``partially_consumed``).

    ``remaining`` has the remaining amounts of the pool's counters and of the capacities of its devices.
    ``overdrawn``: more of a counter is allocated than the pool has. ``holdings_unknown``: a claim holds
    devices of the pool that cannot be read.
    """

    pool: DevicePool
    allocated: frozenset[int]
    partially_consumed: frozenset[int]
    remaining: CounterAmounts
    consumption: Sequence[CounterAmounts]
    overdrawn: bool
    holdings_unknown: bool

    def free_counts(self, also_allocated: AbstractSet[int] = frozenset()) -> Counts:
        """The number of further whole devices of each kind once these are allocated, too."""
        pool = self.pool
        assert pool.layout is not None
        remaining = {counter: self.remaining[counter] for counter in pool.counters}
        for index in also_allocated - self.partially_consumed:
            for counter, amount in pool.consumption[index].items():
                remaining[counter] -= amount
        allocated = self.allocated.union(self.partially_consumed, also_allocated)
        if self.overdrawn:
            allocated |= {index for index, consumed in enumerate(pool.consumption) if consumed}
        return pool.layout.free_counts(allocated, tuple(remaining.values()))


def pool_availability(
    pool: DevicePool,
    holders: Mapping[str, Mapping[str, tuple[AllocationResult, ...]]],
    *,
    holdings_unknown: bool,
    since_1_37: bool = True,
) -> PoolAvailability:
    """The availability of a pool. ``holders`` has the allocation results of each claim, by device name.

    A shared device without known amounts has consumed its counters only ``since_1_37``; before,
    kube-scheduler counts them again for its next share (kubernetes/kubernetes#140433).
    """
    remaining = dict(pool.counters)
    for capacities in pool.capacities.values():
        remaining |= capacities
    allocated, partially_consumed = set[int](), set[int]()
    for name, of_claims in holders.items():
        results = [r for of_claim in of_claims.values() for r in of_claim if not r.admin_access]
        if not results or name not in pool.index_of:
            continue
        index = pool.index_of[name]
        for counter, amount in pool.consumption[index].items():
            remaining[counter] -= amount
        allocated.update(index for result in results if not result.shared)
        parts = [r.consumed_capacity for r in results if r.shared]
        partially_consumed.update(index for amounts in parts if since_1_37 or amounts is not None)
        for capacity, consumed in chain.from_iterable(amounts or () for amounts in parts):
            if (key := (pool.id, index, capacity)) in remaining:
                remaining[key] -= consumed.number
    overdrawn = {counter: 0 for counter in pool.counters if remaining[counter] < 0}
    # No device that consumes a counter can be allocated while one is overdrawn: all of them consume 0 of the
    # overdrawn one, and less than 0 remains.
    consumption: Sequence[CounterAmounts] = pool.consumption
    if overdrawn:
        consumption = [amounts and {**amounts, **overdrawn} for amounts in consumption]
    return PoolAvailability(
        pool,
        frozenset(allocated),
        frozenset(partially_consumed),
        remaining,
        consumption,
        bool(overdrawn),
        holdings_unknown,
    )


@dataclass(frozen=True, slots=True, eq=False)
class NodeDevices:
    """The devices that a node can use, in kube-scheduler's order, and their availability.

    ``devices`` are (pool, index in the pool) (D,). ``own_pools`` belong only to this node; ``slots`` are
    those that they can still provide. ``has_incomplete_pool``: a pool is incomplete or invalid, so no request
    can be allocated all devices. ``holdings_unknown``: a claim with an unreadable allocation holds devices
    here. ``version`` is unique to this object, or 0 without pools. ``labels`` are those of the node.
    """

    devices: tuple[tuple[DevicePool, int], ...]
    available: AvailableDevices
    own_pools: tuple[PoolAvailability, ...]
    slots: Slots
    has_incomplete_pool: bool
    version: int
    holdings_unknown: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    _gpus: dict[int, GpuPart] = field(default_factory=dict)

    def device(self, index: int) -> Device:
        pool, index_in_pool = self.devices[index]
        return pool.devices[index_in_pool]

    @property
    def has_pools(self) -> bool:
        """Whether the node has devices, or may have some once its pools are complete."""
        return bool(self.devices) or self.has_incomplete_pool

    def device_id(self, index: int) -> DeviceId:
        pool, index_in_pool = self.devices[index]
        return DeviceId(*pool.id, pool.devices[index_in_pool].name)

    def gpus(self) -> Mapping[int, GpuPart]:
        """The devices that are GPUs or parts of GPUs. Devices belong to one GPU if they have a UUID or PCI
        address in common, their own or that of their parent, or consume one counter set.

        The fraction is that of the counters or the MIG profile. Other parts divide the GPU by their memory.
        """
        if self._gpus:
            return self._gpus
        names, parts = dict[int, list[str]](), set[int]()
        for index, (pool, at) in enumerate(self.devices):
            device = pool.devices[at]
            if device.name and is_gpu(pool.id.driver, device):
                own, parent = _identities(device)
                counter_sets = sorted({"/".join((*pool.id, name)) for name, _ in device.consumes_counters})
                names[index] = [*(parent or own), *counter_sets] or ["/".join((*pool.id, device.name))]
                if parent and not device.consumes_counters and self._kind_fraction(index) == 1:
                    parts.add(index)
        gpu_of, found = dict[str, str](), dict[int, str]()
        for index in sorted(names, key=lambda index: index in parts):  # a GPU joins the names of its parts
            keys = [name.lower() for name in names[index]]
            found[index] = next((gpu_of[key] for key in keys if key in gpu_of), names[index][0])
            gpu_of.update(dict.fromkeys(keys, found[index]))
        sizes = {index: float(self.device(index).memory) or 1.0 for index in parts}
        total: defaultdict[str, float] = defaultdict(float)
        for index, size in sizes.items():
            total[found[index]] += size
        fractions = {index: size / total[found[index]] for index, size in sizes.items()}
        for index, gpu in found.items():
            fraction = fractions.get(index) or self._kind_fraction(index)
            self._gpus[index] = GpuPart(gpu, fraction, _facts(self.device(index), whole=fraction == 1))
        return self._gpus

    def _kind_fraction(self, index: int) -> float:
        pool, at = self.devices[index]
        return pool.layout.kinds[at].gpu_fraction if pool.layout else 1.0

    def used_fraction(self, index: int) -> float:
        """How much of an allocated device is in use (0 to 1): as much as of the capacity of which the largest
        fraction is; all of it where no amounts are known."""
        pool, at = self.devices[index]
        if index in self.available.allocated or index not in self.available.partially_consumed:
            return 1.0
        amounts = pool.capacities.get(at, {}).items()
        used = (1 - float(self.available.remaining[key] / amount) for key, amount in amounts if amount)
        return min(max(used, default=1.0), 1.0)

    def slots_without(self, indices: Iterable[int]) -> Slots:
        """The slots that remain once these devices are allocated, too."""
        allocated = [self.devices[index] for index in indices]
        return slots_of(
            own.free_counts(frozenset(index for pool, index in allocated if pool is own.pool))
            for own in self.own_pools
        )


def build_node_devices(
    name: str,
    labels: Mapping[str, str],
    pools: Sequence[PoolAvailability],
    *,
    has_incomplete_pool: bool,
    holdings_unknown: bool,
    version: int,
) -> NodeDevices:
    """The devices of the node with this name and these labels. ``pools`` are in kube-scheduler's order."""
    here = [
        (rest, index)
        for rest in pools
        for index, scope in enumerate(rest.pool.node_scopes)
        if scope.includes(name, labels)
    ]
    own_pools = tuple(
        rest
        for rest in pools
        if rest.pool.layout and rest.pool.node_scopes[0].node_name == name and not rest.holdings_unknown
    )
    return NodeDevices(
        tuple((rest.pool, index) for rest, index in here),
        _available(pools, here),
        own_pools,
        slots_of(rest.free_counts() for rest in own_pools),
        has_incomplete_pool,
        version,
        holdings_unknown,
        labels,
    )


def _available(
    pools: Sequence[PoolAvailability], here: Sequence[tuple[PoolAvailability, int]]
) -> AvailableDevices:
    return AvailableDevices(
        tuple(rest.consumption[index] for rest, index in here),
        {counter: amount for rest in pools for counter, amount in rest.remaining.items()},
        frozenset(i for i, (rest, index) in enumerate(here) if index in rest.allocated),
        {
            i: rest.pool.capacities[index].keys()
            for i, (rest, index) in enumerate(here)
            if index in rest.pool.capacities
        },
        frozenset(i for i, (rest, index) in enumerate(here) if index in rest.partially_consumed),
    )
