"""Which part of which GPU each pod of a node has, and where free devices are: what a picture of a node needs.

Where a sharing system says which GPU a pod has, that is what is shown. Behind a device plugin that only
counts, nobody but the plugin knows; pods then get the devices in the order in which they came, GPU after GPU.
MIG instances lie where NVIDIA's geometry permits, the largest first: which GPU has which of them is known
from the layout of the MIG manager, and otherwise they are spread evenly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from extender.dialects.shared_gpus import MIG_PREFIX
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.model.gpu_catalogue import Geometry, find_model, parse_profile, placement_of
from packing.model.mig_instances import every_slice, window
from packing.model.node_spec import NodeSpec, Pool

FREE = -1
"""In place of the number of a pod: a device that nobody has."""
_ONE_BY_ONE = 64
"""Devices of a pool for each of its GPUs that are spread one by one; of more, each GPU gets an equal
number."""


@dataclass(frozen=True, slots=True)
class GpuPart:
    """``count`` equal devices, or one share, of a GPU that the pod with this number has (``FREE``: nobody),
    with compute and memory of all of them. ``resource`` is "" for a share. A MIG instance takes ``size``
    memory slices from ``start``; ``size`` is 0 where that is not known, or it is none."""

    gpu: int
    pod: int
    resource: str
    count: int
    compute_milli: int
    memory_mib: int
    start: int = 0
    size: int = 0


def gpu_parts(fleet: Fleet, name: str, held: Sequence[Allocation | None]) -> list[GpuPart]:
    """The parts of all GPUs of a node. ``held``: what each pod has there, in the order in which they came."""
    spec = fleet.spec_of(name)
    if spec is None:
        return []
    names = {number: name for name, number in fleet.names.resources.items()}
    shares: list[GpuPart] = []
    wanted: dict[str, list[tuple[int, int]]] = {}
    for pod, one in enumerate(held):
        if one is not None:
            shares += [_share(pod, share, dict(one.slices)) for share in one.shares]
            for number, count in one.devices:
                wanted.setdefault(names[number], []).append((pod, count))
    pools = tuple(pool for pool in spec.pools if not spec.is_divisible(pool))
    on_gpus = _devices_on_gpus(pools)
    counted = (_of_pool(pool, on_gpus[pool.resource], wanted.get(pool.resource, ())) for pool in pools)
    return shares + list(_laid_out(spec, list(chain.from_iterable(counted))))


def memory_slices(spec: NodeSpec, gpu: int) -> int:
    """How many memory slices the GPU has for MIG instances, 0 if it is not divided into any."""
    if spec.gpus[gpu].instances:
        return every_slice(spec.gpus[gpu].instances).bit_length()
    divided = any(pool.resource.startswith(MIG_PREFIX) and gpu in pool.gpus for pool in spec.pools)
    geometry = _geometry(spec) if divided else None
    return geometry.memory_slices if geometry else 0


def _share(pod: int, share: tuple[int, int, int], slices: Mapping[int, int]) -> GpuPart:
    gpu, milli, mib = share
    mask = slices.get(gpu, 0)
    start = (mask & -mask).bit_length() - 1 if mask else 0
    return GpuPart(gpu, pod, "", 1, milli, mib, start, mask.bit_length() - start if mask else 0)


def _of_pool(
    pool: Pool, on_gpus: Sequence[tuple[int, int]], wanted: Sequence[tuple[int, int]]
) -> Iterator[GpuPart]:
    """The devices of a pool, GPU after GPU: those that pods have, in their order, and then the free ones."""
    left = list(wanted)
    for gpu, devices in on_gpus:
        while devices and left:
            pod, count = left.pop(0)
            here = min(devices, count)
            yield _part(pool, gpu, pod, here)
            devices -= here
            if count > here:
                left.insert(0, (pod, count - here))
        if devices:
            yield _part(pool, gpu, FREE, devices)
    last = on_gpus[-1][0] if on_gpus else 0
    for pod, count in left:  # more than there is: the node is over-committed
        yield _part(pool, last, pod, count)


def _part(pool: Pool, gpu: int, pod: int, count: int) -> GpuPart:
    return GpuPart(gpu, pod, pool.resource, count, count * pool.compute_milli, count * pool.memory_mib)


@lru_cache(maxsize=1024)
def _devices_on_gpus(pools: tuple[Pool, ...]) -> Mapping[str, Sequence[tuple[int, int]]]:
    """By resource, how many devices are on which GPU. Cached because nodes of one kind have equal pools."""
    used: dict[int, int] = {}
    found: dict[str, Sequence[tuple[int, int]]] = {}
    for pool in sorted(pools, key=lambda pool: -pool.compute_milli):
        counts = dict.fromkeys(pool.gpus, 0)
        if pool.each:
            counts = dict(zip(pool.gpus, pool.each, strict=True))
        elif pool.total > _ONE_BY_ONE * len(pool.gpus):
            counts = {gpu: pool.total // len(pool.gpus) for gpu in pool.gpus}
            counts[pool.gpus[0]] += pool.total - sum(counts.values())
        else:
            for _ in range(pool.total):
                emptiest = min(pool.gpus, key=lambda gpu: (used.get(gpu, 0), gpu))
                counts[emptiest] += 1
                used[emptiest] = used.get(emptiest, 0) + pool.compute_milli
        found[pool.resource] = [(gpu, count) for gpu, count in sorted(counts.items()) if count]
    return found


def _laid_out(spec: NodeSpec, parts: Sequence[GpuPart]) -> Iterator[GpuPart]:
    """The parts, with those of MIG instances one by one, each with its memory slices."""
    geometry = _geometry(spec)
    mig = [part for part in parts if part.resource.startswith(MIG_PREFIX)] if geometry else []
    if geometry is None or not mig:
        yield from parts
        return
    by_gpu: dict[int, list[GpuPart]] = {}
    for part in mig:
        by_gpu.setdefault(part.gpu, []).append(part)
    yield from (part for part in parts if not part.resource.startswith(MIG_PREFIX))
    memory = {gpu: spec.gpus[gpu].memory_mib for gpu in by_gpu}
    for gpu, on_gpu in by_gpu.items():
        counts = tuple(sorted((part.resource, part.count) for part in on_gpu))
        places = {name: list(found) for name, found in _places(geometry, memory[gpu], counts)}
        for part in on_gpu:
            yield from _instances(part, places.get(part.resource, []))


def _instances(part: GpuPart, places: list[tuple[int, int]]) -> Iterator[GpuPart]:
    """The devices of a part, one by one where there are places for all of them, which are used up."""
    if len(places) < part.count:
        yield part
        return
    milli, mib = part.compute_milli // part.count, part.memory_mib // part.count
    for _ in range(part.count):
        yield GpuPart(part.gpu, part.pod, part.resource, 1, milli, mib, *places.pop(0))


@lru_cache(maxsize=1024)
def _places(
    geometry: Geometry, memory_mib: int, counts: tuple[tuple[str, int], ...]
) -> tuple[tuple[str, tuple[tuple[int, int], ...]], ...]:
    """(Start, size) of each instance by resource, () where they do not all find a place. Replicas of one
    instance are not told apart from instances, so they find none."""
    wanted: list[tuple[int, str, tuple[int, ...]]] = []
    for resource, count in counts:
        profile = parse_profile(resource.removeprefix(MIG_PREFIX))
        placement = placement_of(geometry, profile, memory_mib) if profile else None
        if placement is None or len(wanted) + count > geometry.memory_slices:
            return ()
        wanted += [(placement.size, resource, placement.starts)] * count
    wanted.sort(key=lambda one: (-one[0], one[1]))
    found = _search([(size, starts) for size, _, starts in wanted], 0)
    places: dict[str, list[tuple[int, int]]] = {}
    for (size, resource, _), start in zip(wanted, found or (), strict=False):
        places.setdefault(resource, []).append((start, size))
    return tuple((resource, tuple(sorted(of))) for resource, of in places.items())


def _search(wanted: Sequence[tuple[int, tuple[int, ...]]], taken: int) -> tuple[int, ...] | None:
    """Where each window of (size, possible starts) starts so that none overlap; None if that is impossible.
    At most eight windows of at least one slice fit, which bounds the search."""
    if not wanted:
        return ()
    (size, starts), *others = wanted
    for start in starts:
        if not window(start, size) & taken:
            rest = _search(others, taken | window(start, size))
            if rest is not None:
                return (start, *rest)
    return None


def _geometry(spec: NodeSpec) -> Geometry | None:
    model = find_model(spec.product)
    return model.geometry if model else None
