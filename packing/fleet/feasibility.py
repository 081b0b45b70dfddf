"""Whether a request fits on each node, and how much of the GPUs there it would take."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from packing.fleet import feasibility_kernels as kernels
from packing.fleet.arrays import Floats, NodeArrays
from packing.fleet.fleet import Fleet
from packing.fleet.permitted import Mask, in_its_mode, memory_for, mixes_modes, permitted_gpus
from packing.model.node_spec import FOR_MACHINES
from packing.model.reasons import Reason
from packing.model.request import WHOLE, Request, SeparateGpus, Shares, whole_gpus

Reasons = npt.NDArray[np.int8]
_EVICTION_HELPS = np.zeros(max(Reason) + 1, np.bool_)
_EVICTION_HELPS[[reason for reason in Reason if reason.eviction_helps]] = True
_MOST_COPIES = 1 << 20
_MOST_COUNT = 32767
"""No node has more GPUs than this; the kernels use 16 bits."""


def eviction_may_help(reasons: Reasons) -> npt.NDArray[np.bool_]:
    """(N,) where the eviction of pods may remove the reason."""
    return _EVICTION_HELPS[reasons]


def reasons_for(fleet: Fleet, request: Request) -> Reasons:
    """(N,) for every row the code of the reason the request does not fit, 0 where it does. Read only."""
    if fleet.last_reasons is not None:
        asked, changes, found = fleet.last_reasons
        if asked is request and changes == fleet.changes:
            return found
    found = _reasons(fleet, fleet.arrays, request)
    found.setflags(write=False)
    fleet.last_reasons = request, fleet.changes, found
    return found


def could_host(fleet: Fleet, request: Request) -> bool:
    """Whether the request fits on at least one node when it is empty. Temporary reasons (MIG reconfiguration,
    a busy device plugin) are ignored, but a node whose inventory could not be read has no GPU."""
    arrays = fleet.arrays
    empty = _emptied(arrays)
    empty.blocked = np.zeros_like(arrays.blocked)
    known = arrays.blocked != Reason.UNKNOWN_NODE
    return bool((known & (_reasons(fleet, empty, request) == Reason.FITS)).any())


def fits_when_empty(fleet: Fleet, request: Request) -> npt.NDArray[np.bool_]:
    """(N,) where the request would fit if the node had no pods; closed nodes accept nothing."""
    fits: npt.NDArray[np.bool_] = _reasons(fleet, _emptied(fleet.arrays), request) == Reason.FITS
    return fits


def reason_on_row(fleet: Fleet, request: Request, row: int) -> Reason:
    """``reasons_for`` for one row, in a time that does not depend on the number of nodes."""
    return Reason(int(_reasons(fleet, fleet.arrays.only(row), request)[0]))


def _emptied(arrays: NodeArrays) -> NodeArrays:
    """The arrays of the same nodes without any pods."""
    empty = copy(arrays)
    empty.free_cpu, empty.free_memory = arrays.total_cpu, arrays.total_memory
    empty.free_devices, empty.divisible = arrays.total_devices, arrays.shareable
    empty.free_peers, empty.share_slots = arrays.total_peers, arrays.total_slots
    empty.concurrent_shares = np.zeros_like(arrays.concurrent_shares)
    empty.compute, empty.memory = arrays.compute_capacity, arrays.memory_capacity
    empty.overcommitted = np.zeros_like(arrays.overcommitted)
    return empty


def fits_with_idle_plugin(fleet: Fleet, request: Request) -> npt.NDArray[np.bool_]:
    """(N,) where the request fits, or would if the device plugin were not busy."""
    reasons = reasons_for(fleet, request)
    fits: npt.NDArray[np.bool_] = (reasons == Reason.FITS) | (reasons == Reason.PLUGIN_BUSY)
    return fits


def copies_that_fit(fleet: Fleet, request: Request) -> npt.NDArray[np.int64] | None:
    """(N,) number of copies of the request that fit on each node together, once its device plugin is idle.
    None where counts are not sufficient to tell: shares and NVLink islands are placed GPU by GPU, as are GPUs
    that nodes divide."""
    arrays, fits = fleet.arrays, fits_with_idle_plugin(fleet, request)
    if request.shares or request.island:
        return None
    copies = np.where(fits, np.int64(_MOST_COPIES), np.int64(0))
    for name, count in request.devices:
        if (resource := fleet.names.resources.get(name)) is None:
            continue  # so nothing fits
        if (fits & (arrays.divisible_pool[resource] > 0)).any():
            return None
        separate = count > 1 and separation(fleet, request) == "require"
        free_devices = idle_gpus(arrays, resource) if separate else arrays.free_devices[resource]
        copies = np.minimum(copies, np.maximum(free_devices, 0) // count)
    for free, asked in ((arrays.free_cpu, request.cpu_milli), (arrays.free_memory, request.memory_bytes)):
        if asked:
            copies = np.minimum(copies, np.maximum(free, 0) // asked)
    return copies


def gpu_sizes(fleet: Fleet, request: Request) -> Floats:
    """(N,) float32, GPUs that the request takes on each node, the mean of its fractions of compute and
    memory."""
    arrays = fleet.arrays
    sizes = np.zeros(arrays.capacity, np.float32)
    for name, count in request.devices:
        if name in fleet.names.resources:
            sizes += count * arrays.device_gpu[fleet.names.resources[name]]
    if part := request.shares:
        sizes += (part.count / 2) * (part.compute_milli / WHOLE + _memory_milli(arrays, part) / WHOLE)
    return sizes


def _memory_milli(arrays: NodeArrays, part: Shares) -> Floats:
    """(N,) memory of a share in thousandths of the node's first GPU."""
    of_gpu: Floats = WHOLE * part.memory_mib / np.maximum(arrays.memory_capacity[0], 1)
    return part.memory_milli + of_gpu


