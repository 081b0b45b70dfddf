"""Builds pools of devices from slices, in the order in which kube-scheduler tries their devices.

As in ``pools_incubating.go`` of k8s.io/dynamic-resource-allocation v0.36.3 (``structured/internal``): only
the newest generation of a pool is used, once all of its slices exist. Slices are sorted by name, pools by
driver and name, those with binding conditions last. Invalid pools have a ``problem`` and provide no devices.

Partitions of a GPU share counters: unique memory slices, and amounts such as multiprocessors. A node's slots
of a kind are the devices of that kind that it could still allocate if no other kind were requested.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias
from weakref import WeakValueDictionary

from extender.dra.allocator import CounterAmounts
from extender.dra.cel.program import Meter, Unsupported
from extender.dra.cel.selector import Selector, device_variables
from extender.k8s.resource_slices import Counters, Device, NodeScope, Number, ResourceSlice
from packing.model.gpu_catalog import parse_profile

_MAX_SELECTORS = 32
"""Maximum number of selectors whose matches are cached, separately for classes and claims, so that authors of
claims cannot evict the matches of classes."""
_Matches: TypeAlias = dict[bytes, bytearray]
"""By selector key, for each device: 0 for not evaluated yet, 1 for no, 2 for yes."""


class PoolId(NamedTuple):
    """The name of a pool, unique in the cluster."""

    driver: str
    pool: str


@dataclass(frozen=True, slots=True)
class DevicePool:
    """A complete pool: its devices, in kube-scheduler's order, and the nodes that can use each of them (D,).

    ``counters``, and the amounts that each device consumes (``consumption``, D), are keyed by (pool, counter
    set, counter); the ``capacities`` of devices that allow multiple allocations by (pool, index, name).
    ``problem``: why the pool is invalid, also for kube-scheduler. A pool with an unreadable slice has one
    device, with that problem. ``layout`` is None for pools that do not belong to one node: these
    are ignored in the slots of nodes.
    """

    id: PoolId
    devices: tuple[Device, ...] = ()
    node_scopes: tuple[NodeScope, ...] = ()
    counters: CounterAmounts = field(default_factory=dict)
    consumption: tuple[CounterAmounts, ...] = ()
    problem: str = ""
    index_of: Mapping[str, int] = field(default_factory=dict)  # of devices by name
    capacities: Mapping[int, CounterAmounts] = field(default_factory=dict)
    layout: PoolLayout | None = None
    _class_matches: _Matches = field(default_factory=dict)
    _claim_matches: _Matches = field(default_factory=dict)

    def matches(self, index: int, selector: Selector, meter: Meter, *, of_class: bool) -> bool:
        """Whether a selector of a class or a claim matches a device. Raises ``MatchUnknown``."""
        cache = self._class_matches if of_class else self._claim_matches
        if (matches := cache.get(selector.key)) is None:
            if len(cache) >= _MAX_SELECTORS:
                del cache[next(iter(cache))]
            matches = cache[selector.key] = bytearray(len(self.devices))
        if not matches[index]:
            matches[index] = 1 + self._evaluate(self.devices[index], selector, meter)
        return matches[index] == 2

    def _evaluate(self, device: Device, selector: Selector, meter: Meter) -> bool:
        if device.problem:
            raise Unsupported(f"{device.problem} of pool {self.id.pool}")
        variables = device_variables(
            self.id.driver,
            device.attributes,
            device.capacity,
            allow_multiple_allocations=device.allow_multiple_allocations,
        )
        return selector(variables, meter)


def build_pool(id: PoolId, slices: Iterable[ResourceSlice]) -> DevicePool | None:
    """The pool of these slices, or None while its newest generation is incomplete."""
    slices = list(slices)
    newest = max((part.generation for part in slices), default=0)
    current = sorted((part for part in slices if part.generation == newest), key=lambda part: part.name)
    if not current or len(current) != current[0].slice_count:
        return None
    if unreadable := next((part for part in current if part.problem), None):
        return DevicePool(
            id, (Device("", problem=unreadable.problem),), (unreadable.node_scope,), consumption=({},)
        )
    devices = tuple(device for part in current for device in part.devices)
    node_scopes = tuple(part.scope_of(device) for part in current for device in part.devices)
    counter_sets = [shared for part in current for shared in part.shared_counters]
    counters = {(name, counter): n for name, amounts in counter_sets for counter, n in amounts.items()}
    if problem := _problem(devices, counters, [name for name, _ in counter_sets]):
        return DevicePool(id, problem=problem)
    names = sorted(counters, key=lambda name: (name[0], len(name[1]), name[1]))  # memory-slice-10 after -9
    one_node = devices and node_scopes[0].node_name and all(s == node_scopes[0] for s in node_scopes)
    return DevicePool(
        id,
        devices,
        node_scopes,
        {(id, *name): counters[name] for name in names},
        tuple({(id, *counter): n for counter, n in d.consumes_counters.items()} for d in devices),
        index_of={device.name: index for index, device in enumerate(devices)},
        capacities={
            index: {(id, index, name): amount.number for name, amount in device.capacity_by_name.items()}
            for index, device in enumerate(devices)
            if device.allow_multiple_allocations
        },
        layout=_layout(id, devices, {name: counters[name] for name in names}) if one_node else None,
    )


def _layout(id: PoolId, devices: Sequence[Device], counters: Counters) -> PoolLayout:
    counter_index = {counter: number for number, counter in enumerate(counters)}
    set_index = {name: number for number, name in enumerate(dict.fromkeys(name for name, _ in counters))}
    counter_sets, amounts = tuple(set_index[name] for name, _ in counters), tuple(counters.values())
    consumption = tuple(
        tuple(sorted((counter_index[counter], n) for counter, n in device.consumes_counters.items()))
        for device in devices
    )
    kinds = tuple(
        _kind(id.driver, device, consumed, share_of_counters(consumed, counter_sets, amounts))
        for device, consumed in zip(devices, consumption, strict=True)
    )
    return PoolLayout(kinds, consumption, counter_sets).interned()


def _kind(driver: str, device: Device, consumed: Consumption, share: float) -> DeviceKind:
    """``share`` is that of the counters. Static MIG instances consume none, so their profile is used."""
    profile = device.attribute_text("profile")
    if not consumed and (static := parse_profile(profile)):
        share = min(static.compute / 7, 1.0)
    product = device.attribute_text("productName")
    return DeviceKind(driver, product, profile or device.attribute_text("type"), share)


def _problem(devices: Sequence[Device], counters: Counters, counter_sets: Sequence[str]) -> str:
    for what, names in (("device", [device.name for device in devices]), ("counter set", counter_sets)):
        if duplicate := next((name for name, count in Counter(names).items() if count > 1), ""):
            return f"{what} {duplicate} occurs twice"
    for device in devices:
        if missing := sorted(device.consumes_counters.keys() - counters.keys()):
            name, counter = missing[0]
            return f"{device.name} consumes {counter} of counter set {name}, which the pool does not have"
    return ""


GROUP_SIZES = (1, 2, 4, 8)
"""Numbers of whole GPUs that pods request on one node; partitions are requested one by one."""


class DeviceKind(NamedTuple):
    """Devices that count as equal: of one product and profile (or type, without a profile), and the same
    ``gpu_fraction`` (0 to 1) of a GPU."""

    driver: str
    product: str
    profile: str
    gpu_fraction: float


Slot: TypeAlias = tuple[DeviceKind, int]
"""(kind, number of devices allocated together)."""
Slots: TypeAlias = Mapping[Slot, int]
Counts: TypeAlias = Mapping[DeviceKind, int]
LostSlots: TypeAlias = tuple[tuple[Slot, int], ...]
Consumption: TypeAlias = tuple[tuple[int, Number], ...]
"""(counter, amount)."""
_MAX_CACHED = 1 << 18  # devices and counters in the cached counts of one layout: a few MiB


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PoolLayout:
    """The devices of a pool: the kind of each, and its consumption of the pool's counters (D,).

    ``counter_sets`` has the set of each counter (C,): devices that consume from one set may exclude each
    other. Counters are in the order of memory slices.
    """

    kinds: tuple[DeviceKind, ...]
    consumption: tuple[Consumption, ...]
    counter_sets: tuple[int, ...]
    _counts: dict[Hashable, Counts] = field(default_factory=dict)

    def interned(self) -> PoolLayout:
        """The shared object with these contents: many pools are alike."""
        return _LAYOUTS.setdefault((self.kinds, self.consumption, self.counter_sets), self)

    def free_counts(self, allocated: AbstractSet[int], remaining: tuple[Number, ...]) -> Counts:
        """The number of further devices of each kind if only that kind were requested.

        ``allocated`` are devices, ``remaining`` is the remaining amount of each counter (C,). The number is
        exact if the memory slices of a device are adjacent, as in MIG.
        """
        if (known := self._counts.get((allocated, remaining))) is None:
            if len(self._counts) * (len(self.kinds) + len(remaining)) > _MAX_CACHED:
                self._counts.clear()
            known = self._counts[allocated, remaining] = self._count(allocated, remaining)
        return known

    def _count(self, allocated: AbstractSet[int], remaining: tuple[Number, ...]) -> Counts:
        groups: defaultdict[tuple[DeviceKind, frozenset[int]], list[Consumption]] = defaultdict(list)
        for device, (kind, consumed) in enumerate(zip(self.kinds, self.consumption, strict=True)):
            if device not in allocated and all(remaining[counter] >= amount for counter, amount in consumed):
                sets = frozenset(self.counter_sets[counter] for counter, _ in consumed)
                groups[kind, sets].append(consumed)
        found: Counter[DeviceKind] = Counter()
        for (kind, _), devices in groups.items():
            found[kind] += _max_together(devices, remaining)
        return found


_LAYOUTS: WeakValueDictionary[tuple[object, ...], PoolLayout] = WeakValueDictionary()


def share_of_counters(
    consumed: Consumption, counter_sets: Sequence[int], counters: Sequence[Number]
) -> float:
    """A device's fraction of a GPU (0 to 1): its mean share of the ``counters`` (C,) of the sets from which
    it consumes, or 1 if it consumes none."""
    own_sets = {counter_sets[counter] for counter, _ in consumed}
    shared = [c for c, of_set in enumerate(counter_sets) if of_set in own_sets and counters[c]]
    share = sum(float(amount / counters[c]) for c, amount in consumed if counters[c])
    return min(round(share / len(shared), 6), 1.0) if shared else 1.0


def slots_of(counts: Iterable[Counts]) -> Slots:
    """The slots of a node whose pools have these ``free_counts``."""
    total: Counter[DeviceKind] = Counter()
    for of_pool in counts:
        total.update(of_pool)
    return {
        (kind, size): count // size
        for kind, count in total.items()
        for size in (GROUP_SIZES if kind.gpu_fraction >= 1 else (1,))
        if count >= size
    }


def lost_slots(before: Slots, after: Slots) -> LostSlots:
    """The slots in ``before`` that are not in ``after``, with their numbers."""
    return tuple((slot, n) for slot, count in before.items() if (n := count - after.get(slot, 0)))


def slot_prices(total: Slots) -> dict[Slot, float]:
    """The price of each slot in GPUs if the whole cluster has ``total``: the last slot of a kind costs the
    devices in it, one of n slots 1/n of that.

    That is the price of the inventory score (bench/README.md) with a = b = 1 and equal weights of all kinds:
    weights from the true mix gave the same result within noise (``bench/claims.py``), and weights learned
    from allocations of claims 0.4 points less (standard error 0.2): they protect groups of GPUs less, and
    count a claim for any device as a claim for the allocated one.
    """
    return {slot: slot[0].gpu_fraction * slot[1] / count for slot, count in total.items() if count > 0}


def _max_together(devices: Sequence[Consumption], remaining: Sequence[Number]) -> int:
    """Maximum number of these devices of one kind that fit together into ``remaining``."""
    counters = {counter for consumed in devices for counter, _ in consumed}
    amounts = [dict(consumed) for consumed in devices]
    slices = {c for c in counters if remaining[c] <= 1 and all(d.get(c, 0) in (0, 1) for d in amounts)}
    least = {c: min(device.get(c, 0) for device in amounts) for c in counters - slices}
    bound = min((int(remaining[c] / amount) for c, amount in least.items() if amount), default=len(devices))
    windows = [{c for c, amount in consumed if c in slices and amount} for consumed in devices]
    return min(_max_disjoint(windows), bound)


def _max_disjoint(windows: Sequence[set[int]]) -> int:
    """Maximum number of disjoint windows: greedily by the last slice, which is exact for intervals."""
    count, used = 0, set[int]()
    for window in sorted(windows, key=lambda consumed: max(consumed, default=-1)):
        if not window & used:
            count += 1
            used |= window
    return count
