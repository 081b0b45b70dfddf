"""Bounds on any plan, wherever pods are moved: the minimum number of nodes needed, and the maximum number of
GPUs that remain whole and free. The engine's nodes and pods as classes, for integer programs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bench.packing.bounds import Classes, Groups, fewest_nodes, fewest_whole
from extender.cluster.other_resources import PODS
from extender.replay.repack import SnapshotReplay
from extender.trial.trial import Item, Trial
from packing.fleet.arrays import ALMOST_WHOLE, Doubles, Flags, Longs
from packing.fleet.feasibility import separation
from packing.fleet.stranded import whole_gpus
from packing.model.node_spec import resolve_on
from packing.model.request import WHOLE, Request

_MOST_TYPES = 64
"""Maximum number of kinds of pods in the bound, those with the most GPUs first: with fewer it remains a
bound."""
_MOST_CLASSES = 256
_ROUNDING = 1e-6  # GPUs: free fractions are single precision, and 1.39999998 has no room for two of 0.7
_NO_PART = 1e-4  # GPUs: HiGHS fails with limits as small as its tolerance, 1e-6
_COUNTED = 4  # CPU, memory, compute and memory of GPUs that are placed one by one; then counted devices


def most_whole_gpus_free(replay: SnapshotReplay, *, by_node: bool = False) -> int:
    """Upper bound on the GPUs that any placement of the movable pods leaves whole and free."""
    trial, today = replay.trial, replay.trial.savepoint()
    items = [*trial.movable.values()]
    for item in items:
        trial.leave(item)
    bound = most_whole_gpus(trial, items, replay.gpus, by_node=by_node)
    trial.undo_to(today)
    return bound + sum(hidden.whole for hidden in trial.only_for_claims.values())


def fewest_kept(trial: Trial) -> int | None:
    """Lower bound on the nodes with GPUs that any drain keeps; None if unknown."""
    now, items = trial.savepoint(), list(trial.movable.values())
    for item in items:
        trial.leave(item)
    # A pod may run where it would no longer fit. Without it the bound remains valid.
    bound = at_least(
        trial, [item for item in items if item.home < 0 or np.isfinite(trial.costs(item)[item.home])]
    )
    trial.undo_to(now)
    return None if bound is None else bound + len(trial.apart)


def at_least(trial: Trial, items: list[Item]) -> int | None:
    """Lower bound on the nodes with GPUs that hold these pods and those that stay; None if there are too many
    kinds of nodes. The items must have been removed from the fleet."""
    gpu_rows = set(trial.gpu_rows)
    if not items:
        return sum(bool(trial.blockers(row)) for row in gpu_rows)
    kinds = _Kinds.among(trial, items)

    def kind_of(row: int) -> object:
        spec = trial.fleet.specs[row]
        sharing = spec.sharing_resource if spec else ""
        return kinds.capacity(row).tobytes(), row in gpu_rows, bool(trial.blockers(row)), sharing

    classes = kinds.classes_of_rows(kind_of)
    if len(classes) > _MOST_CLASSES:
        return None
    firsts, nodes = [rows[0] for rows in classes], np.array([len(rows) for rows in classes])
    counts = np.array([row in gpu_rows for row in firsts], np.int64)
    staying = np.array([bool(trial.blockers(row)) for row in firsts], np.int64)
    kept = np.where(counts, nodes * staying, nodes)
    return fewest_nodes(Classes(nodes, kept, counts, *kinds.amounts(firsts)), kinds.demand)


def most_whole_gpus(trial: Trial, items: list[Item], gpus: Flags, *, by_node: bool = False) -> int:
    """Upper bound on the whole and free ones of these GPUs (G, N), wherever these pods are placed; they must
    have been removed from the fleet. Containers with several GPUs get separate ones, unless that is
    irrelevant. ``by_node``: do not pool the free resources of equal nodes, which makes the bound tight, and
    slow."""
    arrays = trial.fleet.arrays
    whole = whole_gpus(arrays) & gpus
    if not items:
        return int(whole.sum())
    kinds = _Kinds.among(trial, items)

    def kind_of(row: int) -> object:
        if by_node:
            return row
        spec, free = (
            trial.fleet.specs[row],
            (arrays.compute[:, row].tobytes(), arrays.memory[:, row].tobytes()),
        )
        model = spec and (spec.gpus, spec.pools, spec.sharing_resource)
        return model, kinds.capacity(row).tobytes(), *free

    classes = kinds.classes_of_rows(kind_of)
    firsts, nodes = [rows[0] for rows in classes], np.array([len(rows) for rows in classes])
    capacity, sizes, most = kinds.amounts(firsts)
    certain = (arrays.free_devices - arrays.surplus_devices)[:, firsts].T.clip(0)  # guaranteed separate GPUs
    asked = np.broadcast_to([kinds.separate(item) for item in kinds.items], (*most.shape, certain.shape[1]))
    parts = arrays.free_parts()
    is_part = (arrays.divisible > 0) & ~whole & (parts > _NO_PART)
    in_parts = np.where(is_part, parts + _ROUNDING, 0)
    groups = Groups(
        whole=nodes * whole.sum(axis=0)[firsts],
        beside=nodes * in_parts.sum(axis=0)[firsts],
        capacity=nodes[:, None] * np.hstack([capacity, certain]),
        sizes=np.concatenate([sizes, asked], axis=2),
        takes=np.array([[kinds.whole_taken(row, item) for item in kinds.items] for row in firsts]),
        most=nodes[:, None] * most,
    )
    return int(whole.sum()) - fewest_whole(groups, kinds.demand)


@dataclass(frozen=True, slots=True)
class _Kinds:
    """Pods with equal requests and allowed nodes, as one of them; ``demand`` (T,): their number. ``fits``
    (T, N): where they may be placed."""

    trial: Trial
    items: list[Item]
    demand: Longs
    fits: Flags

    @classmethod
    def among(cls, trial: Trial, items: list[Item]) -> _Kinds:
        groups: Counter[tuple[Request, bytes]] = Counter()
        first: dict[tuple[Request, bytes], Item] = {}
        for item in items:
            key = item.request, (item.rows & ~trial.weaker(item)).tobytes()
            groups[key] += 1
            first.setdefault(key, item)
        ranked = sorted(groups, key=lambda key: -groups[key] * (1000 * key[0].gpus + 1))[:_MOST_TYPES]
        kinds, demand = [first[key] for key in ranked], np.array([groups[key] for key in ranked], np.int64)
        return cls(trial, kinds, demand, np.array([np.isfinite(trial.costs(kind)) for kind in kinds]))

    def classes_of_rows(self, kind_of: Callable[[int], object]) -> list[list[int]]:
        """The rows of equal nodes that accept pods, where the same kinds fit: those with GPUs, and those
        where any kind fits."""
        classes: defaultdict[object, list[int]] = defaultdict(list)
        for row in np.flatnonzero(self.trial.open).tolist():
            spec = self.trial.fleet.specs[row]
            if (spec and spec.gpus) or self.fits[:, row].any():
                classes[kind_of(row), self.fits[:, row].tobytes()].append(row)
        return list(classes.values())

    def amounts(self, rows: list[int]) -> tuple[Doubles, Doubles, Longs]:
        """Free amounts of these nodes (C, R), amounts that a pod of each kind takes there (C, T, R), and the
        number of pods of a single kind that fit there (C, T)."""
        capacity = np.array([self.capacity(row) for row in rows])
        sizes = np.array([[self._size(row, item) for item in self.items] for row in rows])
        most = np.array([[self._most(row, item) for item in self.items] for row in rows], np.int64)
        return capacity, sizes, most * self.fits[:, rows].T

    def capacity(self, row: int) -> Doubles:
        """(R,) free amounts of a node."""
        arrays = self.trial.fleet.arrays
        placed = arrays.divisible[:, row] > 0
        free = [
            float(arrays.free_cpu[row]),
            float(arrays.free_memory[row]) / (1 << 20),
            float(arrays.compute[placed, row].sum()),
            float(arrays.memory[placed, row].sum()),
        ]
        counted = np.where(arrays.divisible_pool[:, row] > 0, 0, arrays.free_devices[:, row])
        return np.concatenate([free, counted]).clip(0).astype(np.float64)

    def separate(self, item: Item) -> Doubles:
        """(R,) the devices of a pod that must be separate GPUs."""
        fleet = self.trial.fleet
        asked = np.zeros(len(fleet.arrays.free_devices))
        if separation(fleet, item.request) != "ignore":
            for name, count in item.request.devices:
                if count > 1 and (number := fleet.names.resources.get(name)) is not None:
                    asked[number] += count
        return asked

    def whole_taken(self, row: int, item: Item) -> float:
        """Minimum number of whole GPUs of a node that a pod takes, counting fractions."""
        fleet, spec = self.trial.fleet, self.trial.fleet.specs[row]
        request = self._on(row, item)
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

    def _on(self, row: int, item: Item) -> Request:
        """The request of the pod as resolved on this node."""
        spec = self.trial.fleet.specs[row]
        return resolve_on(spec, item.request) if spec else item.request

    def _size(self, row: int, item: Item) -> Doubles:
        """(R,) amounts that a pod takes of a node."""
        fleet, request = self.trial.fleet, self._on(row, item)
        size = np.zeros(_COUNTED + len(fleet.arrays.free_devices))
        size[0], size[1] = item.request.cpu_milli, item.request.memory_bytes / (1 << 20)
        if (part := request.shares) is not None:
            sizes = fleet.arrays.memory_capacity[:, row]
            memory = int(sizes[sizes > 0].min(initial=1 << 24))
            size[2], size[3] = part.count * part.compute_milli, part.count * part.mib_of(memory)
        for name, count in request.devices:
            if (number := fleet.names.resources.get(name)) is not None:
                size[_COUNTED + number] += count
        return size

    def _most(self, row: int, item: Item) -> int:
        """Maximum number of such pods alone that fit on a node."""
        capacity, size = self.capacity(row), self._size(row, item)
        asked = size > 0
        left = float(self.trial.others.left[PODS][row])
        most = int((capacity[asked] / size[asked]).min(initial=left) + 1e-9)
        if (part := self._on(row, item).shares) is None:
            return most
        arrays, per_gpu = self.trial.fleet.arrays, 0
        for gpu in np.flatnonzero(arrays.divisible[:, row]).tolist():
            mib = part.mib_of(int(arrays.memory_capacity[gpu, row]))
            room = [float(arrays.share_slots[gpu, row])]
            room += [float(arrays.compute[gpu, row]) / part.compute_milli] if part.compute_milli else []
            room += [float(arrays.memory[gpu, row]) / mib] if mib else []
            per_gpu += max(0, int(min(room) + 1e-6))
        return min(most, per_gpu // part.count)
