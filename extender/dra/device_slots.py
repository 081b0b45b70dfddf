"""What devices that exclude each other still have room for, and what it costs to take some of it away.

A partition of a GPU takes part of counters that it shares with all others: memory slices, each there once,
and amounts such as multiprocessors. How many more devices of one kind a node can give is its slots of that
kind, and the price of a slot is that of the inventory score (docs/packing.md) with a = b = 1 and all kinds
equally wanted: with the true mix for weights ``bench/claims.py`` gave the same but for noise.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TypeAlias
from weakref import WeakValueDictionary

from extender.k8s.resource_api.objects import Number

GROUPS = (1, 2, 4, 8)
"""Whole GPUs are asked for in such numbers on one node; parts of GPUs one by one."""

Kind: TypeAlias = Hashable
Slot: TypeAlias = tuple[Kind, int]
"""(kind, how many of it at once)."""
Room: TypeAlias = Mapping[Slot, int]
Lost: TypeAlias = tuple[tuple[Slot, int], ...]
Consumption: TypeAlias = tuple[tuple[int, Number], ...]
"""(counter, amount)."""


_MOST_KEPT = 1 << 18
"""Devices, counters and kinds in the counts that are kept of one shape: some MiB."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Shape:
    """Devices of a pool: the kind of each, and what each consumes of the pool's counters (D,).

    ``sets`` says which counters belong together (C,): devices that consume of one set may exclude each other.
    Counters stand in the order in which slices of memory lie. Equal shapes are one object.
    """

    kinds: tuple[Kind, ...]
    consumes: tuple[Consumption, ...]
    sets: tuple[int, ...]
    _counts: dict[tuple[AbstractSet[int], tuple[Number, ...]], Mapping[Kind, int]] = field(
        default_factory=dict
    )

    @classmethod
    def of(cls, kinds: tuple[Kind, ...], consumes: tuple[Consumption, ...], sets: tuple[int, ...]) -> Shape:
        """The one object of this shape."""
        key = kinds, consumes, sets
        if (known := _SHAPES.get(key)) is None:
            known = _SHAPES[key] = cls(*key)
        return known

    def sizes(self, total: Sequence[Number]) -> dict[Kind, float]:
        """The part of a GPU (0 to 1) that a device of each kind is, of counters that are ``total`` (C,): its
        mean share of them, all of it where it consumes none."""
        sizes: dict[Kind, float] = {}
        for kind, consumed in zip(self.kinds, self.consumes, strict=True):
            own = {self.sets[counter] for counter, _ in consumed}
            shared = [c for c, of in enumerate(self.sets) if of in own and total[c]]
            share = sum(float(amount / total[counter]) for counter, amount in consumed if total[counter])
            sizes[kind] = min(round(share / len(shared), 6), 1.0) if shared else 1.0
        return sizes


_SHAPES: WeakValueDictionary[tuple[object, ...], Shape] = WeakValueDictionary()


def counts(shape: Shape, taken: AbstractSet[int], left: tuple[Number, ...]) -> Mapping[Kind, int]:
    """How many more devices of each kind there could be if only that kind were asked for.

    ``taken`` are devices that are given out, ``left`` what is left of each counter (C,). Where the slices
    that a device takes lie side by side, as in MIG, the number is exact.
    """
    kept = shape._counts
    if (known := kept.get((taken, left))) is None:
        if len(kept) * (len(shape.kinds) + len(left)) > _MOST_KEPT:
            kept.clear()
        known = kept[taken, left] = _counted(shape, taken, left)
    return known


def _counted(shape: Shape, taken: AbstractSet[int], left: tuple[Number, ...]) -> Mapping[Kind, int]:
    groups: defaultdict[tuple[Kind, frozenset[int]], list[Consumption]] = defaultdict(list)
    for device, (kind, consumed) in enumerate(zip(shape.kinds, shape.consumes, strict=True)):
        if device not in taken and all(left[counter] >= amount for counter, amount in consumed):
            groups[kind, frozenset(shape.sets[counter] for counter, _ in consumed)].append(consumed)
    found: Tally[Kind] = Tally()
    for (kind, _), devices in groups.items():
        found[kind] += _most(devices, left)
    return found


def room(found: Iterable[Mapping[Kind, int]], sizes: Mapping[Kind, float]) -> Room:
    """The slots of a node that has these ``counts`` in its pools."""
    total: Tally[Kind] = Tally()
    for one in found:
        total.update(one)
    return {
        (kind, times): count // times
        for kind, count in total.items()
        for times in (GROUPS if sizes[kind] >= 1 else (1,))
        if count >= times
    }


def lost(before: Room, after: Room) -> Lost:
    """The slots that are in ``before`` and no more in ``after``, and how many of each."""
    return tuple((slot, n) for slot, count in before.items() if (n := count - after.get(slot, 0)))


def prices(total: Room, sizes: Mapping[Kind, float]) -> dict[Slot, float]:
    """What a slot is worth, in GPUs, where the whole cluster has ``total``; ``sizes`` is the part of a GPU by
    kind. The last slot of a kind is worth the devices in it, one of many little."""
    return {slot: sizes[slot[0]] * slot[1] / count for slot, count in total.items() if count > 0}


def _most(devices: Sequence[Consumption], left: Sequence[Number]) -> int:
    """Most of these devices of one kind that fit at once into what is left."""
    counters = {counter for consumed in devices for counter, _ in consumed}
    amounts = [dict(consumed) for consumed in devices]
    places = {c for c in counters if left[c] <= 1 and all(one.get(c, 0) in (0, 1) for one in amounts)}
    least = {c: min(one.get(c, 0) for one in amounts) for c in counters - places}
    bound = min((int(left[c] / amount) for c, amount in least.items() if amount), default=len(devices))
    windows = [{c for c, amount in consumed if c in places and amount} for consumed in devices]
    return min(_disjoint(windows), bound)


def _disjoint(windows: Sequence[set[int]]) -> int:
    """Most windows of which no two meet: always the one that ends first, which is exact for intervals."""
    count, used = 0, set[int]()
    for window in sorted(windows, key=lambda one: max(one, default=-1)):
        if not window & used:
            count += 1
            used |= window
    return count