def _reasons(fleet: Fleet, arrays: NodeArrays, request: Request) -> Reasons:
    """``arrays``: those of the fleet, of the fleet without its pods, or of one row."""
    reasons = np.empty(arrays.capacity, np.int8)
    cpu, memory = request.cpu_milli, request.memory_bytes
    kernels.node_reasons(arrays.free_cpu, arrays.free_memory, cpu, memory, reasons)
    for name, count in request.devices:
        _device_reasons(fleet, arrays, request, name, count, reasons)
    if request.shares:
        _share_reasons(fleet, arrays, request, request.shares, reasons)
    if request.island:
        _island_reasons(fleet, arrays, request, reasons)
    if request.cuda:
        reasons[(arrays.cuda < request.cuda) & (reasons != Reason.NO_SUCH_RESOURCE)] = Reason.OLD_DRIVER
    if fleet.minimum_milli and (part := request.shares):
        below = np.maximum(_memory_milli(arrays, part), part.compute_milli) < fleet.minimum_milli
        reasons[below & (reasons != Reason.NO_SUCH_RESOURCE)] = Reason.BELOW_MINIMUM
    island = min(request.gpus, _MOST_COUNT) if request.island else 0
    kernels.standing_reasons(
        arrays.model, fleet.names.allowed(request), arrays.max_island, island, arrays.overcommitted,
        arrays.blocked, reasons,
    )  # fmt: skip
    if request.mode or FOR_MACHINES in fleet.names.modes:
        in_any_mode = fleet.names.allowed(replace(request, mode=fleet.names.modes))[arrays.model] != 0
        reasons[(reasons == Reason.WRONG_MODEL) & in_any_mode] = Reason.WRONG_MODE
    if request.agents:
        without = fleet.names.allowed(replace(request, agents=""))[arrays.model] != 0
        reasons[(reasons == Reason.WRONG_MODEL) & without] = Reason.AGENTS_NOT_READY
    return reasons


def _device_reasons(
    fleet: Fleet, arrays: NodeArrays, request: Request, name: str, count: int, reasons: Reasons
) -> None:
    if (resource := fleet.names.resources.get(name)) is None:
        reasons[:] = Reason.NO_SUCH_RESOURCE
        return
    free, total = arrays.free_devices[resource], arrays.total_devices[resource]
    separate = count > 1 and separation(fleet, request) == "require"
    if separate:
        free = idle_gpus(arrays, resource)
    if (permitted := permitted_gpus(fleet, request, arrays.rows, arrays)) is not None:
        free, total = _permitted_whole_gpus(arrays, resource, permitted, free, total)
    kernels.device_reasons(free, total, count, reasons)
    if request.whole:
        reasons[(arrays.total_devices[resource] > 0) & (arrays.whole_device[resource] == 0)] = (
            Reason.PART_OF_A_GPU
        )
    if request.device_mib:
        offered = arrays.total_devices[resource] > 0
        reasons[offered & (_device_memory(arrays, resource) < request.device_mib)] = Reason.SMALL_DEVICES
    if separate:
        too_few_gpus = (total >= count) & (total - arrays.surplus_devices[resource] < count)
        reasons[too_few_gpus] = Reason.PARTS_OF_ONE_GPU
    if request.together > 1:
        limit = arrays.max_per_container[resource]
        reasons[(limit > 0) & (limit < request.together)] = Reason.TOO_MANY_REPLICAS


