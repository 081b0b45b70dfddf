"""Whether a request fits, for every row of a fleet in one call, and what it would take of the GPUs there."""

from __future__ import annotations

from copy import copy

import numpy as np
import numpy.typing as npt

from packing import kernels
from packing.arrays import Arrays, Floats
from packing.reasons import Reason
from packing.request import ANY, WHOLE, Request

Reasons = npt.NDArray[np.int8]
_MOST_PERMITS = 1000


def reasons(fleet: Arrays, request: Request, minimum_milli: int = 0) -> Reasons:
    """For every row the reason code why ``request`` does not fit, 0 where it does: (N,) int8.

    Shares below ``minimum_milli`` fit nowhere.
    """
    reasons = np.empty(fleet.capacity, np.int8)
    kernels.node_reasons(fleet.cpu, fleet.node_memory, request.cpu_milli, request.memory_mib, reasons)
    for name, count in request.devices:
        _device_reasons(fleet, name, count, request.together, reasons)
    if request.shares:
        _share_reasons(fleet, request, reasons)
    if request.cuda:
        reasons[(fleet.cuda < request.cuda) & (reasons != Reason.NO_SUCH_DEVICE)] = Reason.OLD_DRIVER
    if minimum_milli:
        small = too_small(fleet, request, minimum_milli)
        reasons[small & (reasons != Reason.NO_SUCH_DEVICE)] = Reason.BELOW_MINIMUM
    wanted = sum(count for _, count in request.devices) + (request.shares.count if request.shares else 0)
    island = min(wanted, 32767) if request.island else 0
    kernels.standing_reasons(
        fleet.model,
        allowed(fleet, request),
        fleet.max_island,
        island,
        fleet.overcommitted,
        fleet.blocked,
        reasons,
    )
    return reasons


def could_host(fleet: Arrays, request: Request) -> bool:
    """Whether at least one node fits the request when it is empty. Why a node is closed does not count."""
    empty = copy(fleet)
    shapes = fleet.shapes
    empty.cpu, empty.free, empty.divisible = fleet.cpu_capacity, fleet.total, fleet.shareable
    empty.compute, empty.memory = fleet.compute_capacity, fleet.memory_capacity
    empty.node_memory = np.zeros(fleet.capacity, np.float32)
    empty.node_memory[: len(shapes)] = [shape.memory_mib if shape else 0 for shape in shapes]
    empty.overcommitted, empty.blocked = np.zeros_like(fleet.overcommitted), np.zeros_like(fleet.blocked)
    known = fleet.blocked != Reason.UNKNOWN_NODE
    fits = reasons(empty, request, getattr(fleet, "minimum_milli", 0)) == Reason.FITS
    return bool((known & fits).any())


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
    if (found := fleet.permits.get(kind)) is None:
        if len(fleet.permits) >= _MOST_PERMITS:
            fleet.permits.clear()
        found = fleet.permits[kind] = _permits(fleet, request)
    return found


def _permits(fleet: Arrays, request: Request) -> npt.NDArray[np.uint8]:
    models, products = request.models, request.products
    return np.array(
        [
            (models is None or model in models)
            and products.permits_match(" ".join(filter(None, (model, product))))
            and (not (request.mode and mode) or mode in request.mode)
            for model, product, mode in zip(fleet.model_names, fleet.products, fleet.modes, strict=True)
        ],
        np.uint8,
    )


def _device_reasons(fleet: Arrays, name: str, count: int, together: int, reasons: Reasons) -> None:
    resource = fleet.resources.get(name)
    if resource is None:
        reasons[:] = Reason.NO_SUCH_DEVICE
    else:
        wanted = min(count, np.iinfo(np.int32).max)
        kernels.device_reasons(fleet.free[resource], fleet.total[resource], wanted, reasons)
        if together > 1:
            limit = fleet.most[resource]
            reasons[(limit > 0) & (limit < together)] = Reason.ONE_REPLICA


def _share_reasons(fleet: Arrays, request: Request, reasons: Reasons) -> None:
    part = request.shares
    assert part is not None
    counts, frees = np.empty((2, fleet.capacity), np.int32), np.empty((2, fleet.capacity), np.float32)
    divisible, shareable = fleet.divisible, fleet.shareable
    if request.uuids is not ANY:
        named = _named(fleet, request)
        divisible, shareable = divisible * named, shareable * named
    kernels.share_reasons(
        fleet.compute, fleet.memory, fleet.compute_capacity, fleet.memory_capacity, divisible, shareable,
        min(part.count, 32767), part.compute_milli, part.memory_mib, part.memory_milli / WHOLE,
        reasons, *counts, *frees,
    )  # fmt: skip
    reasons[fleet.divided != fleet.divisions.get(part.resource, -1)] = Reason.NO_SUCH_DEVICE


def _named(fleet: Arrays, request: Request) -> npt.NDArray[np.uint8]:
    """(G, N) 1 for the GPUs whose UUID the request permits."""
    allow, deny = request.uuids.allow, request.uuids.deny
    named = np.zeros_like(fleet.identified) if allow else fleet.identified.copy()
    for uuid in frozenset.intersection(*allow) if allow else deny:
        if uuid in fleet.uuids:
            named[fleet.uuids[uuid]] = uuid not in deny
    return named
