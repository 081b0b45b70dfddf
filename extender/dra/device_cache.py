"""Which devices there are, who holds them, and what of them is left on each node.

Slices, classes and claims come in as events; everything else follows from them, and is worked out when it is
asked for: a pool anew when one of its slices has changed, a node when one of its pools has, or a claim on it.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TypeAlias

from extender.dra.allocator import Amounts, Offer
from extender.dra.device_slots import Kind, Room, Slot, counts, room
from extender.dra.extended_resources import OF_CLASS
from extender.dra.pools import Pool, PoolKey, pool_of
from extender.k8s.resource_api.objects import (
    ANY_POOL,
    AllocationResult,
    Device,
    DeviceClass,
    DeviceId,
    NodeScope,
    Record,
    ResourceClaim,
    ResourceSlice,
)

Labels: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Rest:
    """A pool, which of its devices are ``taken``, of which a part is (``begun``), and what is ``left`` of its
    counters and of the devices' parts. ``overdrawn``: of a counter more is taken than there is."""

    pool: Pool
    taken: frozenset[int]
    begun: frozenset[int]
    left: Amounts
    consumes: Sequence[Amounts]
    overdrawn: bool

    def counts(self, places: AbstractSet[int] = frozenset()) -> Mapping[Kind, int]:
        """How many more whole devices of each kind there could be once these are taken, too."""
        pool = self.pool
        assert pool.shape is not None
        left = {counter: self.left[counter] for counter in pool.counters}
        for place in places - self.begun:
            for counter, amount in pool.consumes[place].items():
                left[counter] -= amount
        gone = self.taken.union(self.begun, places)
        if self.overdrawn:
            gone |= {place for place, consumed in enumerate(pool.consumes) if consumed}
        return counts(pool.shape, gone, tuple(left.values()))


@dataclass(frozen=True, slots=True, eq=False)
class NodeDevices:
    """The devices that a node can use, in the scheduler's order, and what is left of them.

    ``places`` are pools and indices of devices there (D,). ``room`` is what the node's own pools (``rests``)
    have room for. ``incomplete``: a pool is being renewed or is not sound; nobody can have all devices until
    that is over. ``hidden``: a claim holds devices here, and it cannot be read which. ``stamp`` changes with
    everything else.
    """

    places: tuple[tuple[Pool, int], ...]
    offer: Offer
    rests: tuple[_Rest, ...]
    room: Room
    incomplete: bool
    stamp: tuple[int, int, int]
    hidden: bool = False

    def device(self, index: int) -> Device:
        """A device."""
        pool, place = self.places[index]
        return pool.devices[place]

    @property
    def has_pools(self) -> bool:
        """Whether there are devices, or may be at any moment."""
        return bool(self.places) or self.incomplete

    def id_of(self, index: int) -> DeviceId:
        """The name of a device in the cluster."""
        pool, place = self.places[index]
        return pool.id_of(place)

    def room_without(self, devices: Iterable[int], sizes: Mapping[Kind, float]) -> Room:
        """What there is room for once these are taken, too."""
        taken = [self.places[index] for index in devices]
        return room(
            (
                rest.counts(frozenset(place for pool, place in taken if pool is rest.pool))
                for rest in self.rests
            ),
            sizes,
        )


_NOTHING = NodeDevices((), Offer((), {}), (), {}, incomplete=False, stamp=(0, 0, 0))


@dataclass(slots=True)
class _Entry:
    """The slices of a pool by name, the nodes that they are for, the pool as it was last put together (and
    what was left of it then), the claims that hold its devices, by device, and those of which it could not
    be read which they hold."""

    slices: dict[str, ResourceSlice] = field(default_factory=dict)
    held: dict[str, dict[str, tuple[AllocationResult, ...]]] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    nodes: frozenset[str] = frozenset()
    pool: Pool | None = None
    rest: tuple[int, _Rest] | None = None  # of which version
    version: int = 0


