"""Slices, classes, claims and taint rules as they arrive from the API server, and the devices of each node.

The devices of a node are built lazily, after one of its pools or a claim on them has changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from copy import copy
from typing import Any, TypeAlias, get_args

from extender.dra.allocator import AvailableDevices
from extender.dra.device_slots import Slot
from extender.dra.node_devices import NodeDevices
from extender.dra.pool_cache import PoolCache
from extender.dra.taint_rules import TaintRules
from extender.k8s.resource_api.objects import (
    UNKNOWN_POOL,
    DeviceClass,
    DeviceTaintRule,
    DeviceTaintRuleKind,
    Record,
    ResourceClaim,
    ResourceSlice,
)

Labels: TypeAlias = Mapping[str, str]

_NO_DEVICES = NodeDevices((), AvailableDevices((), {}), (), {}, has_incomplete_pool=False, version=(0, 0, 0))


class DeviceCache:
    """``changes`` counts those of all objects, ``rules_version`` those of classes and taint rules.
    ``extended_resources`` are those that classes provide by their specs. ``total_slots`` are the slots of all
    nodes at the last ``refresh``."""

    def __init__(self) -> None:
        self.classes: dict[str, DeviceClass] = {}
        self.claims: dict[str, ResourceClaim] = {}
        self.changes = self.rules_version = 0
        self.extended_resources: frozenset[str] = frozenset()
        self.taint_rules = TaintRules()
        self.pools = PoolCache()
        self.total_slots: Counter[Slot] = Counter()
        self._records: dict[str, dict[str, Any]] = {
            "ResourceSlice": {},
            "DeviceClass": self.classes,
            "ResourceClaim": self.claims,
            **{kind: {} for kind in get_args(DeviceTaintRuleKind)},
        }
        self._nodes: dict[str, NodeDevices] = {}
        self._problems: dict[str, str] = {}
        self._claims_on_unknown_pool: set[str] = set()
        self._freed: frozenset[str] = frozenset()

    def put(self, record: Record) -> None:
        self.changes += 1
        known = self.claims.get(record.key)
        if isinstance(record, ResourceClaim) and known and _holdings(known) == _holdings(record):
            self.claims[record.key] = record  # only its users have changed, as they do often
            return
        if isinstance(record, DeviceTaintRule) and self._records[record.kind].get(record.key) == record:
            return  # only its status has changed
        self.remove(record.kind, record.key)
        self._records[record.kind][record.key] = record
        if record.problem:
            self._problems[f"{record.kind} {record.key}"] = record.problem
        match record:
            case ResourceSlice():
                self.pools.put_slice(record)
            case DeviceClass():
                self._classes_changed()
            case ResourceClaim():
                self.pools.put_allocation(record)
                if UNKNOWN_POOL in record.unreadable_pools:
                    self._claims_on_unknown_pool.add(record.key)
            case DeviceTaintRule():
                self.taint_rules.put(record)
                self.rules_version += 1

    def remove(self, kind: str, key: str) -> None:
        self.changes += 1
        self._problems.pop(f"{kind} {key}", None)
        match self._records[kind].pop(key, None):
            case ResourceSlice() as known:
                self.pools.remove_slice(known)
            case DeviceClass():
                self._classes_changed()
            case ResourceClaim() as known:
                self.pools.remove_allocation(known)
                self._claims_on_unknown_pool.discard(key)
            case DeviceTaintRule() as known:
                self.taint_rules.remove(known)
                self.rules_version += 1

    def records(self) -> list[Record]:
        """All slices, classes, claims and taint rules."""
        return [record for by_key in self._records.values() for record in by_key.values()]

    def keep(self, kind: str, keys: AbstractSet[str]) -> None:
        """Remove all records of a kind that are not among ``keys``."""
        for key in self._records[kind].keys() - keys:
            self.remove(kind, key)

    def _classes_changed(self) -> None:
        self.rules_version += 1
        resources = (one.extended_resource for one in self.classes.values())
        self.extended_resources = frozenset(filter(None, resources))

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known of devices: we may not be allowed to list them."""
        return not any(self._records.values())

    @property
    def any_device_may_be_held(self) -> bool:
        """Whether a claim holds devices of a pool whose name cannot be read."""
        return bool(self._claims_on_unknown_pool - self._freed)

    @property
    def problems(self) -> Mapping[str, str]:
        """Records that cannot be read and pools that are invalid, and why."""
        return self._problems | dict(self.pools.problems)

    def refresh(self, labels_of: Callable[[str], Labels]) -> None:
        """Bring ``total_slots`` up to date."""
        changed = self.pools.changed_nodes
        while changed:
            name = next(iter(changed))
            self.on_node(name, labels_of(name))

    def without_claims(self, claims: Collection[str]) -> DeviceCache:
        """A view in which these claims are deallocated. It is valid until this cache changes."""
        if not claims:
            return self
        view = copy(self)
        view._freed, view._nodes = self._freed.union(claims), {}
        return view

    def on_node(self, name: str, labels: Labels) -> NodeDevices:
        if self._freed:
            return self._on_node_without_freed(name, labels)
        self.pools.changed_nodes.discard(name)
        known = self._nodes.get(name, _NO_DEVICES)
        version = self.pools.version_of(name, labels)
        if known.version == version:
            return known
        fresh = self.pools.node_devices(name, labels, version)
        self.total_slots.update(fresh.slots)
        self.total_slots.subtract(known.slots)
        for slot in known.slots.keys() - fresh.slots.keys():
            if not self.total_slots[slot]:
                del self.total_slots[slot]
        self._nodes[name] = fresh
        own_pools, pools_of_many, _ = version
        if not (own_pools or (pools_of_many and labels)):  # nothing there, or no node: a request can name any
            del self._nodes[name]
        return fresh

    def forget(self, node: str) -> None:
        """Keep nothing of a node that is gone, but its slots: the slices that name it are still there."""
        if not self._nodes.get(node, _NO_DEVICES).slots:
            self._nodes.pop(node, None)

    def _on_node_without_freed(self, name: str, labels: Labels) -> NodeDevices:
        if name not in self._nodes:
            version = self.pools.version_of(name, labels)
            self._nodes[name] = self.pools.node_devices(name, labels, version, self._freed)
        return self._nodes[name]


def _holdings(claim: ResourceClaim) -> tuple[object, ...]:
    return claim.allocation, claim.unreadable_pools, claim.problem
