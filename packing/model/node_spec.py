"""An empty node: its GPUs, and the devices or shares in which it offers them.

A node's GPUs are either behind a device plugin that counts devices (``Pool``), or under a sharing system that
places shares of them GPU by GPU (``sharing_resource``). The same request can take a counted device on one
node and a share of a GPU on another: see ``resolve_on``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache

from packing.model.mig_instances import Instances
from packing.model.reasons import Reason
from packing.model.request import WHOLE, Request, Shares, whole_gpus

MOST_GPUS = 64
"""Maximum number of GPUs per node. A selection of them is a mask of 64 bits, and the arrays have as many rows
as the largest node has GPUs."""
ALMOST_WHOLE = 0.999
"""A device of at least this size, in GPUs, is a whole GPU; smaller ones are replicas and MIG instances."""
UNLIMITED = 1 << 20
"""Number of shares on one GPU that is limited only by its compute and memory."""

FOR_MACHINES = "virtual machines"
"""Mode of a node whose GPUs are only for requests that name this mode."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: its memory and compute, whether shares are placed on it, and their maximum number (``slots``).

    An unhealthy or cordoned GPU is not ``divisible``: it keeps its pods and accepts no more. If it is divided
    into MIG ``instances`` on demand, memory and compute are those of the largest instance. ``product`` is the
    name that the node reports, "" if it reports one name for all its GPUs.
    """

    memory_mib: int
    divisible: bool = False
    compute_milli: int = WHOLE
    slots: int = UNLIMITED
    uuid: str = ""
    instances: Instances = ()
    product: str = ""

    @property
    def choosy(self) -> bool:
        """Whether anything besides its size decides which requests it accepts (see ``permits``)."""
        return bool(self.product) or self._has_no_whole_instance

    @property
    def _has_no_whole_instance(self) -> bool:
        return bool(self.instances) and self.compute_milli < WHOLE

    def permits(self, request: Request, part: Shares | None) -> bool:
        """Whether the request may have this share of the GPU if there is room: by UUID, model and memory. If
        no MIG instance is the whole GPU, a fraction of its memory is undefined."""
        if self._has_no_whole_instance and part and part.memory_milli:
            return False
        if request.device_mib > (part.mib_of(self.memory_mib) if part else self.memory_mib):
            return False
        return request.uuids.permits(self.uuid) and (
            not self.product or request.products.permits(self.product)
        )


@dataclass(frozen=True, slots=True)
class Pool:
    """Devices of one extended resource: ``total`` of this size on the node's ``gpus`` (indices).

    A pool over divisible GPUs counts whole GPUs: those without any share are free. ``most`` is the maximum
    number per container, 0 if unlimited. ``each`` is their number on each of ``gpus``, () if unknown; then
    the pools with the same ``gpus`` share them. ``separate`` is the number that the plugin allocates from
    different GPUs while none is in use; None: all of them. ``profile`` is the MIG profile if the devices are
    MIG instances, each for one pod; "" otherwise. ``replicas`` is the number of equal parts into which the
    devices divide each GPU, 0 if they are no such parts.
    """

    resource: str
    total: int
    gpus: tuple[int, ...]
    compute_milli: int
    memory_mib: int
    most: int = 0
    each: tuple[int, ...] = ()
    separate: int | None = None
    profile: str = ""
    replicas: int = 0

    def size_of(self, devices: int, gpu: Gpu) -> tuple[int, int]:
        """Compute milli and MiB of this number of devices on such a GPU. One of thousands of replicas has
        less than one of either."""
        if self.replicas:
            return devices * gpu.compute_milli // self.replicas, devices * gpu.memory_mib // self.replicas
        return devices * self.compute_milli, devices * self.memory_mib

    @property
    def is_many_gpus(self) -> bool:
        """Whether its devices are GPUs, for all of which one GPU of the node stands."""
        return bool(self.replicas) and self.is_whole

    @property
    def is_whole(self) -> bool:
        return self.compute_milli > ALMOST_WHOLE * WHOLE and not self.profile


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """An empty node. ``blocked`` is the reason it accepts no pods, ``FITS`` if there is none.

    ``model`` is the catalog's name of the GPUs, and ``product`` the name that the node reports. ``cuda`` is
    the CUDA version that the driver supports (12.4 is 12004, 0 is unknown). ``sharing_resource`` is the
    extended resource that counts the shares of its divisible GPUs, and ``mode`` the way shares are isolated,
    "" if there is only one, or ``FOR_MACHINES``. ``islands`` are disjoint groups of NVLink peers (GPU
    indices); ``no_nvlink``: it is certain that there are none. ``plugin_keeps_islands``: the device plugin
    allocates a pod GPUs of one island if one has enough free. ``spot``: its provider may reclaim it at any
    time. ``agents``: the sharing systems whose agents are ready on the node.
    """

    name: str
    cpu_milli: int
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    pools: tuple[Pool, ...] = ()
    model: str | None = None
    islands: tuple[tuple[int, ...], ...] = ()
    blocked: Reason = Reason.FITS
    product: str = ""
    cuda: int = 0
    sharing_resource: str = ""
    mode: str = ""
    spot: bool = False
    no_nvlink: bool = False
    agents: frozenset[str] = frozenset()
    plugin_keeps_islands: bool = True

    @property
    def memory_mib(self) -> int:
        """Memory of the node in MiB, rounded down."""
        return self.memory_bytes >> 20

    @property
    def peers(self) -> tuple[tuple[int, ...], ...]:
        """All GPUs in groups of NVLink peers: the islands, and a separate group for each GPU in no island."""
        return _peers(self.islands, len(self.gpus))

    def peer_groups(self, pool: Pool) -> tuple[int, ...]:
        """Number of devices of a pool on each group of NVLink peers. If its device plugin mixes the groups,
        no two devices count as peers unless all are: (1, 1)."""
        per_gpu = pool.each or (pool.total // max(1, len(pool.gpus)),) * len(pool.gpus)
        devices = dict(zip(pool.gpus, per_gpu, strict=True))
        sizes = [sum(devices.get(gpu, 0) for gpu in island) for island in self.peers]
        groups = tuple(size for size in sizes if size)
        if len(groups) < 2:
            return (pool.total,)
        if sum(groups) != pool.total or not self.plugin_keeps_islands:
            return 1, 1
        return groups

    def is_divisible(self, pool: Pool) -> bool:
        """Whether the devices of a pool are whole GPUs that are placed one by one."""
        return bool(self.sharing_resource) and any(self.gpus[gpu].divisible for gpu in pool.gpus)


@lru_cache(maxsize=256)
def _peers(islands: tuple[tuple[int, ...], ...], gpus: int) -> tuple[tuple[int, ...], ...]:
    islands = tuple(tuple(gpu for gpu in island if gpu < gpus) for island in islands)
    grouped = {gpu for island in islands for gpu in island}
    alone = [(gpu,) for gpu in range(gpus) if gpu not in grouped]
    return tuple(sorted([*filter(None, islands), *alone], key=min))


def in_one_island(spec: NodeSpec, gpus: Collection[int], count: int) -> frozenset[int]:
    """The subset of these GPUs in one NVLink island: of the islands with at least ``count`` of them the one
    with the fewest, so that larger ones stay whole. Empty if no island has as many."""
    groups = [frozenset(gpu for gpu in island if gpu in gpus) for island in spec.peers]
    return min((group for group in groups if len(group) >= count), key=len, default=frozenset())


def resolve_on(spec: NodeSpec, request: Request) -> Request:
    """The request in the form in which this node serves it.

    Counted devices become whole GPUs if the node places those one by one. Shares become counted devices if a
    plain device plugin advertises their resource, and are dropped if the node shares its GPUs under another
    resource.
    """
    part = request.shares
    if part is None and not spec.sharing_resource:
        return request
    divisible = {pool.resource for pool in spec.pools if spec.is_divisible(pool)}
    if part is not None:
        if part.resource == spec.sharing_resource:
            return request
        plain = any(pool.resource == part.resource for pool in spec.pools) and part.resource not in divisible
        counted = ((part.resource, part.count),) if plain else ()
        return replace(request, shares=None, devices=request.devices + counted)
    whole = sum(count for name, count in request.devices if name in divisible)
    if not whole:
        return request
    devices = tuple((name, count) for name, count in request.devices if name not in divisible)
    return replace(request, devices=devices, shares=whole_gpus(whole, spec.sharing_resource))
