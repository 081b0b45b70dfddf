"""Which GPUs of a node a request takes, for policies that rank nodes by their sums."""

from __future__ import annotations

from packing.fleet.fleet import Fleet
from packing.model.node_spec import in_one_island, meaning
from packing.model.request import WHOLE, Request


def tightest(fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
    """The fitting GPUs with the least free, lowest index on ties; () if the node places no shares."""
    return _first(fleet, request, row, sorted(fitting(fleet, request, row)))


def freest(fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
    """The fitting GPUs with the most free, lowest index on ties; () if the node places no shares."""
    ranked = sorted(fitting(fleet, request, row), key=lambda free_gpu: (-free_gpu[0], free_gpu[1]))
    return _first(fleet, request, row, ranked)


def fitting(fleet: Fleet, request: Request, row: int) -> list[tuple[float, int]]:
    """(free part, index) of the GPUs that have room for one share of the request; where the request needs
    NVLink peers, only those of one island (see ``in_one_island``)."""
    spec = fleet.shapes[row]
    wanted = meaning(spec, request) if spec else request
    shares = wanted.shares
    if spec is None or shares is None or shares.resource != spec.sharing_resource:
        return []
    found = []
    for index, gpu in enumerate(spec.gpus):
        mib = fleet.share_mib(row, index, wanted)
        compute, memory = float(fleet.compute[index, row]), float(fleet.memory[index, row])
        room = compute >= max(shares.compute_milli, 1) and memory >= mib
        if room and request.uuids.permits(gpu.uuid) and fleet.divisible[index, row]:
            found.append((compute / WHOLE / 2 + memory / max(1, gpu.memory_mib) / 2, index))
    if request.island:
        island = in_one_island(spec, [index for _, index in found], shares.count)
        found = [(free, index) for free, index in found if index in island]
    return found


def _first(fleet: Fleet, request: Request, row: int, ranked: list[tuple[float, int]]) -> tuple[int, ...]:
    """As many of the ranked GPUs as the request needs on this node."""
    spec = fleet.shapes[row]
    shares = meaning(spec, request).shares if spec else None
    return tuple(gpu for _, gpu in ranked[: shares.count]) if shares else ()
