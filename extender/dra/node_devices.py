"""The devices that one node can use, and their availability given the existing allocations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain

from extender.dra.allocator import AvailableDevices, CounterAmounts
from extender.dra.device_slots import Counts, Slots, slots_of
from extender.dra.pools import DevicePool
from extender.k8s.resource_claims import AllocationResult
from extender.k8s.resource_slices import Device, DeviceId

GPU_DRIVER = re.compile(r"(?:[\w-]+-)?gpu\.")
"""Prefix of the names of GPU drivers: gpu.nvidia.com (NVIDIA/k8s-dra-driver-gpu), gpu.amd.com
(ROCm/k8s-gpu-dra-driver), gpu.intel.com (intel/intel-resource-drivers-for-kubernetes), and
hami-core-gpu.project-hami.io (Project-HAMi/k8s-dra-driver)."""


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
) -> PoolAvailability:
    """The availability of a pool. ``holders`` has the allocation results of each claim, by device name."""
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
        parts = [r.consumed_capacity for r in results if r.shared and r.consumed_capacity is not None]
        partially_consumed.update(index for _ in parts)
        for capacity, consumed in chain.from_iterable(parts):
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

    def gpus(self) -> dict[DeviceId, str]:
        """The devices of GPU drivers, each with its GPU: devices with one UUID belong to one GPU, such as its
        MIG instances."""
        found = {}
        for index in range(len(self.devices)):
            id, device = self.device_id(index), self.device(index)
            if id.device and GPU_DRIVER.match(id.driver):
                found[id] = device.attribute_text("parentUUID") or device.attribute_text("uuid") or id.device
        return found

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
