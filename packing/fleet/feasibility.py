"""Whether a request fits on each node, and what it would take of the GPUs there."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from packing.fleet import feasibility_kernels as kernels
from packing.fleet.arrays import Floats, NodeArrays
from packing.fleet.fleet import Fleet
from packing.model.reasons import Reason
from packing.model.request import ANY, WHOLE, Request, Shares, whole_gpus

Reasons = npt.NDArray[np.int8]
_MOST_COUNT = 32767
"""No node has more GPUs than this; the kernels take 16 bits."""


class _Free(NamedTuple):
    """What a request is compared with: the arrays of a fleet as it is, or of the fleet without pods."""

    cpu: npt.NDArray[np.int64]
    memory: npt.NDArray[np.int64]
    devices: npt.NDArray[np.int32]
    gpu_compute: Floats
    gpu_memory: Floats
    divisible: npt.NDArray[np.uint8]
    overcommitted: npt.NDArray[np.uint8]
    blocked: npt.NDArray[np.int8]


def reasons_for(fleet: Fleet, request: Request) -> Reasons:
    """For every row the code of the reason why the request does not fit, 0 where it does: (N,), read only."""
    if fleet.last_reasons is not None:
        asked, changes, found = fleet.last_reasons
        if asked is request and changes == fleet.changes:
            return found
    arrays = fleet.arrays
    now = _Free(
        arrays.free_cpu, arrays.free_memory, arrays.free_devices, arrays.compute, arrays.memory,
        arrays.divisible, arrays.overcommitted, arrays.blocked,
    )  # fmt: skip
    found = _reasons(fleet, request, now)
    found.setflags(write=False)
    fleet.last_reasons = request, fleet.changes, found
    return found


def could_host(fleet: Fleet, request: Request) -> bool:
    """Whether the request fits on at least one node when it is empty. Reasons that close a node for a while
    (MIG reconfiguration, a busy device plugin) do not count, but a node that could not be read has no GPU."""
    arrays = fleet.arrays
    empty = _Free(
        arrays.total_cpu, arrays.total_memory, arrays.total_devices, arrays.compute_capacity,
        arrays.memory_capacity, arrays.shareable, np.zeros_like(arrays.overcommitted),
        np.zeros_like(arrays.blocked),
    )  # fmt: skip
    known = arrays.blocked != Reason.UNKNOWN_NODE
    return bool((known & (_reasons(fleet, request, empty) == Reason.FITS)).any())


def gpu_sizes(fleet: Fleet, request: Request) -> Floats:
    """GPUs that the request takes on each node, the mean of its parts of compute and memory: (N,) float32."""
    arrays = fleet.arrays
    sizes = np.zeros(arrays.capacity, np.float32)
    for name, count in request.devices:
        if name in fleet.names.resources:
            sizes += count * arrays.device_gpu[fleet.names.resources[name]]
    if part := request.shares:
        sizes += (part.count / 2) * (part.compute_milli / WHOLE + _memory_milli(arrays, part) / WHOLE)
    return sizes


def _memory_milli(arrays: NodeArrays, part: Shares) -> Floats:
    """(N,) the memory of a share in thousandths of the node's first GPU."""
    of_gpu: Floats = WHOLE * part.memory_mib / np.maximum(arrays.memory_capacity[0], 1)
    return part.memory_milli + of_gpu


def _reasons(fleet: Fleet, request: Request, free: _Free) -> Reasons:
    arrays = fleet.arrays
    reasons = np.empty(arrays.capacity, np.int8)
    kernels.node_reasons(free.cpu, free.memory, request.cpu_milli, request.memory_bytes, reasons)
    for name, count in request.devices:
        _device_reasons(fleet, free, name, count, request.together, reasons)
    if request.shares:
        _share_reasons(fleet, free, request, request.shares, reasons)
    if request.island:
        _island_reasons(fleet, free, request, reasons)
    if request.cuda:
        reasons[(arrays.cuda < request.cuda) & (reasons != Reason.NO_SUCH_RESOURCE)] = Reason.OLD_DRIVER
    if fleet.minimum_milli and (part := request.shares):
        below = np.maximum(_memory_milli(arrays, part), part.compute_milli) < fleet.minimum_milli
        reasons[below & (reasons != Reason.NO_SUCH_RESOURCE)] = Reason.BELOW_MINIMUM
    island = min(request.gpus, _MOST_COUNT) if request.island else 0
    kernels.standing_reasons(
        arrays.model, fleet.names.allowed(request), arrays.max_island, island, free.overcommitted,
        free.blocked, reasons,
    )  # fmt: skip
    return reasons


