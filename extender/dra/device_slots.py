"""The number of devices of each kind that a node can still allocate, and the cost of losing some of them.

Partitions of a GPU share counters: unique memory slices, and amounts such as multiprocessors. A node's slots
of a kind are the devices of that kind that it could still allocate if no other kind were requested.
The price of a slot is that of the inventory score (bench/README.md) with a = b = 1 and equal weights of all
kinds: weights from the true mix gave the same result within noise (``bench/claims.py``), and weights learned
from allocations of claims 0.4 points less (standard error 0.2): they protect groups of GPUs less, and count a
claim for any device as a claim for the allocated one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias
from weakref import WeakValueDictionary

from extender.k8s.resource_slices import Number

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
    devices in it, one of n slots 1/n of that."""
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
