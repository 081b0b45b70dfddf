"""Whether a request fits, for every row of a fleet in one call, and what it would take of the GPUs there."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from packing.fleet import feasibility_kernels as kernels
from packing.fleet.arrays import Arrays, Floats
from packing.model.reasons import Reason
from packing.model.request import ANY, WHOLE, Request, Shares, whole_gpus

Reasons = npt.NDArray[np.int8]
_MOST_PERMITS = 1 << 20
"""Bytes, roughly, of the model names and other texts that ``Arrays.model_permits`` keeps alive."""
_MOST_GPUS = 32767
"""More GPUs than this are as good as any number: ``MOST_GPUS`` of one node are far fewer."""


class _Free(NamedTuple):
    """What requests are held against: the arrays of a fleet as it is, or of one without pods."""

    cpu: npt.NDArray[np.int64]
    memory: npt.NDArray[np.int64]
    devices: npt.NDArray[np.int32]
    gpu_compute: Floats
    gpu_memory: Floats
    divisible: npt.NDArray[np.uint8]
    overcommitted: npt.NDArray[np.uint8]
    blocked: npt.NDArray[np.int8]


def reasons(fleet: Arrays, request: Request) -> Reasons:
    """For every row the reason code why ``request`` does not fit, 0 where it does: (N,) int8."""
    now = _Free(
        fleet.free_cpu, fleet.free_memory, fleet.free, fleet.compute, fleet.memory, fleet.divisible,
        fleet.overcommitted, fleet.blocked,
    )  # fmt: skip
    return _reasons(fleet, request, now)


def could_host(fleet: Arrays, request: Request) -> bool:
    """Whether at least one node fits the request when it is empty. Why a node is closed does not count (it is
    being re-partitioned, its device plugin is busy), but one that cannot be read has no GPU."""
    empty = _Free(
        fleet.total_cpu, fleet.total_memory, fleet.total, fleet.compute_capacity, fleet.memory_capacity,
        fleet.shareable, np.zeros_like(fleet.overcommitted), np.zeros_like(fleet.blocked),
    )  # fmt: skip
    known = fleet.blocked != Reason.UNKNOWN_NODE
    return bool((known & (_reasons(fleet, request, empty) == Reason.FITS)).any())


def _reasons(fleet: Arrays, request: Request, free: _Free) -> Reasons:
    reasons = np.empty(fleet.capacity, np.int8)
    kernels.node_reasons(free.cpu, free.memory, request.cpu_milli, request.memory_bytes, reasons)
    for name, count in request.devices:
        _device_reasons(fleet, free, name, count, request.together, reasons)
    if request.shares:
        _share_reasons(fleet, free, request, reasons)
    if request.island:
        _island_reasons(fleet, free, request, reasons)
    if request.cuda:
        reasons[(fleet.cuda < request.cuda) & (reasons != Reason.NO_SUCH_RESOURCE)] = Reason.OLD_DRIVER
    if fleet.minimum_milli:
        small = too_small(fleet, request, fleet.minimum_milli)
        reasons[small & (reasons != Reason.NO_SUCH_RESOURCE)] = Reason.BELOW_MINIMUM
    kernels.standing_reasons(
        fleet.model,
        allowed(fleet, request),
        fleet.max_island,
        min(request.gpus, _MOST_GPUS) if request.island else 0,
        free.overcommitted,
        free.blocked,
        reasons,
    )
    return reasons


def too_small(fleet: Arrays, request: Request, minimum_milli: int) -> npt.NDArray[np.bool_]:
    """(N,) where both the compute and the memory of the request's shares are below this part of a GPU."""
    part = request.shares
    if part is None:
        return np.zeros(fleet.capacity, bool)
    capacity = np.maximum(fleet.memory_capacity[0], 1)
    memory = part.memory_milli + WHOLE * part.memory_mib / capacity
    small: npt.NDArray[np.bool_] = np.maximum(memory, part.compute_milli) < minimum_milli
    return small


def sizes(fleet: Arrays, request: Request) -> Floats:
    """GPUs that ``request`` takes on each node, the mean of compute and memory share: (N,) float32."""
    sizes = np.zeros(fleet.capacity, np.float32)
    for name, count in request.devices:
        if name in fleet.resources:
            sizes += count * fleet.device_gpu[fleet.resources[name]]
    if request.shares:
        part = request.shares
        memory = part.memory_milli / WHOLE + part.memory_mib / np.maximum(fleet.memory_capacity[0], 1)
        sizes += (part.count / 2) * (part.compute_milli / WHOLE + memory).astype(np.float32)
    return sizes


