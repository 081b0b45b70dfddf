"""Free memory slices of the GPUs in MIG mode, and the profiles that can be created from them.

A free slice is *stranded* for a profile if it cannot be part of an instance of it, although it could be on an
empty GPU: on a GPU (behind a device plugin: on a node)

    stranded = min(free slices, slices that the profile can use when empty) - slices that it can use now.

Behind a device plugin a profile can use the existing free instances; more would need a new layout. Where
instances are created on demand it can use all free windows that do not overlap. Behind a device plugin, the
slices of a GPU whose geometry is not in the catalog are unknown and not counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from packing.fleet.fleet import Fleet
from packing.model.gpu_catalog import Geometry, named_model, parse_profile, placement_of
from packing.model.mig_instances import Instances, every_slice, window
from packing.model.node_spec import NodeSpec, Pool

MOST_PROFILES = 32
"""Maximum number of distinct profiles per GPU model; NVIDIA's GPUs have at most 20."""
Windows = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProfileSlices:
    """For one profile on GPUs of one model: ``instances`` that can be allocated now, and stranded slices."""

    instances: int
    stranded: int


@dataclass(frozen=True, slots=True)
class _Part:
    """The GPUs of a node behind a device plugin, or one GPU that is divided on demand: ``free`` slices, and
    the number of instances available now by profile."""

    gpus: int
    free: int
    instances: tuple[tuple[str, int], ...]