class DeviceCache:
    """See above. ``classes`` and ``claims`` are by key; ``version`` changes with every class. ``resources``
    are the extended resources that a device class stands for.

    ``total`` is the room of all nodes, ``sizes`` the part of a GPU that a device is, by kind.
    ``unsound``: a pool with counters is being renewed or is not sound, on whichever node: kube-scheduler then
    gives nobody all devices of a kind.
    """

    def __init__(self) -> None:
        self.classes: dict[str, DeviceClass] = {}
        self.claims: dict[str, ResourceClaim] = {}
        self.version = 0
        self.total: Tally[Slot] = Tally()
        self.sizes: dict[Kind, float] = {}
        self._pools_with: Tally[Kind] = Tally()
        self._perhaps_gone: set[Kind] = set()
        self.resources: frozenset[str] = frozenset()
        self._slices: dict[str, ResourceSlice] = {}
        self._hidden: set[str] = set()
        self._entries: dict[PoolKey, _Entry] = {}
        self._of_node: defaultdict[str, set[PoolKey]] = defaultdict(set)
        self._of_many: set[PoolKey] = set()
        self._nodes: dict[str, NodeDevices] = {}
        self._dirty: set[str] = set()
        self._clock = 0
        self._unsound: set[PoolKey] = set()
        self._unbuilt: set[PoolKey] = set()
        self._problems: dict[str, str] = {}

    def put(self, record: Record) -> None:
        """A record is new, or has changed."""
        if isinstance(record, ResourceClaim) and self._same_grants(record):
            self.claims[record.key] = record
            return
        self.remove(record.kind, record.key)
        self._note(f"{record.kind} {record.key}", record.problem)
        match record:
            case ResourceSlice():
                self._slices[record.name] = record
                key = PoolKey(record.driver, record.pool)
                self._entries.setdefault(key, _Entry()).slices[record.name] = record
                self._sliced(key)
            case DeviceClass():
                self.classes[record.name] = record
                self._classes_changed()
            case ResourceClaim():
                self.claims[record.key] = record
                for grant in record.grants or ():
                    key = PoolKey(grant.id.driver, grant.id.pool)
                    held = self._entries.setdefault(key, _Entry()).held.setdefault(grant.id.device, {})
                    held[record.key] = (*held.get(record.key, ()), grant)
                    self._touched(key)
                self._hide(record)

    def remove(self, kind: str, key: str) -> None:
        """A record is gone. One that is not known is none."""
        self._problems.pop(f"{kind} {key}", None)
        if kind == "ResourceSlice" and (one := self._slices.pop(key, None)):
            pool_key = PoolKey(one.driver, one.pool)
            del self._entries[pool_key].slices[key]
            self._sliced(pool_key)
            self._drop_if_empty(pool_key)
        elif kind == "DeviceClass" and key in self.classes:
            del self.classes[key]
            self._classes_changed()
        elif kind == "ResourceClaim" and (claim := self.claims.pop(key, None)):
            for grant in claim.grants or ():
                self._give_back(key, grant.id)
            self._show(claim)

    def _give_back(self, claim: str, device: DeviceId) -> None:
        key = PoolKey(device.driver, device.pool)
        if (entry := self._entries.get(key)) is None:  # of a claim that names a device twice
            return
        holders = entry.held.get(device.device, {})
        holders.pop(claim, None)
        if not holders:
            entry.held.pop(device.device, None)
        self._touched(key)
        self._drop_if_empty(key)

    def _hide(self, claim: ResourceClaim) -> None:
        """Nobody can say what is free of the pools that the claim has devices of."""
        for name in claim.hidden:
            if name == ANY_POOL:
                self._hidden.add(claim.key)
            else:
                key = PoolKey(*name)
                self._entries.setdefault(key, _Entry()).hidden.add(claim.key)
                self._touched(key)

    def _show(self, claim: ResourceClaim) -> None:
        self._hidden.discard(claim.key)
        for key in map(PoolKey._make, claim.hidden):
            if key in self._entries:
                self._entries[key].hidden.discard(claim.key)
                self._touched(key)
                self._drop_if_empty(key)

    def _classes_changed(self) -> None:
        self.version += 1
        self.resources = frozenset(one.resource for one in self.classes.values() if one.resource)

    def _same_grants(self, claim: ResourceClaim) -> bool:
        """Whether nothing has changed that devices depend on: who uses them does change, and often."""
        known = self.claims.get(claim.key)
        return known is not None and (known.grants, known.hidden, known.problem) == (
            claim.grants,
            claim.hidden,
            claim.problem,
        )

    def keep(self, kind: str, keys: AbstractSet[str]) -> None:
        """Remove all records of a kind that are not among ``keys``."""
        known: dict[str, Mapping[str, Record]] = {
            "ResourceSlice": self._slices,
            "DeviceClass": self.classes,
            "ResourceClaim": self.claims,
        }
        for key in known[kind].keys() - keys:
            self.remove(kind, key)

    def holders(self, device: DeviceId) -> Collection[str]:
        """The claims that hold a device, or a part of it, or look at it."""
        entry = self._entries.get(PoolKey(device.driver, device.pool))
        return entry.held.get(device.device, {}) if entry else {}

    @property
    def problems(self) -> Mapping[str, str]:
        """What could not be read, or contradicts itself, by the object that it is about."""
        self._build_pools()
        return self._problems

    @property
    def hidden(self) -> bool:
        """Whether a claim holds devices of which not even the pool could be read."""
        return bool(self._hidden)

    @property
    def has_slices(self) -> bool:
        """Whether there are slices."""
        return bool(self._slices)

    def classes_for(self, resource: str) -> list[str]:
        """The classes that stand for an extended resource."""
        if resource.startswith(OF_CLASS):
            return [name] if (name := resource.removeprefix(OF_CLASS)) in self.classes else []
        return [one.name for one in self.classes.values() if one.resource == resource]

    @property
    def unsound(self) -> bool:
        """See the class."""
        self._build_pools()
        return bool(self._unsound)

    def refresh(self, labels_of: Callable[[str], Labels]) -> None:
        """Bring ``total`` up to date."""
        while self._dirty:
            name = next(iter(self._dirty))
            self.on_node(name, labels_of(name))
        self._forget_kinds()  # of which no node has room any more

    def on_node(self, name: str, labels: Labels) -> NodeDevices:
        """What the node of this name and these labels can use."""
        known = self._nodes.get(name)
        if known is not None and name not in self._dirty and not self._of_many:
            return known
        keys = self._of_node.get(name, set()) | self._of_many
        if not keys and known is None:
            self._dirty.discard(name)
            return _NOTHING
        newest = max((self._entries[key].version for key in keys), default=0)
        stamp = (len(keys), newest, hash(frozenset(labels.items())) if self._of_many else 0)
        self._dirty.discard(name)
        if known is not None and known.stamp == stamp:
            return known
        fresh = self._build(name, labels, keys, stamp)
        self._count(fresh.room, known.room if known else {})
        self._nodes[name] = fresh
        if not fresh.places:
            del self._nodes[name]
        return fresh

    def _count(self, room: Room, before: Room) -> None:
        self.total.update(room)
        self.total.subtract(before)
        for slot in before.keys() - room.keys():
            if not self.total[slot]:
                del self.total[slot]

    def _build(
        self, name: str, labels: Labels, keys: set[PoolKey], stamp: tuple[int, int, int]
    ) -> NodeDevices:
        found = [self._pool(key) for key in keys]
        pools = sorted((pool for pool in found if pool), key=lambda pool: pool.order)
        hidden = any(self._entries[key].hidden for key in keys)
        rests = tuple(self._rest(pool) for pool in pools)
        here = [
            (rest, place)
            for rest in rests
            for place, reach in enumerate(rest.pool.reach)
            if reach.includes(name, labels)
        ]
        offer = Offer(
            tuple(rest.consumes[place] for rest, place in here),
            {counter: amount for rest in rests for counter, amount in rest.left.items()},
            frozenset(i for i, (rest, place) in enumerate(here) if place in rest.taken),
            {
                i: rest.pool.parts[place].keys()
                for i, (rest, place) in enumerate(here)
                if place in rest.pool.parts
            },
            frozenset(i for i, (rest, place) in enumerate(here) if place in rest.begun),
        )
        places = tuple((rest.pool, place) for rest, place in here)
        incomplete = len(pools) < len(keys) or any(pool.problem for pool in pools)
        own = tuple(
            one
            for one in rests
            if one.pool.shape and one.pool.reach[0].node == name and not self._entries[one.pool.key].hidden
        )
        room_here = room((one.counts() for one in own), self.sizes)
        return NodeDevices(places, offer, own, room_here, incomplete, stamp, hidden)

    def _rest(self, pool: Pool) -> _Rest:
        entry = self._entries[pool.key]
        if entry.rest is None or entry.rest[0] != entry.version:
            entry.rest = entry.version, self._what_is_left(pool)
        return entry.rest[1]

    def _what_is_left(self, pool: Pool) -> _Rest:
        left = dict(pool.counters)
        for parts in pool.parts.values():
            left |= parts
        taken, begun = set[int](), set[int]()
        for name, holders in self._entries[pool.key].held.items():
            grants = [grant for held in holders.values() for grant in held if not grant.watching]
            if not grants or name not in pool.index:
                continue
            index = pool.index[name]
            for counter, amount in pool.consumes[index].items():
                left[counter] -= amount
            for grant in grants:
                if not grant.shared:
                    taken.add(index)
                elif grant.consumed is not None:
                    begun.add(index)
                    for capacity, portion in grant.consumed:
                        if (part := (pool.key, index, capacity)) in left:
                            left[part] -= portion.number
        overdrawn = {counter: 0 for counter in pool.counters if left[counter] < 0}
        # While there is one, no device that consumes any is given out: they want none of it, and have less.
        consumes = [one and {**one, **overdrawn} for one in pool.consumes] if overdrawn else pool.consumes
        return _Rest(pool, frozenset(taken), frozenset(begun), left, consumes, bool(overdrawn))

    def _sliced(self, key: PoolKey) -> None:
        """One of the pool's slices came, changed or went."""
        entry = self._entries[key]
        reaches = [
            device.reach or NodeScope() if one.per_device else one.reach
            for one in entry.slices.values()
            for device in (one.devices or (Device(""),))
        ]
        nodes = frozenset(reach.node for reach in reaches if reach.node)
        for name in entry.nodes - nodes:
            self._of_node[name].discard(key)
            if not self._of_node[name]:
                del self._of_node[name]
            self._dirty.add(name)
        for name in nodes:
            self._of_node[name].add(key)
        entry.nodes = nodes
        self._unbuilt.add(key)
        if any(reach.everywhere or reach.terms for reach in reaches):
            self._of_many.add(key)
        else:
            self._of_many.discard(key)
        self._touched(key)

    def _drop_if_empty(self, key: PoolKey) -> None:
        """Forget a pool that has no slices and no holders any more."""
        entry = self._entries.get(key)
        if entry and not (entry.slices or entry.held or entry.hidden):
            self._pool(key)  # which ends what was wrong with it
            del self._entries[key]

    def _touched(self, key: PoolKey) -> None:
        self._clock += 1
        self._entries[key].version = self._clock
        self._dirty |= self._entries[key].nodes

    def _build_pools(self) -> None:
        while self._unbuilt:
            self._pool(next(iter(self._unbuilt)))

    def _pool(self, key: PoolKey) -> Pool | None:
        entry = self._entries[key]
        if key in self._unbuilt:
            self._unbuilt.discard(key)
            before = entry.pool.sizes() if entry.pool else {}
            entry.pool = pool = pool_of(key, entry.slices.values())
            self._count_kinds(before, pool.sizes() if pool else {})
            self._note(f"pool {key.pool} of {key.driver}", pool.problem if pool else "")
            if (pool is None or pool.problem) and any(one.counters for one in entry.slices.values()):
                self._unsound.add(key)
            else:
                self._unsound.discard(key)
        return entry.pool

    def _count_kinds(self, before: Mapping[Kind, float], now: Mapping[Kind, float]) -> None:
        self.sizes.update(now)
        self._pools_with.update(now.keys())
        self._pools_with.subtract(before.keys())
        self._perhaps_gone |= before.keys() - now.keys()

    def _forget_kinds(self) -> None:
        for kind in self._perhaps_gone:
            if not self._pools_with[kind]:
                del self._pools_with[kind]
                self.sizes.pop(kind, None)
        self._perhaps_gone.clear()

    def _note(self, subject: str, problem: str) -> None:
        if problem:
            self._problems[subject] = problem
        else:
            self._problems.pop(subject, None)
