"""Which GPUs of a node a request takes, for policies that rank nodes by their sums alone."""

from __future__ import annotations

from collections.abc import Callable

from packing.fleet.fleet import Fleet
from packing.model.node_spec import in_one_island, meaning
from packing.model.request import WHOLE, Request

Rank = Callable[[float, int], tuple[float, int]]


def tightest(fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
    """The fitting GPUs with the least free, lowest index on ties; () if the node places no shares."""
    return _pick(fleet, request, row, lambda free, gpu: (free, gpu))


def freest(fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
    """The fitting GPUs with the most free, lowest index on ties; () if the node places no shares."""
    return _pick(fleet, request, row, lambda free, gpu: (-free, gpu))


def fitting(fleet: Fleet, request: Request, row: int) -> list[tuple[float, int]]:
    """(free part, index) of the GPUs that can take one share of the request. Where it needs NVLink peers they
    are all of one island (see ``in_one_island``)."""
    shape = fleet.shapes[row]
    wanted = meaning(shape, request) if shape else request
    part = wanted.shares
    if shape is None or part is None or part.resource != shape.sharing_resource:
        return []
    found = []
    for gpu, has in enumerate(shape.gpus):
        mib = fleet.share_mib(row, gpu, wanted)
        compute, memory = float(fleet.compute[gpu, row]), float(fleet.memory[gpu, row])
        named = request.uuids.permits(has.uuid)
        if named and fleet.divisible[gpu, row] and compute >= max(part.compute_milli, 1) and memory >= mib:
            found.append((compute / WHOLE / 2 + memory / max(1, has.memory_mib) / 2, gpu))
    if request.island:
        kept = in_one_island(shape, [gpu for _, gpu in found], part.count)
        found = [one for one in found if one[1] in kept]
    return found


def _pick(fleet: Fleet, request: Request, row: int, rank: Rank) -> tuple[int, ...]:
    shape = fleet.shapes[row]
    part = meaning(shape, request).shares if shape else None
    found = sorted(rank(free, gpu) for free, gpu in fitting(fleet, request, row))
    return tuple(gpu for _, gpu in found[: part.count]) if part else ()
