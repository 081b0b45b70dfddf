"""A node when empty: its GPUs, and in which devices or parts they are handed out.

A node's GPUs are either behind a device plugin that counts (``Pool``), or divided by a sharing system that
places parts of them device by device (``sharing_resource``). The same request can mean a counted device on one node
and a part of a GPU on another: ``meaning`` says which.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from packing.model.mig_instances import Instances
from packing.model.reasons import Reason
from packing.model.request import WHOLE, Request, whole_gpus

UNLIMITED = 1 << 20
"""Shares on one GPU where nothing but its compute and memory limits them."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: its memory and compute, whether parts of it are handed out device by device, and to how many.

    A GPU that is sick or cordoned is not ``divisible``: it keeps what it holds and takes nothing. Where
    parts of it are MIG ``instances``, memory and compute are those of the largest one.
    """

    memory_mib: int
    divisible: bool = False
    compute_milli: int = WHOLE
    slots: int = UNLIMITED
    uuid: str = ""
    instances: Instances = ()


@dataclass(frozen=True, slots=True)
class Pool:
    """Devices of one extended resource: ``total`` of this size on the node's ``gpus`` (indices).

    A pool over divisible GPUs counts whole GPUs: those that nobody has a part of are free.
    ``most`` is how many of them the plugin gives to one container at once, 0 for any number. ``each`` says
    how many of them are on each of ``gpus``, () where that is not known; then the pools of the same
    ``gpus`` share them.
    """

    resource: str
    total: int
    gpus: tuple[int, ...]
    compute_milli: int
    memory_mib: int
    most: int = 0
    each: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node when empty. ``blocked`` is a reason why it takes nothing at all, ``FITS`` for none.

    ``model`` is the catalogue's name of the GPUs, ``product`` the name that the node itself gives them;
    ``cuda`` the CUDA version that the driver supports (12.4 is 12004, 0 is unknown); ``sharing_resource`` names
    the resource of the shares that its divisible GPUs take, ``mode`` the way in which they are kept apart, ""
    where there is but one. ``islands`` are the GPUs (indices) that are NVLink peers, each in one at most.
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

    @property
    def memory_mib(self) -> int:
        """Memory of the node in MiB, rounded down."""
        return self.memory_bytes >> 20

    @property
    def peers(self) -> tuple[tuple[int, ...], ...]:
        """All GPUs in groups of NVLink peers: the islands, and each GPU that is in none by itself."""
        islands = [tuple(gpu for gpu in island if gpu < len(self.gpus)) for island in self.islands]
        grouped = {gpu for island in islands for gpu in island}
        alone = [(gpu,) for gpu in range(len(self.gpus)) if gpu not in grouped]
        return tuple(sorted([*filter(None, islands), *alone], key=min))

    def divides(self, pool: Pool) -> bool:
        """Whether the devices of a pool are whole GPUs that are handed out device by device."""
        return bool(self.sharing_resource) and any(self.gpus[gpu].divisible for gpu in pool.gpus)


def in_one_island(shape: NodeSpec, gpus: Collection[int], count: int) -> frozenset[int]:
    """Those of these GPUs that are in the same island: of the islands with at least ``count`` of them the one
    with the fewest, so that the larger ones stay whole; none where no island has as many."""
    groups = [frozenset(gpu for gpu in island if gpu in gpus) for island in shape.peers]
    return min((group for group in groups if len(group) >= count), key=len, default=frozenset())


def meaning(shape: NodeSpec, request: Request) -> Request:
    """The request as this node takes it.

    Counted devices become whole GPUs where the node divides them; shares become counted devices where a
    plain plugin hands out the resource they are counted by; shares of another sharing system mean nothing.
    """
    part = request.shares
    if part is None and not shape.sharing_resource:
        return request
    divided = {pool.resource for pool in shape.pools if shape.divides(pool)}
    if part is not None:
        if part.resource == shape.sharing_resource:
            return request
        plain = any(pool.resource == part.resource for pool in shape.pools) and part.resource not in divided
        counted = ((part.resource, part.count),) if plain else ()
        return replace(request, shares=None, devices=request.devices + counted)
    whole = sum(count for name, count in request.devices if name in divided)
    if not whole:
        return request
    kept = tuple((name, count) for name, count in request.devices if name not in divided)
    return replace(request, devices=kept, shares=whole_gpus(whole, shape.sharing_resource))