def _permitted_whole_gpus(
    arrays: NodeArrays,
    resource: int,
    permitted: Mask,
    free: npt.NDArray[np.int32],
    total: npt.NDArray[np.int32],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """(N,) free and total devices, without the GPUs that are not permitted to the request."""
    untouched = arrays.divisible * (arrays.compute >= arrays.compute_capacity)
    untouched *= arrays.memory >= arrays.memory_capacity
    whole = arrays.divisible_pool[resource] > 0
    most = ((permitted * gpus).sum(axis=0, dtype=np.int32) for gpus in (untouched, arrays.shareable))
    free_most, total_most = most
    return (
        np.where(whole, np.minimum(free, free_most), free),
        np.where(whole, np.minimum(total, total_most), total),
    )


def _share_reasons(
    fleet: Fleet, arrays: NodeArrays, request: Request, part: Shares, reasons: Reasons
) -> None:
    counts, frees = np.empty((2, arrays.capacity), np.int32), np.empty((2, arrays.capacity), np.float32)
    gpus, share = _gpus_for(fleet, arrays, request), _share_args(part)
    kernels.share_reasons(gpus, *share, *counts, *frees, reasons)
    full = (reasons == Reason.NO_FREE_GPUS) | (reasons == Reason.FRAGMENTED)
    full &= (gpus.divisible != gpus.shareable).any(axis=0)
    if full.any():
        unsplit = np.zeros_like(reasons)
        kernels.share_reasons(gpus._replace(divisible=gpus.shareable), *share, *counts, *frees, unsplit)
        reasons[full & (unsplit == Reason.FITS)] = Reason.SHARES_USED_UP
    if mixes_modes(fleet, request):
        too_few = (reasons == Reason.TOO_FEW_GPUS) | (reasons == Reason.NO_SUCH_RESOURCE)
        other_mode = (arrays.shareable & ~in_its_mode(arrays, request)).any(axis=0)
        reasons[too_few & other_mode & (arrays.shareable.sum(axis=0) >= part.count)] = Reason.WRONG_MODE
    if request.device_mib:
        reasons[memory_for(arrays, part).max(axis=0) < request.device_mib] = Reason.SMALL_DEVICES
    reasons[~_shares_gpus_as(fleet, arrays, part)] = Reason.NO_SUCH_RESOURCE


def largest_device(fleet: Fleet, request: Request) -> npt.NDArray[np.int64]:
    """(N,) largest memory in MiB of a GPU, or fraction of one, that the request can be allocated; with
    several kinds of devices, the minimum over the kinds; 0 where unknown."""
    names, arrays = fleet.names.resources, fleet.arrays
    known = [_device_memory(arrays, names[name]) for name, _ in request.devices if name in names]
    known += [memory_for(arrays, request.shares).max(axis=0)] if request.shares else []
    least: npt.NDArray[np.int64] = np.array(known or [np.zeros(arrays.capacity, np.int64)]).min(axis=0)
    return least


def _device_memory(arrays: NodeArrays, resource: int) -> npt.NDArray[np.int64]:
    """(N,) MiB of a counted device; for whole GPUs that are placed one by one, MiB of the largest GPU."""
    placed, largest = arrays.divisible_pool[resource] > 0, memory_for(arrays, None).max(axis=0)
    known: npt.NDArray[np.int64] = np.where(placed, largest, arrays.device_mib[resource]).astype(np.int64)
    return known


def _island_reasons(fleet: Fleet, arrays: NodeArrays, request: Request, reasons: Reasons) -> None:
    """On nodes that place GPUs one by one, the request's GPUs must be in one island. On other nodes the
    device plugin chooses, so this many free devices must be guaranteed to be peers."""
    asked = [(part, _shares_gpus_as(fleet, arrays, part))] if (part := request.shares) else []
    for name, count in request.devices:
        if (pool := fleet.names.resources.get(name)) is not None:
            asked.append((whole_gpus(count), arrays.divisible_pool[pool] > 0))
            counted = arrays.divisible_pool[pool] == 0
            kernels.peer_reasons(arrays.free_peers[pool], arrays.total_peers[pool], counted, count, reasons)
    counts = np.empty((2, len(arrays.compute)), np.int32)
    for part, placed in asked:
        kernels.island_reasons(
            _gpus_for(fleet, arrays, request), arrays.island, placed.astype(np.uint8),
            *_share_args(part), *counts, reasons,
        )  # fmt: skip


def _shares_gpus_as(fleet: Fleet, arrays: NodeArrays, part: Shares) -> npt.NDArray[np.bool_]:
    """(N,) where nodes offer their GPUs as shares of this resource."""
    number = fleet.names.sharing_resources.get(part.resource, -1)
    same: npt.NDArray[np.bool_] = arrays.sharing == number
    return same


def _share_args(part: Shares) -> tuple[int, int, int, int]:
    return min(part.count, _MOST_COUNT), part.compute_milli, part.memory_mib, part.memory_milli


def _gpus_for(fleet: Fleet, arrays: NodeArrays, request: Request) -> kernels.Gpus:
    """The GPUs of all nodes; those not permitted to the request count as neither free nor shareable."""
    divisible, shareable = arrays.divisible, arrays.shareable
    if (permitted := permitted_gpus(fleet, request, arrays.rows, arrays)) is not None:
        divisible, shareable = divisible * permitted, shareable * permitted
    if request.shares and request.shares.slots > 1:
        divisible = divisible * (arrays.share_slots >= request.shares.slots)
    return kernels.Gpus(
        arrays.compute, arrays.memory, arrays.compute_capacity, arrays.memory_capacity, divisible,
        shareable,
    )  # fmt: skip


# Whether the counted devices of one container are on different physical GPUs: the device plugin chooses, and
# the fleet only counts. But a plugin prefers a GPU without any device in use to a second device of a GPU that
# the container already has. So there are at least as many different GPUs as GPUs without devices in use, and
# if ``used`` devices are in use, that number is at least ``separate - used`` (``Pool.separate``). For whole
# GPUs it is the number of free ones.


def separation(fleet: Fleet, request: Request) -> SeparateGpus:
    """The rule for the request: its own, or else the fleet's; "ignore" if no container requests more than one
    device."""
    return (request.separate or fleet.separate) if request.together > 1 else "ignore"


def idle_gpus(arrays: NodeArrays, resource: int) -> npt.NDArray[np.int32]:
    """(N,) number of devices of a resource that are guaranteed to be on different GPUs; can be negative."""
    certain: npt.NDArray[np.int32] = arrays.free_devices[resource] - arrays.surplus_devices[resource]
    return certain


def any_doubtful(fleet: Fleet, request: Request) -> bool:
    """Whether any node might allocate devices of the request from the same GPU; never for whole GPUs."""
    for name, count in request.devices:  # for each request: generators would cost more
        number = fleet.names.resources.get(name) if count > 1 else None
        if number is not None and np.count_nonzero(fleet.arrays.surplus_devices[number]):
            return True
    return False


def missing_gpus(fleet: Fleet, request: Request, rows: npt.NDArray[np.int64]) -> Floats:
    """(len(rows),) number of the request's devices that each row would allocate from GPUs already allocated
    to it. Where that is uncertain, the mean of the best and the worst case; 0 where a node does not have the
    devices."""
    missing, arrays = np.zeros(rows.size, np.float32), fleet.arrays
    for name, count in request.devices:
        if count > 1 and (resource := fleet.names.resources.get(name)) is not None:
            total, surplus = arrays.total_devices[resource][rows], arrays.surplus_devices[resource][rows]
            best = (total - surplus).clip(1, count)
            worst = idle_gpus(arrays, resource)[rows].clip(1, count)
            missing += np.where(total > 0, count - (best + worst) / 2, 0)
    return missing.astype(np.float32)


def gives_separate(fleet: Fleet, request: Request) -> npt.NDArray[np.bool_]:
    """(N,) where a node without pods has as many different GPUs as the request needs of each resource; true
    everywhere if the request does not require separate GPUs."""
    arrays = fleet.arrays
    gives = np.ones(arrays.capacity, np.bool_)
    if separation(fleet, request) == "require":
        for name, count in request.devices:
            if count > 1 and (number := fleet.names.resources.get(name)) is not None:
                gives &= arrays.total_devices[number] - arrays.surplus_devices[number] >= count
    return gives
