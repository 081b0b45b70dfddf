"""Slices, classes, claims and taint rules as they arrive from the API server, and the devices of each node.

Everything else is built lazily: a pool after a change to one of its slices, its availability also after a
change to a claim, and the devices of a node after a change to one of its pools.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import dataclass, field
from itertools import chain, count, islice, product, starmap
from typing import Any, TypeAlias, get_args

from extender.dra.allocator import AvailableDevices
from extender.dra.cel.program import Unsupported
from extender.dra.node_devices import (
    NodeDevices,
    PoolAvailability,
    build_node_devices,
    is_gpu,
    pool_availability,
)
from extender.dra.pools import DevicePool, PoolId, Slot, build_pool
from extender.k8s.affinity import Taint
from extender.k8s.resource_claims import (
    UNKNOWN_POOL,
    AllocationResult,
    DeviceClass,
    DeviceRecord,
    ResourceClaim,
    ResourceClaimTemplate,
)
from extender.k8s.resource_slices import (
    Device,
    DeviceId,
    DeviceSelector,
    DeviceTaintRule,
    DeviceTaintRuleKind,
    ResourceSlice,
)
from extender.untrusted.limits import DEVICE_TAINTS, quoted

Labels: TypeAlias = Mapping[str, str]
_NO_DEVICES = NodeDevices((), AvailableDevices((), {}), (), {}, has_incomplete_pool=False, version=0)


@dataclass(slots=True)
class _Pool:
    """The slices of a pool by name, its allocation results by device and claim, the claims with unreadable
    holdings, and the results built from these. ``nodes`` are those named by slices or devices."""

    slices: dict[str, ResourceSlice] = field(default_factory=dict)
    holders: dict[str, dict[str, tuple[AllocationResult, ...]]] = field(default_factory=dict)
    unreadable_holders: set[str] = field(default_factory=set)
    nodes: frozenset[str] = frozenset()
    built: DevicePool | None = None
    availability: PoolAvailability | None = None

    def availability_of(
        self, built: DevicePool, freed: AbstractSet[str], *, since_1_37: bool
    ) -> PoolAvailability:
        """The availability of the pool without the ``freed`` claims."""
        if freed and not freed.isdisjoint(self.unreadable_holders.union(*self.holders.values())):
            holders = {
                device: {claim: results for claim, results in by_claim.items() if claim not in freed}
                for device, by_claim in self.holders.items()
            }
            unknown = bool(self.unreadable_holders - freed)
            return pool_availability(built, holders, holdings_unknown=unknown, since_1_37=since_1_37)
        if self.availability is None:
            unknown = bool(self.unreadable_holders)
            self.availability = pool_availability(
                built, self.holders, holdings_unknown=unknown, since_1_37=since_1_37
            )
        return self.availability


class DeviceCache:
    """``changes`` counts changes to all objects, ``rules_version`` those to classes and taint rules.
    ``extended_resources`` are those that classes provide in their specs. ``total_slots`` are the slots of all
    nodes at the last ``refresh``. ``two_ways``: nodes whose GPUs a device plugin also offers
    (``extender/cluster/node_table.py``). ``since_1_37``: kube-scheduler is of 1.37 or later: ranges of
    capacities may be fractional, and shares without amounts count their device's counters once."""

    def __init__(self, unlisted: Collection[str] = ()) -> None:
        self.since_1_37 = True
        self.unlisted = unlisted  # kinds that count as unknown
        self.classes: dict[str, DeviceClass] = {}
        self.claims: dict[str, ResourceClaim] = {}
        self.slices: dict[str, ResourceSlice] = {}
        self.templates: dict[str, ResourceClaimTemplate] = {}
        self.changes = self.rules_version = 0
        self.extended_resources: frozenset[str] = frozenset()
        self.taint_rules = TaintRules()
        self.total_slots: Counter[Slot] = Counter()
        self._records: dict[str, dict[str, Any]] = {
            "ResourceSlice": self.slices,
            "DeviceClass": self.classes,
            "ResourceClaim": self.claims,
            "ResourceClaimTemplate": self.templates,
            **{kind: {} for kind in get_args(DeviceTaintRuleKind)},
        }
        self._problems: dict[str, str] = {}
        self._claims_on_unknown_pool: set[str] = set()
        self._pools: defaultdict[PoolId, _Pool] = defaultdict(_Pool)
        self._outdated: set[PoolId] = set()  # to be built
        self._incomplete_with_counters: set[PoolId] = set()
        self._pools_of: defaultdict[str, set[PoolId]] = defaultdict(set)  # pools that name the node
        self._pools_of_many: set[PoolId] = set()  # pools for all nodes, or with a node selector
        self._nodes: dict[str, NodeDevices] = {}
        self._changed_nodes: set[str] = set()  # whose own pools have changed
        self._outdated_nodes: set[str] = set()
        self._changed_since: set[str] = set()
        self.two_ways: dict[str, str] = {}
        self._versions = count(1)
        self._freed: frozenset[str] = frozenset()

    def put(self, record: DeviceRecord) -> None:
        self.changes += 1
        known = self.claims.get(record.key)
        if isinstance(record, ResourceClaim) and known and _holdings(known) == _holdings(record):
            self.claims[record.key] = record  # only its consumers have changed, which is frequent
            return
        if isinstance(record, DeviceTaintRule) and self._records[record.kind].get(record.key) == record:
            return  # only its status has changed
        self.remove(record.kind, record.key)
        self._records[record.kind][record.key] = record
        if record.problem:
            self._problems[f"{record.kind} {record.key}"] = record.problem
        match record:
            case ResourceSlice():
                id = PoolId(record.driver, record.pool)
                self._pools[id].slices[record.name] = record
                self._slices_changed(id)
            case DeviceClass():
                self._classes_changed()
            case ResourceClaim():
                self._put_allocation(record)
            case DeviceTaintRule():
                self.taint_rules.put(record)
                self.rules_version += 1

    def remove(self, kind: str, key: str) -> None:
        self.changes += 1
        self._problems.pop(f"{kind} {key}", None)
        match self._records[kind].pop(key, None):
            case ResourceSlice() as known:
                id = PoolId(known.driver, known.pool)
                del self._pools[id].slices[known.name]
                self._slices_changed(id)
            case DeviceClass():
                self._classes_changed()
            case ResourceClaim() as known:
                self._remove_allocation(known)
            case DeviceTaintRule() as known:
                self.taint_rules.remove(known)
                self.rules_version += 1

    def records(self) -> list[DeviceRecord]:
        """All slices, classes, claims and taint rules."""
        return [record for by_key in self._records.values() for record in by_key.values()]

    def set_version(self, *, since_1_37: bool) -> None:
        """Whether kube-scheduler is of 1.37 or later, as is assumed at first."""
        if since_1_37 != self.since_1_37:
            self.since_1_37 = since_1_37
            self.rules_version += 1
            for id in list(self._pools):
                self._pool_changed(id)

    def keep(self, kind: str, keys: AbstractSet[str]) -> None:
        """Remove all records of a kind that are not among ``keys``."""
        for key in self._records[kind].keys() - keys:
            self.remove(kind, key)

    @property
    def is_empty(self) -> bool:
        """Whether no devices are known: Stowage may not be permitted to list them."""
        return not any(of_kind for kind, of_kind in self._records.items() if kind != "ResourceClaimTemplate")

    @property
    def any_device_may_be_held(self) -> bool:
        """Whether a claim holds devices of a pool whose name cannot be read."""
        return bool(self._claims_on_unknown_pool - self._freed)

    @property
    def blocks_allocation_mode_all(self) -> bool:
        """Whether a pool with counters is incomplete or invalid, on any node. kube-scheduler then
        satisfies no request with allocation mode ``All``."""
        self._build_outdated()
        return bool(self._incomplete_with_counters)

    @property
    def problems(self) -> Mapping[str, str]:
        """Problems of unreadable records, of invalid pools, and of ``two_ways``, as text."""
        self._build_outdated()
        return self._problems | self.two_ways

    def holders(self, device: DeviceId) -> Collection[str]:
        """The claims that hold a device or a part of it, without those with admin access."""
        pool = self._pools.get(PoolId(device.driver, device.pool))
        of_claims = pool.holders.get(device.device, {}) if pool else {}
        return [claim for claim, held in of_claims.items() if not all(r.admin_access for r in held)]

    def pop_changed(self) -> Collection[str]:
        """The nodes whose devices, or holders of these, may have changed since the last call."""
        changed, self._changed_since = self._changed_since, set()
        return changed

    def lacks_gpus(self, node: str) -> bool:
        """Whether any of the node's own pools of GPUs is incomplete, invalid, or unreadable."""
        pools = [(id, self._build(id)) for id in self._pools_of.get(node, ())]
        # An unreadable slice is a device without a name.
        broken = (
            id for id, pool in pools if not pool or pool.problem or not all(d.name for d in pool.devices)
        )
        return any(
            is_gpu(id.driver, device)
            for id in broken
            for part in self._pools[id].slices.values()
            for device in (*part.devices, Device(""))
        )

    def taints_of(self, id: DeviceId, device: Device) -> tuple[Taint, ...]:
        """The taints of a device by its driver and by rules. Raises ``Unsupported``."""
        return (*device.taints, *self.taint_rules.taints_of(id))

    def refresh(self, labels_of: Callable[[str], Labels]) -> None:
        """Update ``total_slots``."""
        while self._changed_nodes:
            name = next(iter(self._changed_nodes))
            self.on_node(name, labels_of(name))

    def without_claims(self, claims: Collection[str]) -> DeviceCache:
        """A view in which these claims are deallocated. It is valid until this cache changes."""
        if not claims:
            return self
        view = copy(self)
        view._freed, view._nodes = self._freed.union(claims), {}
        return view

    def on_node(self, name: str, labels: Labels) -> NodeDevices:
        """The devices of a node: the same object until they change."""
        if self._freed:
            if name not in self._nodes:
                self._nodes[name] = self._node_devices(name, labels)
            return self._nodes[name]
        self._changed_nodes.discard(name)
        known = self._nodes.get(name, _NO_DEVICES)
        if self._is_current(name, known, labels):
            return known
        self._outdated_nodes.discard(name)
        fresh = self._node_devices(name, labels)
        self.total_slots.update(fresh.slots)
        self.total_slots.subtract(known.slots)
        for slot in known.slots.keys() - fresh.slots.keys():
            if not self.total_slots[slot]:
                del self.total_slots[slot]
        self._nodes[name] = fresh
        if name not in self._pools_of and not (self._pools_of_many and labels):
            del self._nodes[name]  # no devices, or no such node: a request can name any
        return fresh

    def forget(self, node: str) -> None:
        """Drop the state of a removed node, except its slots: the slices that name it still exist."""
        self.two_ways.pop(node, None)
        if not self._nodes.get(node, _NO_DEVICES).slots:
            self._nodes.pop(node, None)
            self._outdated_nodes.discard(node)

    def _is_current(self, name: str, known: NodeDevices, labels: Labels) -> bool:
        if known is _NO_DEVICES:
            return not (self._pools_of_many or name in self._pools_of)
        if name in self._outdated_nodes:
            return False
        return not self._pools_of_many or known.labels is labels or known.labels == labels

    def _node_devices(self, name: str, labels: Labels) -> NodeDevices:
        ids = self._pools_of.get(name, set()) | self._pools_of_many
        if not ids:
            return _NO_DEVICES
        pools = [pool for id in ids if (pool := self._build(id))]
        pools.sort(key=lambda pool: (any(of.has_binding_conditions for of in pool.devices), pool.id))
        return build_node_devices(
            name,
            labels,
            [
                self._pools[pool.id].availability_of(pool, self._freed, since_1_37=self.since_1_37)
                for pool in pools
            ],
            has_incomplete_pool=len(pools) < len(ids) or any(pool.problem for pool in pools),
            holdings_unknown=any(self._pools[id].unreadable_holders - self._freed for id in ids),
            version=next(self._versions),
        )

    def _classes_changed(self) -> None:
        self.rules_version += 1
        resources = (device_class.extended_resource for device_class in self.classes.values())
        self.extended_resources = frozenset(filter(None, resources))

    def _put_allocation(self, claim: ResourceClaim) -> None:
        for result in claim.allocation or ():
            id = PoolId(result.id.driver, result.id.pool)
            by_claim = self._pools[id].holders.setdefault(result.id.device, {})
            by_claim[claim.key] = (*by_claim.get(claim.key, ()), result)
            self._pool_changed(id)
        for id in map(PoolId._make, claim.unreadable_pools):
            if id == UNKNOWN_POOL:
                self._claims_on_unknown_pool.add(claim.key)
            else:
                self._pools[id].unreadable_holders.add(claim.key)
                self._pool_changed(id)

    def _remove_allocation(self, claim: ResourceClaim) -> None:
        self._claims_on_unknown_pool.discard(claim.key)
        for result in claim.allocation or ():
            id = PoolId(result.id.driver, result.id.pool)
            if (pool := self._pools.get(id)) is None:  # the claim lists a device twice
                continue
            by_claim = pool.holders.get(result.id.device, {})
            by_claim.pop(claim.key, None)
            if not by_claim:
                pool.holders.pop(result.id.device, None)
            self._pool_changed(id)
        for id in map(PoolId._make, claim.unreadable_pools):
            if id in self._pools:
                self._pools[id].unreadable_holders.discard(claim.key)
                self._pool_changed(id)

    def _slices_changed(self, id: PoolId) -> None:
        pool = self._pools[id]
        self._mark_nodes(id)  # those that could use it until now
        slices = pool.slices.values()
        scopes = [part.scope_of(device) for part in slices for device in (part.devices or (Device(""),))]
        nodes = frozenset(scope.node_name for scope in scopes if scope.node_name)
        for name in pool.nodes - nodes:
            self._pools_of[name].discard(id)
            if not self._pools_of[name]:
                del self._pools_of[name]
        for name in nodes:
            self._pools_of[name].add(id)
        pool.nodes = nodes
        self._pools_of_many.discard(id)
        if any(scope.all_nodes or scope.terms for scope in scopes):
            self._pools_of_many.add(id)
        self._outdated.add(id)
        self._pool_changed(id)

    def _pool_changed(self, id: PoolId) -> None:
        """Forget a pool if nothing remains of it."""
        pool = self._pools[id]
        pool.availability = None
        self._mark_nodes(id)
        if not (pool.slices or pool.holders or pool.unreadable_holders):
            self._build(id)  # removes its problem
            del self._pools[id]

    def _mark_nodes(self, id: PoolId) -> None:
        """Mark the devices of the nodes that can use a pool as changed."""
        nodes = self._pools[id].nodes
        self._changed_nodes |= nodes
        self._changed_since |= nodes
        self._outdated_nodes |= (
            self._nodes.keys() if id in self._pools_of_many else nodes & self._nodes.keys()
        )

    def _build_outdated(self) -> None:
        while self._outdated:
            self._build(next(iter(self._outdated)))

    def _build(self, id: PoolId) -> DevicePool | None:
        """The pool, None while it is incomplete."""
        state = self._pools[id]
        if id in self._outdated:
            self._outdated.discard(id)
            state.built = pool = build_pool(id, state.slices.values())
            name = f"pool {id.pool} of {id.driver}"
            self._problems.pop(name, None)
            if pool and pool.problem:
                self._problems[name] = pool.problem
            self._incomplete_with_counters.discard(id)
            has_counters = any(part.shared_counters for part in state.slices.values())
            if has_counters and (pool is None or pool.problem):
                self._incomplete_with_counters.add(id)
        return state.built


