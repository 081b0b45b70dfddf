"""Which GPUs of a node a request takes, for policies that rank nodes by their sums alone."""

from __future__ import annotations

from collections.abc import Callable

from packing.fleet import Fleet
from packing.request import WHOLE, Request
from packing.shape import meaning

Rank = Callable[[float, int], tuple[float, int]]


def tightest(fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
    """The fitting GPUs with the least free, lowest index on ties; () if the node places no shares."""
    return _pick(fleet, request, row, lambda free, gpu: (free, gpu))


def freest(fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
    """The fitting GPUs with the most free, lowest index on ties; () if the node places no shares."""
    return _pick(fleet, request, row, lambda free, gpu: (-free, gpu))


def fitting(fleet: Fleet, request: Request, row: int) -> list[tuple[float, int]]:
    """(free part, index) of the GPUs that can take one share of the request."""
    shape = fleet.shapes[row]
    part = meaning(shape, request).shares if shape else None
    if shape is None or part is None or part.resource != shape.divided_as:
        return []
    found = []
    for gpu, has in enumerate(shape.gpus):
        mib = part.memory_mib + has.memory_mib * part.memory_milli // WHOLE
        compute, memory = float(fleet.compute[gpu, row]), float(fleet.memory[gpu, row])
        named = request.uuids.permits(has.uuid)
        if named and fleet.divisible[gpu, row] and compute >= part.compute_milli and memory >= mib:
            found.append((compute / WHOLE / 2 + memory / max(1, has.memory_mib) / 2, gpu))
    return found


def _pick(fleet: Fleet, request: Request, row: int, rank: Rank) -> tuple[int, ...]:
    shape = fleet.shapes[row]
    part = meaning(shape, request).shares if shape else None
    found = sorted(rank(free, gpu) for free, gpu in fitting(fleet, request, row))
    return tuple(gpu for _, gpu in found[: part.count]) if part else ()