def _device_reasons(
    fleet: Fleet, free: _Free, name: str, count: int, together: int, reasons: Reasons
) -> None:
    if (resource := fleet.names.resources.get(name)) is None:
        reasons[:] = Reason.NO_SUCH_RESOURCE
        return
    kernels.device_reasons(free.devices[resource], fleet.arrays.total_devices[resource], count, reasons)
    if together > 1:
        limit = fleet.arrays.max_per_container[resource]
        reasons[(limit > 0) & (limit < together)] = Reason.TOO_MANY_REPLICAS


def _share_reasons(fleet: Fleet, free: _Free, request: Request, part: Shares, reasons: Reasons) -> None:
    arrays = fleet.arrays
    counts, frees = np.empty((2, arrays.capacity), np.int32), np.empty((2, arrays.capacity), np.float32)
    kernels.share_reasons(_gpus_for(fleet, free, request), *_share_args(part), *counts, *frees, reasons)
    reasons[~_shares_gpus_as(fleet, part)] = Reason.NO_SUCH_RESOURCE


def _island_reasons(fleet: Fleet, free: _Free, request: Request, reasons: Reasons) -> None:
    """Where a node places the GPUs of the request one by one they must be in one island. Elsewhere its device
    plugin chooses, and an island of this size is enough."""
    asked = [(part, _shares_gpus_as(fleet, part))] if (part := request.shares) else []
    for name, count in request.devices:
        if (pool := fleet.names.resources.get(name)) is not None:
            asked.append((whole_gpus(count), fleet.arrays.divisible_pool[pool] > 0))
    counts = np.empty((2, len(fleet.arrays.compute)), np.int32)
    for part, placed in asked:
        kernels.island_reasons(
            _gpus_for(fleet, free, request), fleet.arrays.island, placed.astype(np.uint8),
            *_share_args(part), *counts, reasons,
        )  # fmt: skip


def _shares_gpus_as(fleet: Fleet, part: Shares) -> npt.NDArray[np.bool_]:
    """(N,) where nodes hand out their GPUs as shares of this resource."""
    number = fleet.names.sharing_resources.get(part.resource, -1)
    same: npt.NDArray[np.bool_] = fleet.arrays.sharing == number
    return same


def _share_args(part: Shares) -> tuple[int, int, int, int]:
    return min(part.count, _MOST_COUNT), part.compute_milli, part.memory_mib, part.memory_milli


def _gpus_for(fleet: Fleet, free: _Free, request: Request) -> kernels.Gpus:
    """The GPUs of all nodes; those that the request does not name count as neither free nor shareable."""
    arrays = fleet.arrays
    divisible, shareable = free.divisible, arrays.shareable
    if request.uuids is not ANY:
        named = _named(fleet, request)
        divisible, shareable = divisible * named, shareable * named
    return kernels.Gpus(
        free.gpu_compute, free.gpu_memory, arrays.compute_capacity, arrays.memory_capacity, divisible,
        shareable,
    )  # fmt: skip


def _named(fleet: Fleet, request: Request) -> npt.NDArray[np.uint8]:
    """(G, N) 1 for the GPUs whose UUID the request permits."""
    allow, deny, identified = request.uuids.allow, request.uuids.deny, fleet.arrays.identified
    named = np.zeros_like(identified) if allow else identified.copy()
    for uuid in frozenset.intersection(*allow) if allow else deny:
        if uuid in fleet.gpu_of_uuid:
            named[fleet.gpu_of_uuid[uuid]] = uuid not in deny
    return named
