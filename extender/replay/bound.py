"""What no plan can beat, whatever moves where: the nodes that the work needs at least, and the GPUs that stay
whole and free at most. The engine's nodes and pods as classes, for integer programs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from extender.replay.work import Flags, Item, Work, blockers
from packing.fleet.arrays import ALMOST_WHOLE, Doubles, Longs
from packing.fleet.feasibility import separation
from packing.fleet.stranded import whole_gpus
from packing.model.node_spec import resolve_on
from packing.model.request import WHOLE
from packing.plan.fewest_nodes import Classes, fewest_nodes
from packing.plan.fewest_whole import Groups, fewest_whole

_MOST_TYPES = 64
"""Kinds of pods that the bound looks at, those with the most GPUs first: with fewer it is still a bound."""
_MOST_CLASSES = 256
_ROUNDING = 1e-6  # GPUs: free parts are of single precision, and 1.39999998 has no room for two of 0.7
_COUNTED = 4  # CPU, memory, compute and memory of GPUs that are placed one by one; then counted devices


@dataclass(frozen=True, slots=True)
class _Kind:
    """Pods that ask for the same on the same nodes."""

    item: Item
    count: int


def at_least(work: Work, items: list[Item]) -> int | None:
    """At least so many nodes with GPUs hold these pods and those that stay; None where there are too many
    kinds of nodes to say. The items must be off the fleet."""
    kinds = _kinds(work, items)
    gpu_rows = set(work.gpu_rows)
    if not kinds:
        return sum(bool(blockers(work, row)) for row in gpu_rows)
    fits = np.array([work.fits(kind.item) for kind in kinds])
    classes: defaultdict[object, list[int]] = defaultdict(list)
    for row in np.flatnonzero(work.open).tolist():
        if row in gpu_rows or fits[:, row].any():
            key = _capacity(work, row).tobytes(), fits[:, row].tobytes(), row in gpu_rows
            classes[(*key, bool(blockers(work, row)), _resolution(work, row, kinds))].append(row)
    if len(classes) > _MOST_CLASSES:
        return None
    firsts, nodes = _firsts(classes)
    counts = np.array([row in gpu_rows for row in firsts], np.int64)
    staying = np.array([bool(blockers(work, row)) for row in firsts], np.int64)
    kept = np.where(counts, nodes * staying, nodes)
    capacity, sizes, most = _amounts(work, firsts, kinds, fits)
    return fewest_nodes(Classes(nodes, kept, counts, capacity, sizes, most), _demand(kinds))


def most_whole_gpus(work: Work, items: list[Item], gpus: Flags, *, by_node: bool = False) -> int:
    """At most so many of these GPUs (G, N) are whole and free, wherever these pods go; they must be off the
    fleet. Containers that ask for several GPUs get separate ones, unless that does not count. ``by_node``:
    what is free on a node does not count together with that of nodes like it, which makes the bound tight,
    and slow."""
    kinds = _kinds(work, items)
    whole = whole_gpus(work.fleet.arrays) & gpus
    if not kinds:
        return int(whole.sum())
    fits = np.array([work.fits(kind.item) for kind in kinds])
    free, arrays = work.fleet.arrays.free_parts(), work.fleet.arrays
    classes: defaultdict[object, list[int]] = defaultdict(list)
    for row in np.flatnonzero(work.open).tolist():
        spec = work.fleet.specs[row]
        state: list[npt.NDArray[np.generic]] = [
            _capacity(work, row),
            arrays.compute[:, row],
            arrays.memory[:, row],
            fits[:, row],
        ]
        kind = spec and (spec.gpus, spec.pools, spec.sharing_resource)
        classes[row if by_node else (kind, *(part.tobytes() for part in state))].append(row)
    firsts, nodes = _firsts(classes)
    capacity, sizes, most = _amounts(work, firsts, kinds, fits)
    idle = np.array([_idle(work, row) for row in firsts])
    separate = np.broadcast_to([_separate(work, kind.item) for kind in kinds], (*most.shape, idle.shape[1]))
    in_parts = (arrays.divisible > 0) & ~whole
    groups = Groups(
        whole=nodes * whole.sum(axis=0)[firsts],
        beside=nodes * np.where(in_parts, free + _ROUNDING, 0).clip(min=0).sum(axis=0)[firsts],
        capacity=nodes[:, None] * np.hstack([capacity, idle]),
        sizes=np.concatenate([sizes, separate], axis=2),
        takes=np.array([[_whole_taken(work, row, kind.item) for kind in kinds] for row in firsts]),
        most=nodes[:, None] * most,
    )
    return int(whole.sum()) - fewest_whole(groups, _demand(kinds))


def _firsts(classes: Mapping[object, list[int]]) -> tuple[list[int], Longs]:
    """A row of each class, and how many it has."""
    return [rows[0] for rows in classes.values()], np.array([len(rows) for rows in classes.values()])


def _demand(kinds: list[_Kind]) -> Longs:
    return np.array([kind.count for kind in kinds], np.int64)


def _amounts(
    work: Work, rows: list[int], kinds: list[_Kind], fits: npt.NDArray[np.bool_]
) -> tuple[Doubles, Doubles, Longs]:
    """What is free on these nodes (C, R), what a pod of each kind takes there (C, T, R), and how many such
    pods alone fit there (C, T). ``fits``: where the kinds may go, (T, N)."""
    capacity = np.array([_capacity(work, row) for row in rows]).reshape(len(rows), -1)
    sizes = np.array([[_size(work, row, kind.item) for kind in kinds] for row in rows])
    most = [[_most(work, row, k.item) * bool(fits[t, row]) for t, k in enumerate(kinds)] for row in rows]
    shape = len(rows), len(kinds)
    return capacity, sizes.reshape(*shape, -1), np.array(most, np.int64).reshape(shape)


def _idle(work: Work, row: int) -> Doubles:
    """(R,) the devices of a node that are certain to be separate GPUs."""
    arrays = work.fleet.arrays
    return (arrays.free_devices[:, row] - arrays.surplus_devices[:, row]).clip(0).astype(np.float64)


def _separate(work: Work, item: Item) -> Doubles:
    """(R,) the devices of a pod that are to be separate GPUs."""
    asked = np.zeros(len(work.fleet.arrays.free_devices))
    if separation(work.fleet, item.request) != "ignore":
        for name, count in item.request.devices:
            if count > 1 and (number := work.fleet.names.resources.get(name)) is not None:
                asked[number] += count
    return asked


def _whole_taken(work: Work, row: int, item: Item) -> float:
    """How many whole GPUs of a node a pod takes at least, a part of a GPU as its part."""
    fleet, spec = work.fleet, work.fleet.specs[row]
    request = resolve_on(spec, item.request) if spec else item.request
    taken = 0.0
    for name, count in request.devices:
        number = fleet.names.resources.get(name)
        if number is not None and fleet.arrays.device_gpu[number, row] > ALMOST_WHOLE:
            taken += count
    if (part := request.shares) is not None and spec and spec.gpus:
        memory = max(gpu.memory_mib for gpu in spec.gpus)
        milli = WHOLE * part.mib_of(memory) / memory if memory else part.memory_milli
        taken += part.count * (part.compute_milli + milli) / 2 / WHOLE
    return taken


def _kinds(work: Work, items: list[Item]) -> list[_Kind]:
    groups: Counter[tuple[object, bytes]] = Counter()
    first: dict[tuple[object, bytes], Item] = {}
    for item in items:
        key = item.request, (item.rows & ~work.weaker(item)).tobytes()
        groups[key] += 1
        first.setdefault(key, item)
    ranked = sorted(groups, key=lambda key: -groups[key] * (1000 * first[key].request.gpus + 1))
    return [_Kind(first[key], groups[key]) for key in ranked[:_MOST_TYPES]]


def _resolution(work: Work, row: int, kinds: list[_Kind]) -> str:
    """What distinguishes nodes on which the same request takes different things."""
    spec = work.fleet.specs[row]
    return spec.sharing_resource if spec else ""


def _capacity(work: Work, row: int) -> Doubles:
    """(R,) what is free on a node."""
    arrays = work.fleet.arrays
    placed = arrays.divisible[:, row] > 0
    free = [
        float(arrays.free_cpu[row]),
        float(arrays.free_memory[row]) / (1 << 20),
        float(arrays.compute[placed, row].sum()),
        float(arrays.memory[placed, row].sum()),
    ]
    counted = np.where(arrays.divisible_pool[:, row] > 0, 0, arrays.free_devices[:, row])
    return np.concatenate([free, counted]).clip(0).astype(np.float64)


def _size(work: Work, row: int, item: Item) -> Doubles:
    """(R,) what a pod takes of a node."""
    fleet, spec = work.fleet, work.fleet.specs[row]
    size = np.zeros(_COUNTED + len(fleet.arrays.free_devices))
    size[0], size[1] = item.request.cpu_milli, item.request.memory_bytes / (1 << 20)
    request = resolve_on(spec, item.request) if spec else item.request
    if (part := request.shares) is not None:
        sizes = fleet.arrays.memory_capacity[:, row]
        memory = int(sizes[sizes > 0].min(initial=1 << 24))
        size[2], size[3] = part.count * part.compute_milli, part.count * part.mib_of(memory)
    for name, count in request.devices:
        if (number := fleet.names.resources.get(name)) is not None:
            size[_COUNTED + number] += count
    return size


def _most(work: Work, row: int, item: Item) -> int:
    """How many such pods alone fit on a node, at most."""
    capacity, size = _capacity(work, row), _size(work, row, item)
    asked = size > 0
    most = int((capacity[asked] / size[asked]).min(initial=float(work.other_room.pods_left(row))) + 1e-9)
    spec = work.fleet.specs[row]
    part = resolve_on(spec, item.request).shares if spec else None
    if part is None:
        return most
    arrays, per_gpu = work.fleet.arrays, 0
    for gpu in np.flatnonzero(arrays.divisible[:, row]).tolist():
        mib = part.mib_of(int(arrays.memory_capacity[gpu, row]))
        room = [float(arrays.share_slots[gpu, row])]
        room += [float(arrays.compute[gpu, row]) / part.compute_milli] if part.compute_milli else []
        room += [float(arrays.memory[gpu, row]) / mib] if mib else []
        per_gpu += max(0, int(min(room) + 1e-6))
    return min(most, per_gpu // part.count)