def allowed(fleet: Arrays, request: Request) -> npt.NDArray[np.uint8]:
    """Per model id (an index into ``model_names``) 1 where the request may run; to read only."""
    kind = fleet.grown, request.models, request.products, request.mode
    if (found := fleet.model_permits.get(kind)) is None:
        fleet.permits_size += _size(request)
        if fleet.permits_size > _MOST_PERMITS:
            fleet.model_permits.clear()
            fleet.permits_size = _size(request)
        found = fleet.model_permits[kind] = _permits(fleet, request)
    return found


def _size(request: Request) -> int:
    """Bytes, roughly, of what ``allowed`` goes by."""
    names = [
        len(name.letters) for group in (*request.products.allow, request.products.deny) for name in group
    ]
    models = [len(name) for name in request.models or ()]
    return 512 + 256 * len(names) + sum(names) + 64 * len(models) + sum(models) + len(request.mode)


def _permits(fleet: Arrays, request: Request) -> npt.NDArray[np.uint8]:
    models, products = request.models, request.products
    return np.array(
        [
            (models is None or model in models)
            and products.permits(" ".join(filter(None, (model, product))))
            and (not (request.mode and mode) or mode in request.mode)
            for model, product, mode in zip(fleet.model_names, fleet.products, fleet.modes, strict=True)
        ],
        np.uint8,
    )


def _device_reasons(
    fleet: Arrays, free: _Free, name: str, count: int, together: int, reasons: Reasons
) -> None:
    resource = fleet.resources.get(name)
    if resource is None:
        reasons[:] = Reason.NO_SUCH_RESOURCE
    else:
        kernels.device_reasons(free.devices[resource], fleet.total[resource], count, reasons)
        if together > 1:
            limit = fleet.most[resource]
            reasons[(limit > 0) & (limit < together)] = Reason.TOO_MANY_REPLICAS


def _share_reasons(fleet: Arrays, free: _Free, request: Request, reasons: Reasons) -> None:
    part = request.shares
    assert part is not None
    counts, frees = np.empty((2, fleet.capacity), np.int32), np.empty((2, fleet.capacity), np.float32)
    kernels.share_reasons(
        free.gpu_compute, free.gpu_memory, fleet.compute_capacity, fleet.memory_capacity,
        *_for_shares(fleet, free, request), min(part.count, _MOST_GPUS), part.compute_milli, part.memory_mib,
        part.memory_milli, reasons, *counts, *frees,
    )  # fmt: skip
    reasons[~_divided_as(fleet, part)] = Reason.NO_SUCH_RESOURCE


def _island_reasons(fleet: Arrays, free: _Free, request: Request, reasons: Reasons) -> None:
    """Where a node places the GPUs of the request one by one they must be in one island. Elsewhere its device
    plugin chooses, and all that is asked is an island of this size."""
    asked: list[tuple[Shares, npt.NDArray[np.bool_]]] = []
    if request.shares:
        asked.append((request.shares, _divided_as(fleet, request.shares)))
    for name, count in request.devices:
        if name in fleet.resources:
            asked.append((whole_gpus(count), fleet.divides[fleet.resources[name]] > 0))
    counts = np.empty((2, len(fleet.compute)), np.int32)
    for part, placed in asked:
        kernels.island_reasons(
            free.gpu_compute, free.gpu_memory, fleet.compute_capacity, fleet.memory_capacity,
            *_for_shares(fleet, free, request), fleet.island, placed.astype(np.uint8),
            min(part.count, _MOST_GPUS), part.compute_milli, part.memory_mib, part.memory_milli, reasons,
            *counts,
        )  # fmt: skip


def _divided_as(fleet: Arrays, part: Shares) -> npt.NDArray[np.bool_]:
    """(N,) where nodes divide their GPUs into such shares."""
    divided: npt.NDArray[np.bool_] = fleet.divided == fleet.divisions.get(part.resource, -1)
    return divided


def _for_shares(
    fleet: Arrays, free: _Free, request: Request
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """(G, N) each: the GPUs that can take a share of the request now, and that ever can."""
    if request.uuids is ANY:
        return free.divisible, fleet.shareable
    named = _named(fleet, request)
    return free.divisible * named, fleet.shareable * named


def _named(fleet: Arrays, request: Request) -> npt.NDArray[np.uint8]:
    """(G, N) 1 for the GPUs whose UUID the request permits."""
    allow, deny = request.uuids.allow, request.uuids.deny
    named = np.zeros_like(fleet.identified) if allow else fleet.identified.copy()
    for uuid in frozenset.intersection(*allow) if allow else deny:
        if uuid in fleet.uuids:
            named[fleet.uuids[uuid]] = uuid not in deny
    return named