class MigStock:
    """The sums over a fleet. Each node is recomputed only after a change, so a caller can spread the work
    with ``update``; between its calls the figures are those of the last one."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._windows: defaultdict[str, dict[str, Windows]] = defaultdict(dict)  # by model and profile
        self._seen: npt.NDArray[np.int64] = np.zeros(0, np.int64)  # (N,) generation, -1 if not on offer
        self._rows: dict[int, tuple[str, tuple[_Part, ...]]] = {}
        self._free: Counter[str] = Counter()
        self._instances: Counter[tuple[str, str]] = Counter()
        self._stranded: Counter[tuple[str, str]] = Counter()

    def update(self, offered: npt.NDArray[np.bool_], most: int) -> bool:
        """Recompute at most ``most`` changed nodes; only nodes in ``offered`` (N,) count. Returns True if
        none remains."""
        now = np.where(offered, self._fleet.arrays.generation, -1)
        if self._seen.size < now.size:
            self._seen = np.pad(self._seen, (0, now.size - self._seen.size), constant_values=-1)
        changed = np.flatnonzero(self._seen != now)
        for row in changed[:most].tolist():
            self._count(row, -1)
            self._rows.pop(row, None)
            if offered[row] and (found := self._read(row)):
                self._rows[row] = found
                self._count(row, +1)
            self._seen[row] = now[row]
        return changed.size <= most

    def free_slices(self) -> dict[str, int]:
        """Free memory slices of GPUs in MIG mode, by model ("" for unknown ones)."""
        return {model: self._free[model] for model in self._windows}

    def profiles(self) -> dict[tuple[str, str], ProfileSlices]:
        """By model and profile, for all profiles that nodes of the model have had."""
        keys = ((model, profile) for model, profiles in self._windows.items() for profile in profiles)
        return {key: ProfileSlices(self._instances[key], self._stranded[key]) for key in keys}

    def instances_on(self, row: int) -> dict[str, int]:
        """Number of instances that can be allocated now on the node of a row, by profile."""
        found: Counter[str] = Counter()
        for part in self._rows.get(row, ("", ()))[1]:
            found.update(dict(part.instances))
        return dict(found)

    def _read(self, row: int) -> tuple[str, tuple[_Part, ...]] | None:
        spec = self._fleet.specs[row]
        if spec is None or not (any(pool.profile for pool in spec.pools) or _makes_instances(spec)):
            return None
        model = spec.model or ""
        for profile, windows in _profiles_of(spec):
            known = self._windows[model]
            if profile not in known and len(known) < MOST_PROFILES and parse_profile(profile):
                self._count_all(-1)
                known[profile] = windows
                self._count_all(+1)
        return model, tuple(_parts(self._fleet, row, spec))

    def _count_all(self, sign: int) -> None:
        for row in self._rows:
            self._count(row, sign)

    def _count(self, row: int, sign: int) -> None:
        """Add (sign 1) or subtract (-1) the slices and instances of a row."""
        model, parts = self._rows.get(row, ("", ()))
        for part in parts:
            self._free[model] += sign * part.free
            instances = dict(part.instances)
            for profile, windows in self._windows.get(model, {}).items():
                size, now = windows[0].bit_count(), instances.get(profile, 0)
                most = part.gpus * size * disjoint(windows, 0)
                self._instances[model, profile] += sign * now
                self._stranded[model, profile] += sign * max(0, min(part.free, most) - size * now)


def _makes_instances(spec: NodeSpec) -> bool:
    return any(gpu.instances for gpu in spec.gpus)


def _profiles_of(spec: NodeSpec) -> Iterator[tuple[str, Windows]]:
    """The profiles of a node, and their possible windows on an empty GPU."""
    for pool in spec.pools:
        if windows := _windows_of(spec, pool):
            yield pool.profile, windows
    for gpu in spec.gpus:
        for instance in gpu.instances:
            if instance.windows:
                yield instance.profile, instance.windows


def _windows_of(spec: NodeSpec, pool: Pool) -> Windows:
    model = named_model(spec.model)
    if not pool.profile or model is None or model.geometry is None:
        return ()
    return _catalog_windows(model.geometry, pool.profile, model.memory_mib)


@lru_cache(maxsize=1024)
def _catalog_windows(geometry: Geometry, name: str, memory_mib: int) -> Windows:
    profile = parse_profile(name)
    placement = placement_of(geometry, profile, memory_mib) if profile else None
    return tuple(window(start, placement.size) for start in placement.starts) if placement else ()


def _parts(fleet: Fleet, row: int, spec: NodeSpec) -> Iterator[_Part]:
    counted = [(pool, _windows_of(spec, pool)) for pool in spec.pools if pool.profile]
    if counted:
        yield _counted_part(fleet, row, spec, counted)
    taken: dict[int, int] = {}
    if _makes_instances(spec):
        for gpu, place, _ in fleet.usage[row].slice_holders():
            taken[gpu] = taken.get(gpu, 0) | 1 << place
    for index, gpu_spec in enumerate(spec.gpus):
        if gpu_spec.instances and gpu_spec.divisible:
            full = fleet.arrays.divisible[index, row] == 0
            mask = every_slice(gpu_spec.instances) if full else taken.get(index, 0)
            yield _on_demand_part(gpu_spec.instances, mask)


def _counted_part(fleet: Fleet, row: int, spec: NodeSpec, counted: Iterable[tuple[Pool, Windows]]) -> _Part:
    """All GPUs of a node with MIG instances behind a device plugin."""
    model = named_model(spec.model)
    slices = model.geometry.memory_slices if model and model.geometry else 0
    gpus: set[int] = set()
    taken, instances = 0, []
    for pool, windows in counted:
        gpus.update(pool.gpus)
        free = int(fleet.arrays.free_devices[fleet.names.resources[pool.resource], row])
        taken += (pool.total - free) * (windows[0].bit_count() if windows else slices)
        instances.append((pool.profile, max(free, 0)))
    return _Part(len(gpus), max(0, len(gpus) * slices - taken), tuple(instances))


@lru_cache(maxsize=4096)
def _on_demand_part(instances: Instances, taken: int) -> _Part:
    found = (
        (instance.profile, disjoint(instance.windows, taken)) for instance in instances if instance.windows
    )
    free = every_slice(instances) & ~taken
    return _Part(1, free.bit_count(), tuple(found))


@lru_cache(maxsize=4096)
def disjoint(windows: Windows, taken: int) -> int:
    """Maximum number of these windows, each a run of slices, that overlap neither each other nor ``taken``:
    greedily the window that ends first (interval scheduling)."""
    count = 0
    for mask in sorted(windows, key=int.bit_length):
        if not mask & taken:
            count, taken = count + 1, taken | mask
    return count
