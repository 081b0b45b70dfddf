"""What the search needs to know of a node besides the fleet's arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from packing.fleet.arrays import LARGEST
from packing.fleet.fleet import Fleet
from packing.model.request import MOST_DEVICES, Request
from packing.victims.holdings import FIRST_POOL
from packing.victims.records import Held


def slice_holders(fleet: Fleet, row: int, held: Held) -> npt.NDArray[np.int64]:
    """(R,) how many pods hold each MIG slice of a node, in its row; nominated pods count."""
    holders = np.zeros(held.row_start.size - 1, np.int64)
    if held.places.size:
        for gpu, place, count in fleet.usage[row].slice_holders():
            if place < held.slices[gpu]:
                holders[held.first[gpu] + 1 + place] = count
    return holders


def raise_for_peers(
    fleet: Fleet, row: int, held: Held, request: Request, needed: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """``needed`` (R,), with what must be freed of the pools so that its device plugin finds NVLink peers."""
    of_pool = {int(number): FIRST_POOL + i for i, number in enumerate(held.pools)}
    for name, count in request.devices:
        resource = fleet.names.resources.get(name, -1)
        if resource in of_pool:
            missing = fleet.usage[row].missing_peers(resource, count)
            needed[of_pool[resource]] = max(needed[of_pool[resource]], missing)
    return needed


def overcommitted_amounts(fleet: Fleet, row: int, held: Held) -> npt.NDArray[np.int64] | None:
    """(R,) what must be freed before the node holds no more than it has, nominated pods apart; None where
    that cannot be said by row."""
    needed = np.zeros(held.row_start.size - 1, np.int64)
    if not fleet.arrays.overcommitted[row]:
        return needed
    spec = fleet.specs[row]
    assert spec is not None
    with fleet.without_nominated(row) as usage:
        counted = {gpu for pool in spec.pools if not spec.is_divisible(pool) for gpu in pool.gpus}
        of_pool = {int(number): FIRST_POOL + i for i, number in enumerate(held.pools)}
        for resource, free in usage.free_devices():
            if free <= -MOST_DEVICES:
                return None
            needed[of_pool[resource]] = max(0, -free)
        for g, gpu in enumerate(spec.gpus):
            if gpu.instances:
                continue
            free_on_gpu = usage.free_on_gpu(g)
            if min(free_on_gpu) < 0 and (g in counted or min(free_on_gpu) <= -LARGEST):
                return None
            needed[held.first[g] + 1 : held.first[g] + 3] = [max(0, -free) for free in free_on_gpu]
        for g, place, count in usage.slice_holders():
            if count > 1 and spec.gpus[g].instances:
                if place >= held.slices[g]:
                    return None
                needed[held.first[g] + 1 + place] = count - 1
    return needed
