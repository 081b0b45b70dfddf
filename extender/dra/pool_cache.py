"""The pools of devices, and which claims hold their devices.

Both are built lazily: a pool after one of its slices has changed, what is left of it also after a claim has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from extender.dra.node_devices import NodeDevices, PoolAvailability, build_node_devices, pool_availability
from extender.dra.pools import DevicePool, PoolId, build_pool
from extender.k8s.resource_api.objects import (
    UNKNOWN_POOL,
    AllocationResult,
    Device,
    DeviceId,
    NodeScope,
    ResourceClaim,
    ResourceSlice,
)


@dataclass(slots=True)
class _PoolState:
    """The slices of a pool by name, its allocation results by device and claim, the claims whose holdings
    cannot be read, and what is built from them. ``nodes`` are those that slices or devices name."""

    slices: dict[str, ResourceSlice] = field(default_factory=dict)
    holders: dict[str, dict[str, tuple[AllocationResult, ...]]] = field(default_factory=dict)
    unreadable_holders: set[str] = field(default_factory=set)
    nodes: frozenset[str] = frozenset()
    pool: DevicePool | None = None
    availability: PoolAvailability | None = None

    def availability_of(self, pool: DevicePool, freed: Set[str] = frozenset()) -> PoolAvailability:
        """What is left of the pool, also of what the ``freed`` claims have."""
        if freed and not freed.isdisjoint(self._holding_claims()):
            holders = {
                device: {claim: results for claim, results in by_claim.items() if claim not in freed}
                for device, by_claim in self.holders.items()
            }
            unknown = bool(self.unreadable_holders - freed)
            return pool_availability(pool, holders, holdings_unknown=unknown)
        if self.availability is None:
            unknown = bool(self.unreadable_holders)
            self.availability = pool_availability(pool, self.holders, holdings_unknown=unknown)
        return self.availability

    def _holding_claims(self) -> set[str]:
        return self.unreadable_holders.union(*self.holders.values())


def _names(pool: DevicePool) -> Iterator[str]:
    """The names of its devices, "" for a slice that cannot be read."""
    return (device.name for device in pool.devices)


class _NodeIndex:
    """The pools that a node can use: those that name it, and those of all nodes or with a node selector."""

    def __init__(self) -> None:
        self.by_node: defaultdict[str, set[PoolId]] = defaultdict(set)
        self.of_many_nodes: set[PoolId] = set()
        self._versions: dict[str, int] = {}  # by node, of the pools that name it
        self._version_of_many = 0
        self._last_version = 0

    def version_of(self, node: str, labels: Mapping[str, str]) -> tuple[int, int, int]:
        """Changes with the node's pools and, where these matter, its labels; (0, 0, 0) if there are no pools
        that it may use."""
        own = self._versions.get(node, 0)
        if not self.of_many_nodes:
            return own, 0, 0
        return own, self._version_of_many, hash(frozenset(labels.items()))

    def changed(self, id: PoolId, nodes: frozenset[str]) -> None:
        """A pool that names these nodes changes."""
        self._last_version += 1
        self._versions |= dict.fromkeys(nodes, self._last_version)
        if id in self.of_many_nodes:
            self._version_of_many = self._last_version

    def pools_of(self, node: str) -> set[PoolId]:
        return self.by_node.get(node, set()) | self.of_many_nodes

    def replace(self, id: PoolId, before: frozenset[str], scopes: Sequence[NodeScope]) -> frozenset[str]:
        """A pool that named the nodes ``before`` has these scopes now. Returns the nodes that they name."""
        nodes = frozenset(scope.node_name for scope in scopes if scope.node_name)
        for name in before - nodes:
            self.by_node[name].discard(id)
            if not self.by_node[name]:
                del self.by_node[name], self._versions[name]
        for name in nodes:
            self.by_node[name].add(id)
        self.of_many_nodes.discard(id)
        if any(scope.all_nodes or scope.terms for scope in scopes):
            self.of_many_nodes.add(id)
        return nodes


class PoolCache:
    """All pools. ``changed_nodes`` are the nodes whose own pools have changed; the caller clears them."""

    def __init__(self) -> None:
        self.changed_nodes: set[str] = set()
        self._states: defaultdict[PoolId, _PoolState] = defaultdict(_PoolState)
        self._nodes = _NodeIndex()
        self._outdated: set[PoolId] = set()
        self._incomplete_with_counters: set[PoolId] = set()
        self._problems: dict[str, str] = {}

    def put_slice(self, new: ResourceSlice) -> None:
        id = PoolId(new.driver, new.pool)
        self._states[id].slices[new.name] = new
        self._slices_changed(id)

    def remove_slice(self, old: ResourceSlice) -> None:
        id = PoolId(old.driver, old.pool)
        del self._states[id].slices[old.name]
        self._slices_changed(id)

    def put_allocation(self, claim: ResourceClaim) -> None:
        for result in claim.allocation or ():
            id = PoolId(result.id.driver, result.id.pool)
            by_claim = self._states[id].holders.setdefault(result.id.device, {})
            by_claim[claim.key] = (*by_claim.get(claim.key, ()), result)
            self._touch(id)
        for id in map(PoolId._make, claim.unreadable_pools):
            if id != UNKNOWN_POOL:
                self._states[id].unreadable_holders.add(claim.key)
                self._touch(id)

    def remove_allocation(self, claim: ResourceClaim) -> None:
        for result in claim.allocation or ():
            id = PoolId(result.id.driver, result.id.pool)
            if (state := self._states.get(id)) is None:  # the claim names a device twice
                continue
            by_claim = state.holders.get(result.id.device, {})
            by_claim.pop(claim.key, None)
            if not by_claim:
                state.holders.pop(result.id.device, None)
            self._touch(id)
        for id in map(PoolId._make, claim.unreadable_pools):
            if id in self._states:
                self._states[id].unreadable_holders.discard(claim.key)
                self._touch(id)

    def holders(self, device: DeviceId) -> Collection[str]:
        """The claims that hold a device or a part of it, also with admin access."""
        state = self._states.get(PoolId(device.driver, device.pool))
        return state.holders.get(device.device, {}) if state else {}

    def unknown_drivers(self, node: str) -> set[str]:
        """The drivers of the node's own pools that are incomplete, invalid, or not readable."""
        self._build_outdated()
        ids = self._nodes.by_node.get(node, ())
        pools = ((id, self._states[id].pool) for id in ids)
        return {id.driver for id, pool in pools if pool is None or pool.problem or not all(_names(pool))}

    @property
    def problems(self) -> Mapping[str, str]:
        self._build_outdated()
        return self._problems

    @property
    def blocks_allocation_mode_all(self) -> bool:
        """Whether a pool with counters is incomplete or invalid, on any node. kube-scheduler then
        satisfies no request with allocation mode ``All``."""
        self._build_outdated()
        return bool(self._incomplete_with_counters)

    def version_of(self, node: str, labels: Mapping[str, str]) -> tuple[int, int, int]:
        """Changes with the devices of the node; (0, 0, 0) if no pool may have any for it."""
        return self._nodes.version_of(node, labels)

    def node_devices(
        self,
        name: str,
        labels: Mapping[str, str],
        version: tuple[int, int, int],
        freed: Set[str] = frozenset(),
    ) -> NodeDevices:
        """The devices of a node, as if the ``freed`` claims were deallocated."""
        ids = self._nodes.pools_of(name)
        pools = sorted((pool for id in ids if (pool := self._pool(id))), key=lambda pool: pool.sort_key)
        return build_node_devices(
            name,
            labels,
            [self._states[pool.id].availability_of(pool, freed) for pool in pools],
            has_incomplete_pool=len(pools) < len(ids) or any(pool.problem for pool in pools),
            holdings_unknown=any(self._states[id].unreadable_holders - freed for id in ids),
            version=version,
        )

    def _slices_changed(self, id: PoolId) -> None:
        state = self._states[id]
        scopes = [
            one.scope_of(device) for one in state.slices.values() for device in (one.devices or (Device(""),))
        ]
        self._note_change(id)  # of the nodes that could use it so far
        state.nodes = self._nodes.replace(id, state.nodes, scopes)
        self._outdated.add(id)
        self._touch(id)

    def _note_change(self, id: PoolId) -> None:
        nodes = self._states[id].nodes
        self.changed_nodes |= nodes
        self._nodes.changed(id, nodes)

    def _touch(self, id: PoolId) -> None:
        """Note that a pool has changed, and forget it if nothing is left of it."""
        state = self._states[id]
        state.availability = None
        self._note_change(id)
        if not (state.slices or state.holders or state.unreadable_holders):
            self._pool(id)  # removes its problem
            del self._states[id]

    def _build_outdated(self) -> None:
        while self._outdated:
            self._pool(next(iter(self._outdated)))

    def _pool(self, id: PoolId) -> DevicePool | None:
        state = self._states[id]
        if id in self._outdated:
            self._outdated.discard(id)
            state.pool = pool = build_pool(id, state.slices.values())
            name = f"pool {id.pool} of {id.driver}"
            self._problems.pop(name, None)
            if pool and pool.problem:
                self._problems[name] = pool.problem
            self._incomplete_with_counters.discard(id)
            has_counters = any(one.shared_counters for one in state.slices.values())
            if has_counters and (pool is None or pool.problem):
                self._incomplete_with_counters.add(id)
        return state.pool
