"""Which GPUs of a node a request takes, for policies that rank nodes by their sums."""

from __future__ import annotations

from collections.abc import Sequence

from packing.fleet.fleet import Fleet
from packing.fleet.placement import fitting_gpus, placed_shares
from packing.model.node_spec import NodeSpec, in_one_island
from packing.model.request import WHOLE, Request


def tightest(fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
    """The fitting GPUs with the least free, lowest index on ties; () if the node places no shares."""
    return _first(fleet, request, row, 1)


def freest(fleet: Fleet, request: Request, row: int) -> tuple[int, ...]:
    """The fitting GPUs with the most free, lowest index on ties; () if the node places no shares."""
    return _first(fleet, request, row, -1)


def fitting(fleet: Fleet, request: Request, row: int) -> list[tuple[float, int]]:
    """(free part, index) of the GPUs that have room for one share of the request; where the request needs
    NVLink peers, only those of one island (see ``in_one_island``)."""
    spec, shares = fleet.specs[row], placed_shares(fleet, row, request)
    if spec is None or shares is None:
        return []
    gpus = fitting_gpus(fleet, row, request)
    if request.island:
        island = in_one_island(spec, gpus, shares.count)
        gpus = [gpu for gpu in gpus if gpu in island]
    compute, memory = fleet.arrays.compute[:, row].tolist(), fleet.arrays.memory[:, row].tolist()
    return [(compute[g] / WHOLE / 2 + memory[g] / max(1, spec.gpus[g].memory_mib) / 2, g) for g in gpus]


def _first(fleet: Fleet, request: Request, row: int, sign: int) -> tuple[int, ...]:
    """As many GPUs as the request needs on this node, ordered by ``sign`` x the free part."""
    spec, shares = fleet.specs[row], placed_shares(fleet, row, request)
    if spec is None or shares is None:
        return ()
    ranked = [gpu for _, gpu in sorted((sign * free, gpu) for free, gpu in fitting(fleet, request, row))]
    if shares.count > 1 and not request.scattered and any(len(island) > 1 for island in spec.islands):
        ranked = _peers_first(spec, ranked, shares.count)
    return tuple(ranked[: shares.count])


def _peers_first(spec: NodeSpec, ranked: Sequence[int], count: int) -> list[int]:
    """These GPUs in another order: the first ``count`` are of as few islands as possible, of one that has
    them all but no more than needed."""
    groups = [[gpu for gpu in ranked if gpu in island] for island in spec.peers]
    ordered: list[int] = []
    while groups and len(ordered) < count:
        left = count - len(ordered)
        group = min(groups, key=lambda group: (len(group) < left, abs(len(group) - left)))
        groups.remove(group)
        ordered += group
    return ordered