class TaintRules:
    """Taints that administrators put on devices, in addition to those of the driver.

    As in kube-scheduler, a device has the taints of all rules that select it (``applyPatches`` in
    k8s.io/dynamic-resource-allocation v0.36.3, ``resourceslice/tracker``).
    """

    def __init__(self) -> None:
        # By selector, and by kind and name.
        self._by_selector: dict[DeviceSelector, dict[tuple[str, str], DeviceTaintRule]] = {}

    def put(self, rule: DeviceTaintRule) -> None:
        self._by_selector.setdefault(rule.selector, {})[rule.kind, rule.key] = rule

    def remove(self, rule: DeviceTaintRule) -> None:
        rules = self._by_selector[rule.selector]
        del rules[rule.kind, rule.key]
        if not rules:
            del self._by_selector[rule.selector]

    def taints_of(self, device: DeviceId) -> tuple[Taint, ...]:
        """The taints that rules put on a device. Raises ``Unsupported`` if one of them cannot be read."""
        if not self._by_selector:
            return ()
        names = product((device.driver, ""), (device.pool, ""), (device.device, ""))
        found = (self._by_selector.get(selector, {}) for selector in starmap(DeviceSelector, names))
        selecting = chain.from_iterable(rules.values() for rules in found)
        rules = list(islice(selecting, DEVICE_TAINTS + 1))
        if len(rules) > DEVICE_TAINTS:
            raise Unsupported(f"more than {DEVICE_TAINTS} DeviceTaintRules for a device")
        for rule in rules:
            if rule.problem:
                raise Unsupported(f"DeviceTaintRule {quoted(rule.name)}: {rule.problem}")
        return tuple(rule.taint for rule in rules)


def _holdings(claim: ResourceClaim) -> tuple[object, ...]:
    return claim.allocation, claim.unreadable_pools, claim.problem
