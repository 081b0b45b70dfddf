"""Pools of devices, put together from slices, in the order in which kube-scheduler tries them.

As ``pools_incubating.go`` of k8s.io/dynamic-resource-allocation v0.36.3 (``structured/internal``) has it: a
pool counts with its newest generation, when all slices of that are there; slices go by name, pools by driver
and name, those with binding conditions last. A pool with a name or a counter set twice, or with a device that
consumes what the pool does not have, gives nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from extender.dra.allocator import Amounts
from extender.dra.cel import Meter, NotUnderstood, Selector, subject
from extender.dra.device_slots import Kind, Shape
from extender.k8s.resource_api.objects import Counters, Device, DeviceId, NodeScope, ResourceSlice
from packing.model.gpu_catalogue import parse_profile

_KEPT = 32
"""Selectors of classes, and as many of claims, of which it is remembered what they match: who writes claims
cannot make it forgotten what the classes match."""
_Known: TypeAlias = dict[bytes, bytearray]
"""By the key of a selector, for each device: 0 where it was not asked yet, 1 for no, 2 for yes."""


class PoolKey(NamedTuple):
    """Pools are named by their drivers."""

    driver: str
    pool: str


@dataclass(frozen=True, slots=True)
class Pool:
    """A whole pool: its devices in the order of the scheduler, and the nodes that each is for (D,).

    ``counters``, and what each device ``consumes`` of them, are by (pool, counter set, counter). Devices of
    which parts are given out have ``parts``: their capacities, by (pool, device's index, name).

    ``problem`` says why it gives nothing, to anybody (kube-scheduler sees it so, too). A pool of which
    something could not be read, ``unclear``, has one device that nobody understands.
    """

    key: PoolKey
    devices: tuple[Device, ...] = ()
    reach: tuple[NodeScope, ...] = ()
    counters: Amounts = field(default_factory=dict)
    consumes: tuple[Amounts, ...] = ()
    problem: str = ""
    unclear: str = ""
    index: Mapping[str, int] = field(default_factory=dict)  # of the devices by name
    parts: Mapping[int, Amounts] = field(default_factory=dict)
    shape: Shape | None = None  # of a pool that is one node's; others do not count for the room of nodes
    _of_classes: _Known = field(default_factory=dict)
    _of_claims: _Known = field(default_factory=dict)

    @property
    def order(self) -> tuple[bool, PoolKey]:
        """Where it stands among the pools that a node sees."""
        return any(device.later for device in self.devices), self.key

    def sizes(self) -> dict[Kind, float]:
        """The part of a GPU (0 to 1) that a device of each kind is: by its counters, or else, for an instance
        of static MIG, by its profile. Empty for a pool that is not one node's."""
        if self.shape is None:
            return {}
        sizes = self.shape.sizes(tuple(self.counters.values()))
        for device, kind, consumed in zip(self.devices, self.shape.kinds, self.consumes, strict=True):
            if not consumed and (profile := parse_profile(device.text("profile"))):
                sizes[kind] = min(profile.compute / 7, 1.0)
        return sizes

    def id_of(self, index: int) -> DeviceId:
        """The name of a device in the cluster."""
        return DeviceId(self.key.driver, self.key.pool, self.devices[index].name)

    def matches(self, index: int, selector: Selector, meter: Meter, *, of_class: bool) -> bool:
        """Whether a selector of a class or a claim matches a device. Raises ``Unclear``."""
        kept = self._of_classes if of_class else self._of_claims
        if (known := kept.get(selector.key)) is None:
            if len(kept) >= _KEPT:
                del kept[next(iter(kept))]
            known = kept[selector.key] = bytearray(len(self.devices))
        if not known[index]:
            known[index] = 1 + self._evaluate(self.devices[index], selector, meter)
        return known[index] == 2

    def _evaluate(self, device: Device, selector: Selector, meter: Meter) -> bool:
        if device.unreadable:
            raise NotUnderstood(f"{device.unreadable} of pool {self.key.pool}")
        names = subject(self.key.driver, device.attributes, device.capacity, shared=device.shared)
        return selector(names, meter)


def pool_of(key: PoolKey, slices: Iterable[ResourceSlice]) -> Pool | None:
    """The pool that these slices make, ``None`` while its newest generation is not complete."""
    slices = list(slices)
    newest = max((one.generation for one in slices), default=0)
    current = sorted((one for one in slices if one.generation == newest), key=lambda one: one.name)
    if not current or len(current) != current[0].slices:
        return None
    if unclear := next((one.problem for one in current if one.problem), ""):
        where = next(one.reach for one in current if one.problem)
        return Pool(key, (Device("", unreadable=unclear),), (where,), consumes=({},), unclear=unclear)
    devices = tuple(device for one in current for device in one.devices)
    counters = {
        (name, counter): amount
        for one in current
        for name, amounts in one.counters
        for counter, amount in amounts.items()
    }
    if problem := _problem(devices, counters, [name for one in current for name, _ in one.counters]):
        return Pool(key, problem=problem)
    reach_of = (
        (device.reach or NodeScope()) if one.per_device else one.reach
        for one in current
        for device in one.devices
    )
    reach = tuple(reach_of)
    own = devices and reach[0].node and all(one == reach[0] for one in reach)
    counters = dict(sorted(counters.items(), key=lambda item: _natural(*item[0])))
    return Pool(
        key,
        devices,
        reach,
        {(key, *counter): amount for counter, amount in counters.items()},
        tuple({(key, *counter): n for counter, n in one.consumes.items()} for one in devices),
        index={device.name: index for index, device in enumerate(devices)},
        parts={
            index: {(key, index, name): amount.number for name, amount in device.named.items()}
            for index, device in enumerate(devices)
            if device.shared
        },
        shape=_shape(key, devices, list(counters)) if own else None,
    )


def _natural(source: str, counter: str) -> tuple[str, int, str]:
    """memory-slice-10 comes after memory-slice-9."""
    return source, len(counter), counter


def _shape(key: PoolKey, devices: Sequence[Device], counters: Sequence[tuple[str, str]]) -> Shape:
    numbers = {counter: number for number, counter in enumerate(counters)}
    sources = {
        source: number for number, source in enumerate(dict.fromkeys(source for source, _ in counters))
    }
    return Shape.of(
        tuple(
            (key.driver, one.text("productName"), one.text("profile") or one.text("type")) for one in devices
        ),
        tuple(tuple(sorted((numbers[c], amount) for c, amount in one.consumes.items())) for one in devices),
        tuple(sources[source] for source, _ in counters),
    )


def _problem(devices: Sequence[Device], counters: Counters, sets: Sequence[str]) -> str:
    for what, names in (("device", [device.name for device in devices]), ("counter set", sets)):
        if twice := next((name for name, count in Counter(names).items() if count > 1), ""):
            return f"{what} {twice} comes twice"
    for device in devices:
        if missing := sorted(device.consumes.keys() - counters.keys()):
            source, counter = missing[0]
            return f"{device.name} consumes {counter} of counter set {source}, which the pool does not have"
    return ""
