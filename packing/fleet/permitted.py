"""Which GPUs a request may have, by UUID, model, memory and their pods' mode, whether or not there is room.

All that place, check, free or explain GPUs ask here, so a new constraint is one more mask in
``permitted_gpus``. Its property test plants one that nothing else knows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from packing.fleet.arrays import NodeArrays
from packing.fleet.fleet import Fleet
from packing.model.node_spec import resolve_on
from packing.model.request import ANY, ANY_MODEL, WHOLE, Request, Shares

Mask = npt.NDArray[np.uint8]
EVERY_ROW = slice(0, None)


def permitted_gpus(
    fleet: Fleet, request: Request, rows: slice = EVERY_ROW, arrays: NodeArrays | None = None
) -> Mask | None:
    """(G, len(rows)) 1 for the GPUs that the request may use if there is room; None if all are permitted.
    ``arrays``: those of these rows if they have other pods than the fleet's, such as none."""
    permitted = None if request.uuids is ANY else _named_gpus(fleet, request, rows)
    part = request.shares
    if request.device_mib:
        large = (memory_for(fleet.arrays, part, rows) >= request.device_mib).astype(np.uint8)
        permitted = large if permitted is None else permitted & large
    if mixes_modes(fleet, request):
        same = in_its_mode(arrays, request) if arrays else in_its_mode(fleet.arrays, request, rows)
        permitted = same if permitted is None else permitted & same
    if not fleet.choosy_rows or (request.products == ANY_MODEL and not (part and part.memory_milli)):
        return permitted
    columns = range(*rows.indices(fleet.arrays.capacity))
    if permitted is None:
        permitted = np.ones_like(fleet.arrays.identified[:, rows])
    for row in fleet.choosy_rows.intersection(columns) if len(columns) > 1 else columns:
        spec = fleet.specs[row]
        for index, gpu in enumerate(spec.gpus if spec else ()):
            permitted[index, row - columns.start] &= gpu.permits(request, part)
    return permitted


def permitted_on(fleet: Fleet, request: Request, row: int) -> frozenset[int]:
    """The GPUs of one node that the request may have if there is room."""
    spec = fleet.specs[row]
    if spec is None:
        return frozenset()
    permitted = permitted_gpus(fleet, resolve_on(spec, request), slice(row, row + 1))
    every = range(len(spec.gpus))
    return frozenset(every if permitted is None else (gpu for gpu in every if permitted[gpu, 0]))


def mixes_modes(fleet: Fleet, request: Request) -> bool:
    """Whether GPUs may have shares of another mode than those of the request (``Shares.concurrent``)."""
    return request.shares is not None and (fleet.any_concurrent or request.shares.concurrent)


def in_its_mode(arrays: NodeArrays, request: Request, rows: slice = EVERY_ROW) -> Mask:
    """(G, len(rows)) 1 for the GPUs of these arrays without shares of the other mode."""
    concurrent = arrays.concurrent_shares[:, rows]
    others = concurrent
    if request.shares and request.shares.concurrent:
        others = arrays.total_slots[:, rows] - arrays.share_slots[:, rows] - concurrent
    mask: Mask = (others == 0).astype(np.uint8)
    return mask


def memory_for(arrays: NodeArrays, part: Shares | None, rows: slice = EVERY_ROW) -> npt.NDArray[np.int64]:
    """(G, len(rows)) MiB of each GPU, or of a share of it; 0 where there is no GPU."""
    mib = arrays.memory_capacity[:, rows].astype(np.int64)
    mib = part.memory_mib + mib * part.memory_milli // WHOLE if part else mib
    return np.where(arrays.compute_capacity[:, rows] > 0, mib, np.int64(0))


def _named_gpus(fleet: Fleet, request: Request, rows: slice) -> Mask:
    """(G, len(rows)) 1 for the GPUs whose UUID the request permits."""
    allow, deny, identified = request.uuids.allow, request.uuids.deny, fleet.arrays.identified[:, rows]
    named = np.zeros_like(identified) if allow else identified.copy()
    columns = range(*rows.indices(fleet.arrays.capacity))
    for uuid in frozenset.intersection(*allow) if allow else deny:
        gpu, row = fleet.gpu_of_uuid.get(uuid, (0, -1))
        if row in columns:
            named[gpu, row - columns.start] = uuid not in deny
    return named
