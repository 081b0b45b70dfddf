"""Which GPUs of a node a request takes, for policies that rank nodes by their sums alone."""

from __future__ import annotations

from collections.abc import Callable

from packing.fleet.fleet import Fleet
from packing.fleet.placement import fitting_gpus, placed_shares
from packing.model.node_spec import in_one_island
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
    spec, part = fleet.specs[row], placed_shares(fleet, row, request)
    if spec is None or part is None:
        return []
    gpus = fitting_gpus(fleet, row, request)
    if request.island:
        island = in_one_island(spec, gpus, part.count)
        gpus = [gpu for gpu in gpus if gpu in island]
    compute, memory = fleet.arrays.compute[:, row].tolist(), fleet.arrays.memory[:, row].tolist()
    return [(compute[g] / WHOLE / 2 + memory[g] / max(1, spec.gpus[g].memory_mib) / 2, g) for g in gpus]


def _pick(fleet: Fleet, request: Request, row: int, rank: Rank) -> tuple[int, ...]:
    part = placed_shares(fleet, row, request)
    found = sorted(rank(free, gpu) for free, gpu in fitting(fleet, request, row))
    return tuple(gpu for _, gpu in found[: part.count]) if part else ()
