"""A node as one row of the page at ``/``: short, because there are thousands of them.

What it says is what ``view_node`` says, with the parts of GPUs (``gpu_parts``) instead of names of devices.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from typing import NamedTuple

from extender.cluster.census import NodeCount
from extender.cluster.permitted_rows import ZONE
from extender.cluster.state import State
from extender.cluster.unoffered import Unoffered
from extender.dialects.shared_gpus import MIG_PREFIX
from extender.explain.node import DeviceView, HolderView, view_node
from extender.untrusted.limits import GPUS_PER_NODE, KEY, LISTED_NAMES, PAGE_LABELS, PAGE_PARTS, shorten
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.model.gpu_catalog import Geometry, find_model, parse_profile, placement_of
from packing.model.mig_instances import every_slice, window
from packing.model.node_spec import NodeSpec, Pool
from packing.model.request import WHOLE

_OF_MACHINES = re.compile(
    r"^(nvidia\.com|[^/]*feature\.node\.kubernetes\.io|beta\.kubernetes\.io)/"
    r"|^kubernetes\.io/hostname$|(-hash|controller-uid|pod-name|pod-index|completion-index)$"
)
FREE = -1
"""Instead of the number of a pod: a free device."""
_ONE_BY_ONE = 64
"""Devices of a pool for each of its GPUs that are spread one by one; of more, each GPU gets an equal
number."""


class GpuCell(NamedTuple):
    """``name``: of a DRA device; "" for a GPU, which its index names. ``slices``: memory slices, where it is
    in MIG mode. ``takes``: whether it takes pods at all."""

    name: str
    memory_mib: int
    slices: int
    takes: bool


_TAKES_NONE = GpuCell("", 0, 0, False)


class PodCell(NamedTuple):
    """A pod with a share of a GPU; ``exact``: its GPU is known. ``labels``: ``labels_of``."""

    pod: str
    queue: str
    exact: bool
    assumed: bool
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FleetRow:
    """``count``: what the census says of the node, null for a node without GPUs. ``closed``: why it takes no
    pods, "" if it does. ``cpu_milli`` and ``memory_mib`` are free and total. ``pods_beside`` counts
    the pods without a GPU. ``layout``: what says which GPU has which MIG instances, "" where they are spread
    evenly; ``parts``: each a ``GpuPart`` whose ``pod`` and ``resource`` are positions in the row's lists, -1
    for none; ``more``: parts that are left out because there are too many. ``reserved``: for which large job,
    as ``stowage top`` says it, "" for none."""

    name: str
    model: str
    spot: bool
    count: NodeCount | None
    closed: str
    problem: str
    cpu_milli: tuple[int, int]
    memory_mib: tuple[int, int]
    islands: tuple[tuple[int, ...], ...]
    layout: str
    resources: tuple[str, ...]
    gpus: tuple[GpuCell, ...]
    pods: tuple[PodCell, ...]
    parts: tuple[tuple[int, ...], ...]
    pods_beside: int
    more: int
    zone: str
    labels: tuple[str, ...]
    reserved: str


def labels_of(labels: Mapping[str, str]) -> tuple[str, ...]:
    """``key=value`` of the first labels that people choose by: none of discovery, which ``model`` and
    ``layout`` sum up, and none that controllers give to each of their pods."""
    found = (f"{key}={value}" for key, value in labels.items() if not _OF_MACHINES.search(key))
    return tuple(shorten(text, KEY) for text in islice(found, PAGE_LABELS))


def fleet_row(state: State, name: str, count: NodeCount | None, now: float) -> FleetRow | None:
    """The row of a node, None if unknown. ``count`` is from the census; ``now``: as for
    ``view_node``."""
    view, spec = view_node(state, name, now), state.fleet.spec_of(name)
    if view is None or spec is None:
        return None
    keys = state.allocations.pods_on(name)
    parts = gpu_parts(state.fleet, name, [state.allocations.allocation_of(key) for key in keys])
    cells = _RowLists(state)
    for index, gpu in enumerate(spec.gpus):
        takes = gpu.divisible or not spec.sharing_resource
        cells.gpus.append(GpuCell("", gpu.memory_mib, memory_slices(spec, index), takes))
    for part in parts[:PAGE_PARTS]:
        cells.add_part(part, view.holders[part.pod] if part.pod != FREE else None)
    if name not in state.devices.two_ways:
        cells.add_devices(view.devices)
    hidden = view.unoffered if not cells.gpus else None
    if hidden:
        cells.add_hidden(hidden)
    elif count and not any(pool.is_many_gpus for pool in spec.pools):
        cells.gpus += [_TAKES_NONE] * (count.gpus - len(cells.gpus))
    note, labels = hidden.note if hidden else "", state.nodes.labels_of(name)
    return FleetRow(
        name=shorten(name, KEY),
        model=shorten(view.model or (view.unoffered.model if view.unoffered else ""), KEY),
        spot=view.spot,
        count=count,
        closed=view.takes_nothing or note,
        problem=shorten(view.problem or view.not_offered or note),
        cpu_milli=(view.free_cpu_milli, spec.cpu_milli),
        memory_mib=(view.free_memory_mib, spec.memory_mib),
        islands=view.islands,
        layout=view.read_from.layout if view.read_from else "",
        resources=cells.resources,
        gpus=tuple(cells.gpus),
        pods=tuple(cells.pods),
        parts=tuple(cells.parts),
        pods_beside=len(keys) - len(cells.pods),
        more=max(0, len(parts) - PAGE_PARTS),
        zone=shorten(labels.get(ZONE, ""), KEY),
        labels=labels_of(labels),
        reserved=state.large_jobs.note(name),
    )


class _RowLists:
    def __init__(self, state: State) -> None:
        self._state = state
        self.gpus: list[GpuCell] = []
        self.parts: list[tuple[int, ...]] = []
        self.pods: list[PodCell] = []
        self._pod_at: dict[str, int] = {}
        self._resource_at: dict[str, int] = {}

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of the resources, in the order of their positions."""
        return tuple(self._resource_at)

    def add_part(self, part: GpuPart, holder: HolderView | None) -> None:
        pod = self._pod(holder.pod, holder.known == "placement", holder.assumed_seconds) if holder else FREE
        self.parts.append((part.gpu, pod, self._resource(part.resource), *part[3:]))

    def add_devices(self, devices: Sequence[DeviceView]) -> None:
        """A cell for each GPU of DRA, with the devices that claims hold, and free ones without a MIG
        profile."""
        names = {d.gpu: d.device for d in reversed(devices) if d.gpu}
        takes = {d.gpu for d in devices if not d.problem}
        shown = list(islice(reversed(names), GPUS_PER_NODE))
        cell_of = {gpu: len(self.gpus) + i for i, gpu in enumerate(shown)}
        self.gpus += [GpuCell(shorten(names[gpu], KEY), 0, 0, gpu in takes) for gpu in shown]
        whole = (d for d in devices if d.claims or (d.free and not parse_profile(d.what)))
        for device in whole:
            if (index := cell_of.get(device.gpu)) is None:
                continue
            pods = [self._pod(pod, True, None) for pod in device.pods[:LISTED_NAMES]]
            resource, left = self._resource(shorten(device.what, KEY)), device.total_milli - device.used_milli
            for pod in pods:
                self.parts.append((index, pod, resource, 1, device.used_milli // len(pods), 0, 0, 0))
            if device.free and left:
                self.parts.append((index, FREE, resource, 1, left, 0, 0, 0))

    def add_hidden(self, hidden: Unoffered) -> None:
        """A cell for each GPU that takes no pods, with the pods that have some still, in any order."""
        self.gpus += [_TAKES_NONE] * hidden.gpus
        holders = (self._pod(pod, False, None) for pod, count in hidden.held for _ in range(count))
        for gpu, pod in zip(range(hidden.gpus), holders, strict=False):
            self.parts.append((gpu, pod, -1, 1, WHOLE, 0, 0, 0))

    def _pod(self, key: str, exact: bool, assumed_seconds: float | None) -> int:
        """The position of the pod in ``pods``."""
        if key not in self._pod_at:
            known = self._state.pods.get(key)
            queue = self._state.rights.queues.name_of(known) if known else ""
            self._pod_at[key] = len(self.pods)
            labels = labels_of(known.labels) if known else ()
            self.pods.append(PodCell(shorten(key, KEY), queue, exact, assumed_seconds is not None, labels))
        return self._pod_at[key]

    def _resource(self, name: str) -> int:
        """The position of the resource in ``resources``, -1 for none."""
        if not name:
            return -1
        return self._resource_at.setdefault(name, len(self._resource_at))


class GpuPart(NamedTuple):
    """``devices`` equal ones, or one share, of a GPU that the pod with this number has (``FREE``: nobody),
    with compute and memory of all of them. ``resource`` is "" for a share. A MIG instance takes ``size``
    memory slices from ``start``; ``size`` is 0 where that is not known, or it is none."""

    gpu: int
    pod: int
    resource: str
    devices: int
    compute_milli: int
    memory_mib: int
    start: int = 0
    size: int = 0


def gpu_parts(fleet: Fleet, name: str, held: Sequence[Allocation | None]) -> list[GpuPart]:
    """The parts of all GPUs of a node. ``held``: what each pod has there, in the order in which they came.

    Where a sharing system says which GPU a pod has, that is what is shown. Behind a device plugin that only
    counts, nobody but the plugin knows; pods then get the devices in the order in which they came, GPU after
    GPU. MIG instances lie where NVIDIA's geometry permits, the largest first: which GPU has which of them is
    known from the layout of the MIG manager, and otherwise they are spread evenly.
    """
    spec = fleet.spec_of(name)
    if spec is None:
        return []
    names = {number: name for name, number in fleet.names.resources.items()}
    shares: list[GpuPart] = []
    wanted: dict[str, list[tuple[int, int]]] = {}
    for pod, allocation in enumerate(held):
        if allocation is not None:
            shares += [_share(pod, share, dict(allocation.slices)) for share in allocation.shares]
            for number, count in allocation.devices:
                wanted.setdefault(names[number], []).append((pod, count))
    pools = tuple(pool for pool in spec.pools if not spec.is_divisible(pool))
    on_gpus = _devices_on_gpus(pools)
    counted = (_of_pool(spec, pool, on_gpus[pool.resource], wanted.get(pool.resource, ())) for pool in pools)
    return shares + list(_laid_out(spec, list(chain.from_iterable(counted))))


def memory_slices(spec: NodeSpec, gpu: int) -> int:
    """Number of memory slices of the GPU for MIG instances, 0 if it has none."""
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
    spec: NodeSpec, pool: Pool, on_gpus: Sequence[tuple[int, int]], wanted: Sequence[tuple[int, int]]
) -> Iterator[GpuPart]:
    """The devices of a pool, GPU after GPU: those that pods have, in their order, and then the free ones."""
    left = list(wanted)
    for gpu, devices in on_gpus:
        while devices and left:
            pod, count = left.pop(0)
            here = min(devices, count)
            yield _part(spec, pool, gpu, pod, here)
            devices -= here
            if count > here:
                left.insert(0, (pod, count - here))
        if devices:
            yield _part(spec, pool, gpu, FREE, devices)
    last = on_gpus[-1][0] if on_gpus else 0
    for pod, count in left:  # more than there is: the node is over-committed
        yield _part(spec, pool, last, pod, count)


def _part(spec: NodeSpec, pool: Pool, gpu: int, pod: int, count: int) -> GpuPart:
    return GpuPart(gpu, pod, pool.resource, count, *pool.size_of(count, spec.gpus[gpu]))


@lru_cache(maxsize=1024)
def _devices_on_gpus(pools: tuple[Pool, ...]) -> Mapping[str, Sequence[tuple[int, int]]]:
    """Numbers of devices on each GPU, by resource. Cached because nodes of one kind have equal pools."""
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
    """The parts, those of MIG instances last, and one by one where all of their GPU find memory slices."""
    counts: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for part in parts:
        if part.resource.startswith(MIG_PREFIX):
            counts[part.gpu][part.resource] += part.devices
    free = dict[tuple[int, str], list[tuple[int, int]]]()
    if counts and (geometry := _geometry(spec)):
        for gpu, on_gpu in counts.items():
            found = _places(geometry, spec.gpus[gpu].memory_mib, tuple(sorted(on_gpu.items())))
            free |= {(gpu, resource): list(places) for resource, places in found}
    for part in sorted(parts, key=lambda part: part.gpu if part.resource in counts[part.gpu] else -1):
        if (places := free.get((part.gpu, part.resource))) is None:
            yield part
            continue
        milli, mib = part.compute_milli // part.devices, part.memory_mib // part.devices
        for _ in range(part.devices):
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
    wanted.sort(key=lambda instance: (-instance[0], instance[1]))
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
